// `out = drop(gelu(h))` in its exact form, and its gradient in place.
//
// gelu_erf_forward(h, out, width, rows, Drop, step)              any grid of 256
// gelu_erf_backward(dh, h, width, rows, Drop, step)              any grid of 256
#include "curve.cuh"
#include "philox.cuh"

KERNEL gelu_erf_forward(const ACT *h, ACT *out, u32 width, const u32 *rows, Drop place, const Step *step) {
    each_piece(width % VEC == 0 && whole(h) && whole(out), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V];
        load<V>(h + (u64)row * width + col, values);
#pragma unroll
        for (int i = 0; i < V; i++) values[i] = gelu_erf(values[i]);
        drop<V>(place, step, row, width, col, values);
        store<V>(out + (u64)row * width + col, values);
    });
}

KERNEL gelu_erf_backward(ACT *dh, const ACT *h, u32 width, const u32 *rows, Drop place, const Step *step) {
    each_piece(width % VEC == 0 && whole(h) && whole(dh), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float d[V], values[V];
        load<V>(dh + (u64)row * width + col, d);
        load<V>(h + (u64)row * width + col, values);
#pragma unroll
        for (int i = 0; i < V; i++) d[i] *= gelu_erf_slope(values[i]);
        drop<V>(place, step, row, width, col, d);
        store<V>(dh + (u64)row * width + col, d);
    });
}
