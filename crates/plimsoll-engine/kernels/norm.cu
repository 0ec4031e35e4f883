// RMS norm: `out = drop(x * rstd * weight)` with `rstd = 1 / sqrt(mean(x^2) + eps)`. A warp takes a row.
//
// norm_forward(x, weight, rstd, out, width, eps, rows, drop, step)                          ceil(max_rows / 8) of 256
// norm_residual_forward(x, y, weight, rstd, out, width, eps, rows, of_y, of_out, step)      ceil(max_rows / 8) of 256
// norm_apply(x, weight, rstd, out, width, rows, drop, step)                                 ceil(max_rows / 8) of 256
// norm_backward(dy, x, weight, rstd, dx, add, width, rows)                                  ceil(max_rows / 8) of 256
// norm_backward_both(dy, x, weight, rstd, dx, add, partial, width, rows)                    as many blocks of 256 as `partial` has
//     rows; then `sum_partials`. `width` up to 1024, in whole pieces of 16 bytes, as are the tensors; `dx` may be `dy`.
// norm_weight_partial(dy, x, rstd, partial, width, rows)                                    (ceil(width / 64), chunks) of 256
#include "columns.cuh"
#include "philox.cuh"
#include "reduce.cuh"

#define EACH_ROW(count) for (u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < (count); row += gridDim.x * (blockDim.x / 32))

template <int V>
HERE void scale_row(const ACT *x, const WGT *weight, float rstd, ACT *out, u32 width, u32 row, const Drop &place, const Step *step) {
    for (u32 col = threadIdx.x % 32 * V; col < width; col += 32 * V) {
        float values[V], w[V];
        load<V>(x + col, values);
        load<V>(weight + col, w);
#pragma unroll
        for (int i = 0; i < V; i++) values[i] = w[i] * (values[i] * rstd);
        drop<V>(place, step, row, width, col, values);
        store<V>(out + col, values);
    }
}

KERNEL norm_forward(const ACT *x, const WGT *weight, float *rstd, ACT *out, u32 width, float eps, const u32 *rows, Drop place,
                    const Step *step) {
    by_pieces(width % VEC == 0 && whole(x) && whole(weight) && whole(out), [&](auto v) {
        constexpr int V = decltype(v)::value;
        EACH_ROW(*rows) {
            const ACT *from = x + (u64)row * width;
            float sum = 0.0f;
            for (u32 col = threadIdx.x % 32 * V; col < width; col += 32 * V) {
                float values[V];
                load<V>(from + col, values);
#pragma unroll
                for (int i = 0; i < V; i++) sum = fmaf(values[i], values[i], sum);
            }
            const float inverse = 1.0f / sqrtf(warp_sum(sum) / (float)width + eps);
            if (threadIdx.x % 32 == 0) rstd[row] = inverse;
            scale_row<V>(from, weight, inverse, out + (u64)row * width, width, row, place, step);
        }
    });
}

KERNEL norm_residual_forward(const ACT *x, ACT *y, const WGT *weight, float *rstd, ACT *out, u32 width, float eps, const u32 *rows,
                             Drop of_y, Drop of_out, const Step *step) {
    by_pieces(width % VEC == 0 && whole(x) && whole(y) && whole(weight) && whole(out), [&](auto v) {
        constexpr int V = decltype(v)::value;
        EACH_ROW(*rows) {
            const ACT *from = x + (u64)row * width;
            ACT *both = y + (u64)row * width;
            float sum = 0.0f;
            for (u32 col = threadIdx.x % 32 * V; col < width; col += 32 * V) {
                float values[V], more[V];
                load<V>(both + col, values);
                load<V>(from + col, more);
                drop<V>(of_y, step, row, width, col, values);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    // As `residual_forward` and `norm_forward` one after the other: the norm sees what is stored.
                    values[i] = stored<ACT>(more[i] + values[i]);
                    sum = fmaf(values[i], values[i], sum);
                }
                store<V>(both + col, values);
            }
            const float inverse = 1.0f / sqrtf(warp_sum(sum) / (float)width + eps);
            if (threadIdx.x % 32 == 0) rstd[row] = inverse;
            // A lane reads again what it wrote itself.
            scale_row<V>(both, weight, inverse, out + (u64)row * width, width, row, of_out, step);
        }
    });
}

KERNEL norm_apply(const ACT *x, const WGT *weight, const float *rstd, ACT *out, u32 width, const u32 *rows, Drop place,
                  const Step *step) {
    by_pieces(width % VEC == 0 && whole(x) && whole(weight) && whole(out), [&](auto v) {
        constexpr int V = decltype(v)::value;
        EACH_ROW(*rows) {
            scale_row<V>(x + (u64)row * width, weight, rstd[row], out + (u64)row * width, width, row, place, step);
        }
    });
}

KERNEL norm_backward(const ACT *dy, const ACT *x, const WGT *weight, const float *rstd, ACT *dx, u32 add, u32 width, const u32 *rows) {
    by_pieces(width % VEC == 0 && whole(dy) && whole(x) && whole(weight) && whole(dx), [&](auto v) {
        constexpr int V = decltype(v)::value;
        EACH_ROW(*rows) {
            const u64 at = (u64)row * width;
            const float inverse = rstd[row];
            float sum = 0.0f;
            for (u32 col = threadIdx.x % 32 * V; col < width; col += 32 * V) {
                float d[V], v[V], w[V];
                load<V>(dy + at + col, d);
                load<V>(x + at + col, v);
                load<V>(weight + col, w);
#pragma unroll
                for (int i = 0; i < V; i++) sum += d[i] * w[i] * (v[i] * inverse);
            }
            const float mean = warp_sum(sum) / (float)width;
            for (u32 col = threadIdx.x % 32 * V; col < width; col += 32 * V) {
                float d[V], v[V], w[V];
                load<V>(dy + at + col, d);
                load<V>(x + at + col, v);
                load<V>(weight + col, w);
#pragma unroll
                for (int i = 0; i < V; i++) d[i] = inverse * (d[i] * w[i] - v[i] * inverse * mean);
                if (add) {
                    load<V>(dx + at + col, v);
#pragma unroll
                    for (int i = 0; i < V; i++) d[i] += v[i];
                }
                store<V>(dx + at + col, d);
            }
        }
    });
}

KERNEL norm_weight_partial(const ACT *dy, const ACT *x, const float *rstd, float *partial, u32 width, const u32 *rows) {
    column_partial(whole(dy) && whole(x), width, *rows, partial, [&](auto v, u32 row, u32 col, auto &out) {
        constexpr int V = decltype(v)::value;
        float value[V];
        load<V>(dy + (u64)row * width + col, out);
        load<V>(x + (u64)row * width + col, value);
#pragma unroll
        for (int i = 0; i < V; i++) out[i] *= value[i] * rstd[row];
    });
}

/// Columns that a lane of `norm_backward_both` holds at most.
#define HELD 32
/// Blocks of it that a processor of the card takes at a time: what is held is as it lies in memory, 16 registers a row in 16 bits.
#define SIDE_BY_SIDE (sizeof(ACT) == 2 ? 2 : 1)

/// A piece of a row as it lies in memory.
union alignas(16) Raw {
    ACT of[VEC];
    u32 words[4];
};

/// Keeps the compiler from holding a piece as floats, twice the registers, between two uses.
HERE void forget(Raw &piece) {
#ifdef __CUDA_ARCH__
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+r"(piece.words[i]));
#endif
}

KERNEL __launch_bounds__(256, SIDE_BY_SIDE) norm_backward_both(const ACT *dy, const ACT *x, const WGT *weight, const float *rstd, ACT *dx,
                                                               u32 add, float *partial, u32 width, const u32 *rows) {
    __shared__ float sums[8][32 * HELD];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Chunk chunk = chunk_of(*rows, blockIdx.x, gridDim.x);
    constexpr int V = VEC, N = HELD / V;
    float mine[N][V] = {};
    for (u32 row = chunk.first + warp; row < chunk.end; row += 8) {
        const u64 at = (u64)row * width;
        const float inverse = rstd[row];
        // All that is read of memory is asked for before any of it is used.
        Raw d[N] = {}, h[N] = {}, before[N] = {};
#pragma unroll
        for (int n = 0; n < N; n++) {
            const u32 col = (n * 32 + lane) * V;
            if (col < width) {
                d[n] = *reinterpret_cast<const Raw *>(dy + at + col);
                h[n] = *reinterpret_cast<const Raw *>(x + at + col);
                if (add) before[n] = *reinterpret_cast<const Raw *>(dx + at + col);
            }
        }
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const u32 col = (n * 32 + lane) * V;
            float w[V] = {};
            if (col < width) load<V>(weight + col, w);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const float product = wide(d[n].of[i]) * (wide(h[n].of[i]) * inverse);
                mine[n][i] += product;
                sum = fmaf(product, w[i], sum);
            }
        }
        const float mean = warp_sum(sum) / (float)width;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const u32 col = (n * 32 + lane) * V;
            if (col >= width) continue;
            float w[V], out[V];
            load<V>(weight + col, w);
            forget(d[n]);
            forget(h[n]);
#pragma unroll
            for (int i = 0; i < V; i++) {
                out[i] = inverse * (wide(d[n].of[i]) * w[i] - wide(h[n].of[i]) * inverse * mean) + wide(before[n].of[i]);
            }
            store<V>(dx + at + col, out);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < V; i++) sums[warp][(n * 32 + lane) * V + i] = mine[n][i];
    }
    __syncthreads();
    for (u32 col = threadIdx.x; col < width; col += 256) {
        float all = 0.0f;
#pragma unroll
        for (u32 w = 0; w < 8; w++) all += sums[w][col];
        partial[(u64)blockIdx.x * width + col] = all;
    }
}
