// Additive attention: the steps of a sample summed by softmax(tanh(u) w + b), and its gradient.
//
// additive_pool_scores(u, weight, bias, weights, units, rows)                 ceil(max_rows / 8) of 256: u = tanh(u), weights the scores
// additive_pool_softmax(weights, steps)                                       samples of 256
// additive_pool_sum(x, weights, out, steps, width)                            (samples, ceil(width / 32)) of 256
// additive_pool_dots(dout, x, weights, dx, dots, steps, width, rows)          ceil(max_rows / 8) of 256: dx is set, dots = x . dout
// additive_pool_shares(dots, weights, sums, steps)                            samples of 256: dots become gradients of scores
// additive_pool_units(u, dots, weight, partial, units, rows)                  (ceil(units / 64), chunks) of 256: u becomes its gradient
#include "columns.cuh"
#include "step.cuh"

KERNEL additive_pool_scores(ACT *u, const ACT *weight, const float *bias, float *weights, u32 units, const u32 *rows) {
    const u32 lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= *rows) return;
    ACT *const mine = u + (u64)row * units;
    float sum = 0.0f;
    for (u32 at = lane; at < units; at += 32) {
        narrow(tanhf(wide(mine[at])), mine[at]);
        sum += wide(mine[at]) * wide(weight[at]);
    }
    sum = warp_sum(sum);
    if (lane == 0) weights[row] = sum + *bias;
}

KERNEL additive_pool_softmax(float *weights, u32 steps) {
    __shared__ float mosts[8];
    float *const mine = weights + (u64)blockIdx.x * steps;
    float most = -infinity();
    for (u32 at = threadIdx.x; at < steps; at += blockDim.x) most = fmaxf(most, mine[at]);
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) mosts[threadIdx.x / 32] = most;
    __syncthreads();
    for (u32 w = 0; w < 8; w++) most = fmaxf(most, mosts[w]);
    float sum = 0.0f;
    for (u32 at = threadIdx.x; at < steps; at += blockDim.x) sum += expf(mine[at] - most);
    sum = block_sum(sum);
    for (u32 at = threadIdx.x; at < steps; at += blockDim.x) mine[at] = expf(mine[at] - most) / sum;
}

KERNEL additive_pool_sum(const ACT *x, const float *weights, ACT *out, u32 steps, u32 width) {
    __shared__ float sums[8][32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.y * 32 + lane;
    const ACT *const sample = x + (u64)blockIdx.x * steps * width;
    float sum = 0.0f;
    if (col < width) {
#pragma unroll 4
        for (u32 step = warp; step < steps; step += 8) {
            sum += weights[(u64)blockIdx.x * steps + step] * wide(sample[(u64)step * width + col]);
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= width) return;
    sum = 0.0f;
#pragma unroll
    for (u32 w = 0; w < 8; w++) sum += sums[w][lane];
    narrow(sum, out[(u64)blockIdx.x * width + col]);
}

KERNEL additive_pool_dots(const ACT *dout, const ACT *x, const float *weights, ACT *dx, float *dots, u32 steps, u32 width, const u32 *rows) {
    const u32 lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= *rows) return;
    const ACT *const given = dout + (u64)(row / steps) * width;
    const float weight = weights[row];
    float sum = 0.0f;
    for (u32 at = lane; at < width; at += 32) {
        const float g = wide(given[at]);
        sum += wide(x[(u64)row * width + at]) * g;
        narrow(weight * g, dx[(u64)row * width + at]);
    }
    sum = warp_sum(sum);
    if (lane == 0) dots[row] = sum;
}

KERNEL additive_pool_shares(float *dots, const float *weights, float *sums, u32 steps) {
    const u64 first = (u64)blockIdx.x * steps;
    // Gradients of scores add up to nothing, and what follows takes sums of them: so their mean is taken in doubles, over weights
    // whose own sum is one but for rounding.
    double mean = 0.0, whole = 0.0;
    for (u32 at = threadIdx.x; at < steps; at += blockDim.x) {
        mean += (double)weights[first + at] * (double)dots[first + at];
        whole += (double)weights[first + at];
    }
    whole = block_sum(whole);
    mean = block_sum(mean) / whole;
    float all = 0.0f;
    for (u32 at = threadIdx.x; at < steps; at += blockDim.x) {
        const float score = (float)((double)weights[first + at] * ((double)dots[first + at] - mean));
        dots[first + at] = score;
        all += score;
    }
    all = block_sum(all);
    if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

KERNEL additive_pool_units(ACT *u, const float *dots, const ACT *weight, float *partial, u32 units, const u32 *rows) {
    column_partial(whole(u) && whole(weight) && units % VEC == 0, units, *rows, partial, [&](auto v, u32 row, u32 col, auto &out) {
        constexpr int V = decltype(v)::value;
        const float score = dots[row];
        float bent[V], w[V], d[V];
        load<V>(u + (u64)row * units + col, bent);
        load<V>(weight + col, w);
#pragma unroll
        for (int i = 0; i < V; i++) {
            out[i] = score * bent[i];
            d[i] = score * w[i] * (1.0f - bent[i] * bent[i]);
        }
        store<V>(u + (u64)row * units + col, d);
    });
}
