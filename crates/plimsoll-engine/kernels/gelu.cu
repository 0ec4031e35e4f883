// `out = gelu_new(h)`, and its gradient in place.
//
// gelu_forward(h, out, width, rows)              any grid of 256; out may be h
// gelu_backward(dh, h, width, rows)              any grid of 256
#include "curve.cuh"

KERNEL gelu_forward(const ACT *h, ACT *out, u32 width, const u32 *rows) {
    each_piece(width % VEC == 0 && whole(h) && whole(out), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V];
        load<V>(h + (u64)row * width + col, values);
#pragma unroll
        for (int i = 0; i < V; i++) values[i] = gelu(values[i]);
        store<V>(out + (u64)row * width + col, values);
    });
}

KERNEL gelu_backward(ACT *dh, const ACT *h, u32 width, const u32 *rows) {
    each_piece(width % VEC == 0 && whole(h) && whole(dh), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float d[V], values[V];
        load<V>(dh + (u64)row * width + col, d);
        load<V>(h + (u64)row * width + col, values);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float slope;
            gelu_with_slope(values[i], slope);
            d[i] *= slope;
        }
        store<V>(dh + (u64)row * width + col, d);
    });
}
