// Layer norm: `out = (x - mean) * rstd * weight + bias`; `stats` keeps mean and rstd of each row. A warp takes a row.
//
// layer_norm_forward(x, weight, bias, stats, out, width, eps, rows)                                  ceil(max_rows / 8) of 256
// layer_norm_residual_forward(x, y, weight, bias, stats, out, width, eps, rows, of_y, step)          ceil(max_rows / 8) of 256
// layer_norm_apply(x, weight, bias, stats, out, width, rows)                                         ceil(max_rows / 8) of 256
// layer_norm_backward(dy, x, weight, stats, dx, add, width, rows)                                    ceil(max_rows / 8) of 256
// layer_norm_weight_partial(dy, x, stats, weight_partial, bias_partial, width, rows)                 (ceil(width / 64), chunks) of 256
#include "columns.cuh"
#include "philox.cuh"
#include "reduce.cuh"

#define EACH_ROW(count) for (u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < (count); row += gridDim.x * (blockDim.x / 32))
#define EACH_COL for (u32 col = threadIdx.x % 32 * V; col < width; col += 32 * V)

template <int V>
HERE void scale_row(const ACT *x, const WGT *weight, const WGT *bias, float mean, float rstd, ACT *out, u32 width) {
    EACH_COL {
        float values[V], w[V], b[V];
        load<V>(x + col, values);
        load<V>(weight + col, w);
        load<V>(bias + col, b);
#pragma unroll
        for (int i = 0; i < V; i++) values[i] = (values[i] - mean) * rstd * w[i] + b[i];
        store<V>(out + col, values);
    }
}

/// The row's deviation; `sum` is this lane's part of its sum.
template <int V>
HERE void measure(const ACT *x, float sum, float eps, u32 width, float &mean, float &rstd) {
    mean = warp_sum(sum) / (float)width;
    float squares = 0.0f;
    EACH_COL {
        float values[V];
        load<V>(x + col, values);
#pragma unroll
        for (int i = 0; i < V; i++) squares = fmaf(values[i] - mean, values[i] - mean, squares);
    }
    rstd = 1.0f / sqrtf(warp_sum(squares) / (float)width + eps);
}

KERNEL layer_norm_forward(const ACT *x, const WGT *weight, const WGT *bias, float *stats, ACT *out, u32 width, float eps,
                          const u32 *rows) {
    by_pieces(width % VEC == 0 && whole(x) && whole(weight) && whole(bias) && whole(out), [&](auto v) {
        constexpr int V = decltype(v)::value;
        EACH_ROW(*rows) {
            const ACT *from = x + (u64)row * width;
            float sum = 0.0f, mean, rstd;
            EACH_COL {
                float values[V];
                load<V>(from + col, values);
#pragma unroll
                for (int i = 0; i < V; i++) sum += values[i];
            }
            measure<V>(from, sum, eps, width, mean, rstd);
            if (threadIdx.x % 32 == 0) {
                stats[2 * row] = mean;
                stats[2 * row + 1] = rstd;
            }
            scale_row<V>(from, weight, bias, mean, rstd, out + (u64)row * width, width);
        }
    });
}

KERNEL layer_norm_residual_forward(const ACT *x, ACT *y, const WGT *weight, const WGT *bias, float *stats, ACT *out, u32 width, float eps,
                                   const u32 *rows, Drop of_y, const Step *step) {
    by_pieces(width % VEC == 0 && whole(x) && whole(y) && whole(weight) && whole(bias) && whole(out), [&](auto v) {
        constexpr int V = decltype(v)::value;
        EACH_ROW(*rows) {
            const ACT *from = x + (u64)row * width;
            ACT *both = y + (u64)row * width;
            float sum = 0.0f, mean, rstd;
            EACH_COL {
                float values[V], more[V];
                load<V>(both + col, values);
                load<V>(from + col, more);
                drop<V>(of_y, step, row, width, col, values);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    values[i] = stored<ACT>(more[i] + values[i]);
                    sum += values[i];
                }
                store<V>(both + col, values);
            }
            measure<V>(both, sum, eps, width, mean, rstd);
            if (threadIdx.x % 32 == 0) {
                stats[2 * row] = mean;
                stats[2 * row + 1] = rstd;
            }
            scale_row<V>(both, weight, bias, mean, rstd, out + (u64)row * width, width);
        }
    });
}

KERNEL layer_norm_apply(const ACT *x, const WGT *weight, const WGT *bias, const float *stats, ACT *out, u32 width, const u32 *rows) {
    by_pieces(width % VEC == 0 && whole(x) && whole(weight) && whole(bias) && whole(out), [&](auto v) {
        constexpr int V = decltype(v)::value;
        EACH_ROW(*rows) {
            scale_row<V>(x + (u64)row * width, weight, bias, stats[2 * row], stats[2 * row + 1], out + (u64)row * width, width);
        }
    });
}

KERNEL layer_norm_backward(const ACT *dy, const ACT *x, const WGT *weight, const float *stats, ACT *dx, u32 add, u32 width,
                           const u32 *rows) {
    by_pieces(width % VEC == 0 && whole(dy) && whole(x) && whole(weight) && whole(dx), [&](auto v) {
        constexpr int V = decltype(v)::value;
        EACH_ROW(*rows) {
            const u64 at = (u64)row * width;
            const float mean = stats[2 * row], rstd = stats[2 * row + 1];
            float plain = 0.0f, along = 0.0f;
            EACH_COL {
                float d[V], v[V], w[V];
                load<V>(dy + at + col, d);
                load<V>(x + at + col, v);
                load<V>(weight + col, w);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const float g = d[i] * w[i];
                    plain += g;
                    along += g * ((v[i] - mean) * rstd);
                }
            }
            plain = warp_sum(plain) / (float)width;
            along = warp_sum(along) / (float)width;
            EACH_COL {
                float d[V], v[V], w[V];
                load<V>(dy + at + col, d);
                load<V>(x + at + col, v);
                load<V>(weight + col, w);
#pragma unroll
                for (int i = 0; i < V; i++) d[i] = rstd * (d[i] * w[i] - plain - (v[i] - mean) * rstd * along);
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

KERNEL layer_norm_weight_partial(const ACT *dy, const ACT *x, const float *stats, float *weight_partial, float *bias_partial, u32 width,
                                 const u32 *rows) {
    if (weight_partial) {
        column_partial(whole(dy) && whole(x), width, *rows, weight_partial, [&](auto v, u32 row, u32 col, auto &out) {
            constexpr int V = decltype(v)::value;
            float value[V];
            load<V>(dy + (u64)row * width + col, out);
            load<V>(x + (u64)row * width + col, value);
#pragma unroll
            for (int i = 0; i < V; i++) out[i] *= (value[i] - stats[2 * row]) * stats[2 * row + 1];
        });
    }
    if (bias_partial) {
        column_partial(whole(dy), width, *rows, bias_partial, [&](auto v, u32 row, u32 col, auto &out) {
            load<decltype(v)::value>(dy + (u64)row * width + col, out);
        });
    }
}
