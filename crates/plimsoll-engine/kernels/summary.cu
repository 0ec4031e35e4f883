// The last step of each sample, with the mean of all steps added to it where that is asked for; and its gradient.
//
// summary_forward(x, out, steps, width, mean)             (samples, ceil(width / 32)) of 256
// summary_backward(dout, dx, steps, width, mean, rows)    any grid of 256
#include "step.cuh"

KERNEL summary_forward(const ACT *x, ACT *out, u32 steps, u32 width, u32 mean) {
    __shared__ float sums[8][32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.y * 32 + lane;
    const ACT *const sample = x + (u64)blockIdx.x * steps * width;
    float sum = 0.0f;
    if (mean && col < width) {
#pragma unroll 4
        for (u32 step = warp; step < steps; step += 8) sum += wide(sample[(u64)step * width + col]);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= width) return;
    sum = 0.0f;
#pragma unroll
    for (u32 w = 0; w < 8; w++) sum += sums[w][lane];
    narrow(sum / (float)steps + wide(sample[(u64)(steps - 1) * width + col]), out[(u64)blockIdx.x * width + col]);
}

KERNEL summary_backward(const ACT *dout, ACT *dx, u32 steps, u32 width, u32 mean, const u32 *rows) {
    const float share = mean ? 1.0f / (float)steps : 0.0f;
    each_piece(width % VEC == 0 && whole(dout) && whole(dx), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        const u32 sample = row / steps;
        const float factor = share + (row - sample * steps + 1 == steps ? 1.0f : 0.0f);
        float values[V];
        load<V>(dout + (u64)sample * width + col, values);
#pragma unroll
        for (int i = 0; i < V; i++) values[i] *= factor;
        store<V>(dx + (u64)row * width + col, values);
    });
}
