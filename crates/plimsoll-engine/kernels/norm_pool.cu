// What is behind a convolution, in one pass: out = pool(drop(activation(norm(x)))) + pool(skip), and its gradient. Nothing between is
// kept: the backward pass finds again which step of each pool was the largest (the first of them; a NaN wins).
//
// norm_pool_forward(Pool, skip, out, samples, Drop, step)                        any grid of 256
// norm_pool_backward(Pool, skip, dout, dx, dskip, partial, samples, Drop, step)  (ceil(width / 64), chunks) of 256
// norm_pool_sums(partial, chunks, width, means, weight_grad, weight_write, bias_grad, bias_write, rows, step)  ceil(width / 32) of 256
// norm_pool_through(Pool, dx, means, rows)                                       any grid of 256
//
// partial[chunks, 2, width] are doubles: sums of the gradient, and of it times the normed input; means[2, width] theirs over all rows.
#include "curve.cuh"
#include "philox.cuh"
#include "reduce.cuh"

/// `stats` (means, then inverse deviations), `weight` and `bias` are null where there is no norm.
struct Pool {
    const ACT *x;
    const float *stats;
    const float *weight;
    const float *bias;
    u32 steps, width, pool, gelu;
};

/// Columns that a thread has: 16 apart, so that one draw is for all of them.
#define COLS 4

/// The largest of a pool in one column.
struct Largest {
    float value, z, x, factor;
    u32 at;
};

/// The largest of pool `nth` in columns `col`, `col + 16` ... that there are.
HERE void largest(const Pool &pool, const Drop &place, const Step *step, u32 nth, u32 col, Largest (&best)[COLS]) {
    const u32 pooled = pool.steps / pool.pool, sample = nth / pooled, first = nth % pooled * pool.pool;
    const ACT *const x = pool.x + ((u64)sample * pool.steps + first) * pool.width;
    float factor[COLS], term[COLS];
#pragma unroll
    for (u32 w = 0; w < COLS; w++) {
        const u32 c = col + 16 * w;
        best[w] = Largest{-infinity(), 0.0f, 0.0f, 1.0f, 0};
        factor[w] = 1.0f;
        term[w] = 0.0f;
        if (pool.stats && c < pool.width) {
            factor[w] = pool.stats[pool.width + c] * pool.weight[c];
            term[w] = pool.bias[c] - pool.stats[c] * factor[w];
        }
    }
    for (u32 at = 0; at < pool.pool; at++) {
        Words words;
        if (place.threshold) {
            const u64 counter = ((u64)(first + at) * ((pool.width + 63) / 64) + col / 64) * 16;
            const u32 above = place.place ^ (u32)(counter >> 32) << 20;
            words = philox(step->seed, (u32)counter + col % 16, *place.sample + sample, above, (u32)step->update);
        }
#pragma unroll
        for (u32 w = 0; w < COLS; w++) {
            const u32 c = col + 16 * w;
            if (c >= pool.width) continue;
            const float value = wide(x[(u64)at * pool.width + c]);
            const float z = fmaf(value, factor[w], term[w]);
            const float kept = !place.threshold ? 1.0f : words.at[w] < place.threshold ? 0.0f : place.scale;
            // Not `fmaxf`: that would turn NaN into 0, and a broken weight would go unseen.
            const float v = (pool.gelu ? gelu_erf(z) : z <= 0.0f ? 0.0f : z) * kept;
            if (v > best[w].value || is_nan(v)) best[w] = Largest{v, z, value, kept, at};
        }
    }
}

/// The largest of what is skipped, and which step it is.
HERE float largest_skipped(const ACT *skip, const Pool &pool, u32 nth, u32 col, u32 &at) {
    const u32 pooled = pool.steps / pool.pool;
    const ACT *const x = skip + ((u64)(nth / pooled) * pool.steps + nth % pooled * pool.pool) * pool.width + col;
    float best = -infinity();
    at = 0;
    for (u32 i = 0; i < pool.pool; i++) {
        const float value = wide(x[(u64)i * pool.width]);
        if (value > best || is_nan(value)) {
            best = value;
            at = i;
        }
    }
    return best;
}

KERNEL norm_pool_forward(Pool pool, const ACT *skip, ACT *out, const u32 *samples, Drop place, const Step *step) {
    const u32 each = (pool.width + 63) / 64 * 16;
    const u64 total = (u64)*samples * (pool.steps / pool.pool) * each, apart = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += apart) {
        const u32 nth = (u32)(at / each), rest = (u32)(at - (u64)nth * each), col = rest / 16 * 64 + rest % 16;
        Largest best[COLS];
        largest(pool, place, step, nth, col, best);
#pragma unroll
        for (u32 w = 0; w < COLS; w++) {
            const u32 c = col + 16 * w;
            if (c >= pool.width) continue;
            u32 which;
            const float more = skip ? largest_skipped(skip, pool, nth, c, which) : 0.0f;
            narrow(skip ? best[w].value + more : best[w].value, out[(u64)nth * pool.width + c]);
        }
    }
}

KERNEL norm_pool_backward(Pool pool, const ACT *skip, const ACT *dout, ACT *dx, ACT *dskip, double *partial, const u32 *samples, Drop place,
                          const Step *step) {
    __shared__ double sums[16][64][2];
    const u32 lane = threadIdx.x % 16, slot = threadIdx.x / 16, col = blockIdx.x * 64 + lane, width = pool.width;
    const u32 pooled = pool.steps / pool.pool;
    const Chunk chunk = chunk_of(*samples * pooled, blockIdx.y, gridDim.y);
    double plain[COLS] = {}, along[COLS] = {};
    for (u32 nth = chunk.first + slot; nth < chunk.end; nth += 16) {
        const u32 within = nth % pooled;
        const u64 row = (u64)(nth / pooled) * pool.steps + within * pool.pool;
        // The last pool of a sample takes the steps behind it as well.
        const u32 count = within + 1 == pooled ? pool.steps - (pooled - 1) * pool.pool : pool.pool;
        Largest best[COLS];
        largest(pool, place, step, nth, col, best);
#pragma unroll
        for (u32 w = 0; w < COLS; w++) {
            const u32 c = col + 16 * w;
            if (c >= width) continue;
            const float given = wide(dout[(u64)nth * width + c]);
            const float slope = pool.gelu ? gelu_erf_slope(best[w].z) : best[w].z > 0.0f ? 1.0f : 0.0f;
            const float dz = given * best[w].factor * slope;
            if (pool.stats) {
                plain[w] += (double)dz;
                along[w] += (double)(dz * ((best[w].x - pool.stats[c]) * pool.stats[width + c]));
            }
            u32 which = 0;
            if (dskip) largest_skipped(skip, pool, nth, c, which);
            for (u32 i = 0; i < count; i++) {
                const u64 to = (row + i) * width + c;
                narrow(i == best[w].at ? dz : 0.0f, dx[to]);
                if (dskip) narrow(i == which ? given : 0.0f, dskip[to]);
            }
        }
    }
    if (!pool.stats) return;
#pragma unroll
    for (u32 w = 0; w < COLS; w++) {
        sums[slot][lane + 16 * w][0] = plain[w];
        sums[slot][lane + 16 * w][1] = along[w];
    }
    __syncthreads();
    const u32 mine = blockIdx.x * 64 + threadIdx.x % 64, which = threadIdx.x / 64;
    if (which < 2 && mine < width) {
        double all = 0.0;
        for (u32 s = 0; s < 16; s++) all += sums[s][threadIdx.x % 64][which];
        partial[((u64)blockIdx.y * 2 + which) * width + mine] = all;
    }
}

KERNEL norm_pool_sums(const double *partial, u32 chunks, u32 width, float *means, GRD *weight_grad, u32 weight_write, GRD *bias_grad,
                      u32 bias_write, const u32 *rows, const Step *step) {
    __shared__ double sums[8][32][2];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
    double plain = 0.0, along = 0.0;
    if (col < width) {
        for (u32 chunk = warp; chunk < chunks; chunk += 8) {
            plain += partial[(u64)chunk * 2 * width + col];
            along += partial[((u64)chunk * 2 + 1) * width + col];
        }
    }
    sums[warp][lane][0] = plain;
    sums[warp][lane][1] = along;
    __syncthreads();
    if (warp > 0 || col >= width) return;
    plain = along = 0.0;
    for (u32 w = 0; w < 8; w++) {
        plain += sums[w][lane][0];
        along += sums[w][lane][1];
    }
    means[col] = (float)(plain / (double)*rows);
    means[width + col] = (float)(along / (double)*rows);
    if (weight_grad) narrow((adds(weight_write, step) ? wide(weight_grad[col]) : 0.0f) + (float)along, weight_grad[col]);
    if (bias_grad) narrow((adds(bias_write, step) ? wide(bias_grad[col]) : 0.0f) + (float)plain, bias_grad[col]);
}

KERNEL norm_pool_through(Pool pool, ACT *dx, const float *means, const u32 *rows) {
    const u32 width = pool.width;
    each_piece(width % VEC == 0 && whole(pool.x) && whole(dx), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float x[V], d[V];
        load<V>(pool.x + (u64)row * width + col, x);
        load<V>(dx + (u64)row * width + col, d);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const u32 c = col + i;
            const float inverse = pool.stats[width + c], hat = (x[i] - pool.stats[c]) * inverse;
            const float rest = d[i] - means[c] - hat * means[width + c];
            d[i] = pool.weight[c] * inverse * rest;
        }
        store<V>(dx + (u64)row * width + col, d);
    });
}
