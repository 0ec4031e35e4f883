// RMS norm of each head's columns by itself, one weight for all heads. A warp takes one head of one row.
//
// head_norm_forward(x, x_stride, weight, rstd, out, out_stride, heads, width, eps, rows)       ceil(max_rows * heads / 8) of 256
// head_norm_backward(dy, dy_stride, x, x_stride, weight, rstd, dx, dx_stride, partial, heads, width, rows)
//     as many blocks of 256 as `partial` has rows; then `sum_partials`. `width` up to 256; `dx` may be `dy`.
#include "reduce.cuh"

KERNEL head_norm_forward(const ACT *x, u32 x_stride, const WGT *weight, float *rstd, ACT *out, u32 out_stride, u32 heads, u32 width,
                         float eps, const u32 *rows) {
    const u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const u64 all = (u64)*rows * heads;
    for (u64 at = (u64)blockIdx.x * warps + threadIdx.x / 32; at < all; at += (u64)gridDim.x * warps) {
        const u64 row = at / heads, head = at % heads;
        const ACT *from = x + row * x_stride + head * width;
        ACT *to = out + row * out_stride + head * width;
        float sum = 0.0f;
        for (u32 col = lane; col < width; col += 32) sum = fmaf(wide(from[col]), wide(from[col]), sum);
        const float inverse = 1.0f / sqrtf(warp_sum(sum) / (float)width + eps);
        if (lane == 0) rstd[at] = inverse;
        for (u32 col = lane; col < width; col += 32) narrow(wide(weight[col]) * (wide(from[col]) * inverse), to[col]);
    }
}

KERNEL __launch_bounds__(256) head_norm_backward(const ACT *dy, u32 dy_stride, const ACT *x, u32 x_stride, const WGT *weight,
                                                 const float *rstd, ACT *dx, u32 dx_stride, float *partial, u32 heads, u32 width,
                                                 const u32 *rows) {
    __shared__ float sums[8][256];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[8] = {};
    // Whole rows of a chunk, so that the order of the sums follows from the number of rows alone.
    const Chunk chunk = chunk_of(*rows, blockIdx.x, gridDim.x);
    const u64 end = (u64)chunk.end * heads;
    for (u64 at = (u64)chunk.first * heads + warp; at < end; at += 8) {
        const u64 row = at / heads, head = at % heads;
        const float inverse = rstd[at];
        float d[8], v[8], w[8], along = 0.0f;
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            const u32 col = j * 32 + lane;
            const bool there = col < width;
            d[j] = there ? wide(dy[row * dy_stride + head * width + col]) : 0.0f;
            v[j] = there ? wide(x[row * x_stride + head * width + col]) * inverse : 0.0f;
            w[j] = there ? wide(weight[col]) : 0.0f;
            along += d[j] * w[j] * v[j];
            sum[j] += d[j] * v[j];
        }
        const float mean = warp_sum(along) / (float)width;
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            const u32 col = j * 32 + lane;
            if (col < width) narrow(inverse * (d[j] * w[j] - v[j] * mean), dx[row * dx_stride + head * width + col]);
        }
    }
    if (!partial) return;
#pragma unroll
    for (u32 j = 0; j < 8; j++) sums[warp][j * 32 + lane] = sum[j];
    __syncthreads();
    if (threadIdx.x < width) {
        float all = 0.0f;
        for (u32 w = 0; w < 8; w++) all += sums[w][threadIdx.x];
        partial[(u64)blockIdx.x * width + threadIdx.x] = all;
    }
}
