// `out = drop(gelu(a) * b)` with a and b side by side, and its gradient.
//
// gated_gelu_forward(ab, out, width, rows, drop, step)              any grid of 256
// gated_gelu_backward(dh, ab, dab, width, rows, drop, step)         any grid of 256; dab may be ab
#include "curve.cuh"
#include "philox.cuh"

KERNEL gated_gelu_forward(const ACT *ab, ACT *out, u32 width, const u32 *rows, Drop place, const Step *step) {
    each_piece(width % VEC == 0 && whole(ab) && whole(out), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float a[V], b[V];
        load<V>(ab + (u64)row * 2 * width + col, a);
        load<V>(ab + (u64)row * 2 * width + width + col, b);
#pragma unroll
        for (int i = 0; i < V; i++) a[i] = gelu(a[i]) * b[i];
        drop<V>(place, step, row, width, col, a);
        store<V>(out + (u64)row * width + col, a);
    });
}

KERNEL gated_gelu_backward(const ACT *dh, const ACT *ab, ACT *dab, u32 width, const u32 *rows, Drop place, const Step *step) {
    each_piece(width % VEC == 0 && whole(dh) && whole(ab) && whole(dab), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float d[V], a[V], b[V];
        load<V>(dh + (u64)row * width + col, d);
        load<V>(ab + (u64)row * 2 * width + col, a);
        load<V>(ab + (u64)row * 2 * width + width + col, b);
        drop<V>(place, step, row, width, col, d);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float slope;
            const float value = gelu_with_slope(a[i], slope);
            a[i] = d[i] * b[i] * slope;
            b[i] = d[i] * value;
        }
        store<V>(dab + (u64)row * 2 * width + col, a);
        store<V>(dab + (u64)row * 2 * width + width + col, b);
    });
}
