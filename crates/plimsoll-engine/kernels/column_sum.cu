// `grad (+)= sum over rows` of strided columns, and a bias added to rows.
//
// column_sum_partial(dy, stride, partial, width, rows)              (ceil(width / 64), chunks) of 256
// sum_partials(partial, chunks, width, grad, write, step)           ceil(width / 32) of 256
// bias_add(bias, out, stride, width, rows)                          any grid of 256
#include "columns.cuh"
#include "step.cuh"

KERNEL column_sum_partial(const ACT *dy, u32 stride, float *partial, u32 width, const u32 *rows) {
    column_partial(whole(dy) && stride % 2 == 0, width, *rows, partial, [&](auto v, u32 row, u32 col, auto &out) {
        load<decltype(v)::value>(dy + (u64)row * stride + col, out);
    });
}

KERNEL sum_partials(const float *partial, u32 chunks, u32 width, GRD *grad, u32 write, const Step *step) {
    __shared__ float sums[8][32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (col < width) {
#pragma unroll 8
        for (u32 chunk = warp; chunk < chunks; chunk += 8) sum += partial[(u64)chunk * width + col];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= width) return;
    sum = adds(write, step) ? wide(grad[col]) : 0.0f;
#pragma unroll
    for (u32 w = 0; w < 8; w++) sum += sums[w][lane];
    narrow(sum, grad[col]);
}

KERNEL bias_add(const WGT *bias, ACT *out, u32 stride, u32 width, const u32 *rows) {
    each_piece(width % VEC == 0 && stride % VEC == 0 && whole(bias) && whole(out), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V], b[V];
        load<V>(out + (u64)row * stride + col, values);
        load<V>(bias + col, b);
#pragma unroll
        for (int i = 0; i < V; i++) values[i] += b[i];
        store<V>(out + (u64)row * stride + col, values);
    });
}
