// `grad (+)= sum over rows` of strided columns, and a bias added to rows.
//
// column_sum_partial(dy, stride, partial, width, rows)              (ceil(width / 64), chunks) of 256
// sum_partials(partial, chunks, width, grad, write, step)           ceil(width / 256) of 256
// bias_add(bias, out, stride, width, rows)                          any grid of 256
#include "columns.cuh"
#include "step.cuh"

KERNEL column_sum_partial(const ACT *dy, u32 stride, float *partial, u32 width, const u32 *rows) {
    column_partial(whole(dy) && stride % 2 == 0, width, *rows, partial, [&](auto v, u32 row, u32 col, auto &out) {
        load<decltype(v)::value>(dy + (u64)row * stride + col, out);
    });
}

KERNEL sum_partials(const float *partial, u32 chunks, u32 width, GRD *grad, u32 write, const Step *step) {
    const u32 col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= width) return;
    float sum = adds(write, step) ? wide(grad[col]) : 0.0f;
    for (u32 chunk = 0; chunk < chunks; chunk++) sum += partial[(u64)chunk * width + col];
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
