// `out = silu(a) * b` with a and b side by side, and its gradient.
//
// gated_silu_forward(ab, out, width, rows)              any grid of 256
// gated_silu_backward(dh, ab, width, rows)              any grid of 256; gradients in the inputs' place, the gate in dh's
#include "curve.cuh"

KERNEL gated_silu_forward(const ACT *ab, ACT *out, u32 width, const u32 *rows) {
    each_piece(width % VEC == 0 && whole(ab) && whole(out), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float a[V], b[V];
        load<V>(ab + (u64)row * 2 * width + col, a);
        load<V>(ab + (u64)row * 2 * width + width + col, b);
#pragma unroll
        for (int i = 0; i < V; i++) a[i] = silu(a[i]) * b[i];
        store<V>(out + (u64)row * width + col, a);
    });
}

KERNEL gated_silu_backward(ACT *dh, ACT *ab, u32 width, const u32 *rows) {
    each_piece(width % VEC == 0 && whole(dh) && whole(ab), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float d[V], a[V], b[V];
        load<V>(dh + (u64)row * width + col, d);
        load<V>(ab + (u64)row * 2 * width + col, a);
        load<V>(ab + (u64)row * 2 * width + width + col, b);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float slope;
            const float value = silu_with_slope(a[i], slope);
            const float gate = value * b[i];
            a[i] = d[i] * b[i] * slope;
            b[i] = d[i] * value;
            d[i] = gate;
        }
        store<V>(ab + (u64)row * 2 * width + col, a);
        store<V>(ab + (u64)row * 2 * width + width + col, b);
        store<V>(dh + (u64)row * width + col, d);
    });
}
