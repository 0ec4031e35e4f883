// `y = x + drop(y)`, in place, and a dropout alone.
//
// residual_forward(x, y, width, rows, drop, step)            any grid of 256
// drop_forward(g, out, width, rows, drop, step)              any grid of 256; out may be g
#include "philox.cuh"

KERNEL residual_forward(const ACT *x, ACT *y, u32 width, const u32 *rows, Drop place, const Step *step) {
    each_piece(width % VEC == 0 && whole(x) && whole(y), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float a[V], b[V];
        load<V>(x + (u64)row * width + col, a);
        load<V>(y + (u64)row * width + col, b);
        drop<V>(place, step, row, width, col, b);
#pragma unroll
        for (int i = 0; i < V; i++) b[i] += a[i];
        store<V>(y + (u64)row * width + col, b);
    });
}

KERNEL drop_forward(const ACT *g, ACT *out, u32 width, const u32 *rows, Drop place, const Step *step) {
    each_piece(width % VEC == 0 && whole(g) && whole(out), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V];
        load<V>(g + (u64)row * width + col, values);
        drop<V>(place, step, row, width, col, values);
        store<V>(out + (u64)row * width + col, values);
    });
}
