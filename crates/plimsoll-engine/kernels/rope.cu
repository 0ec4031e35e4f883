// Turns each head's columns by its row's angles, in place: column i with column `width / 2 + i`.
//
// rope_turn(at, table, x, stride, heads, width, back, rows)         any grid of 256
#include "number.cuh"

KERNEL rope_turn(const u32 *at, const float *table, ACT *x, u32 stride, u32 heads, u32 width, u32 back, const u32 *rows) {
    const u32 half = width / 2;
    const float sign = back ? -1.0f : 1.0f;
    each_piece(half % VEC == 0 && stride % VEC == 0 && whole(x) && whole(table), *rows, heads * half, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        const u32 head = col / half;
        const u32 pair = col % half;
        const float *angles = table + (u64)at[row] * width + pair;
        ACT *here = x + (u64)row * stride + head * width + pair;
        float low[V], high[V], cosine[V], sine[V];
        load<V>(here, low);
        load<V>(here + half, high);
        load<V>(angles, cosine);
        load<V>(angles + half, sine);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float a = low[i], b = high[i], s = sine[i] * sign;
            low[i] = a * cosine[i] - b * s;
            high[i] = b * cosine[i] + a * s;
        }
        store<V>(here, low);
        store<V>(here + half, high);
    });
}
