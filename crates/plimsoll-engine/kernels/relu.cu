// `h = drop(relu(h))`, in place, and its gradient: what is left of `h` says where it passed.
//
// relu_forward(h, width, rows, drop, step)              any grid of 256
// relu_backward(dh, h, width, scale, rows)              any grid of 256; scale is that of the dropout, or 1
#include "philox.cuh"

KERNEL relu_forward(ACT *h, u32 width, const u32 *rows, Drop place, const Step *step) {
    each_piece(width % VEC == 0 && whole(h), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V];
        load<V>(h + (u64)row * width + col, values);
        // Not `fmaxf`: that would turn NaN into 0, and a broken weight would go unseen.
#pragma unroll
        for (int i = 0; i < V; i++) values[i] = values[i] <= 0.0f ? 0.0f : values[i];
        drop<V>(place, step, row, width, col, values);
        store<V>(h + (u64)row * width + col, values);
    });
}

KERNEL relu_backward(ACT *dh, const ACT *h, u32 width, float scale, const u32 *rows) {
    each_piece(width % VEC == 0 && whole(h) && whole(dh), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float d[V], values[V];
        load<V>(dh + (u64)row * width + col, d);
        load<V>(h + (u64)row * width + col, values);
#pragma unroll
        for (int i = 0; i < V; i++) d[i] = values[i] > 0.0f ? d[i] * scale : 0.0f;
        store<V>(dh + (u64)row * width + col, d);
    });
}
