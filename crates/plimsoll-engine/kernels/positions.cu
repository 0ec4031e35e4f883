// Learned positions, added to the steps of each sample; and their gradient.
//
// positions_forward(x, table, out, steps, width, rows)                             any grid of 256
// positions_backward(dy, grad, steps, width, elements, write, samples, step)       any grid of 256
#include "step.cuh"

KERNEL positions_forward(const ACT *x, const float *table, ACT *out, u32 steps, u32 width, const u32 *rows) {
    each_piece(width % VEC == 0 && whole(x) && whole(table) && whole(out), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V], more[V];
        load<V>(x + (u64)row * width + col, values);
        load<V>(table + (u64)(row % steps) * width + col, more);
#pragma unroll
        for (int i = 0; i < V; i++) values[i] += more[i];
        store<V>(out + (u64)row * width + col, values);
    });
}

/// Positions behind the last step get nothing.
KERNEL positions_backward(const ACT *dy, GRD *grad, u32 steps, u32 width, u32 elements, u32 write, const u32 *samples, const Step *step) {
    const bool add = adds(write, step);
    const u32 there = steps * width, count = *samples;
    for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < elements; at += gridDim.x * blockDim.x) {
        float sum = add ? wide(grad[at]) : 0.0f;
        if (at < there) {
#pragma unroll 4
            for (u32 sample = 0; sample < count; sample++) sum += wide(dy[(u64)sample * there + at]);
        }
        narrow(sum, grad[at]);
    }
}
