// Turns each head's columns by its row's angles, in place: column i with column `width / 2 + i`.
//
// rope_turn(at, table, x, stride, heads, width, back, rows)                    any grid of 256
// rope_turn_biased(at, table, x, bias, stride, heads, width, more, rows)       any grid of 256; adds the bias first, to `more` columns
//                                                                              behind the heads too; the bits of both one by one
#include "number.cuh"

template <int V>
HERE void turn(const float *angles, u32 half, float sign, float (&low)[V], float (&high)[V]) {
    float cosine[V], sine[V];
    load<V>(angles, cosine);
    load<V>(angles + half, sine);
#pragma unroll
    for (int i = 0; i < V; i++) {
        const float a = low[i], b = high[i], s = sine[i] * sign;
        low[i] = a * cosine[i] - b * s;
        high[i] = b * cosine[i] + a * s;
    }
}

KERNEL rope_turn(const u32 *at, const float *table, ACT *x, u32 stride, u32 heads, u32 width, u32 back, const u32 *rows) {
    const u32 half = width / 2;
    const float sign = back ? -1.0f : 1.0f;
    each_piece(half % VEC == 0 && stride % VEC == 0 && whole(x) && whole(table), *rows, heads * half, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        const u32 head = col / half;
        const u32 pair = col % half;
        ACT *here = x + (u64)row * stride + head * width + pair;
        float low[V], high[V];
        load<V>(here, low);
        load<V>(here + half, high);
        turn<V>(table + (u64)at[row] * width + pair, half, sign, low, high);
        store<V>(here, low);
        store<V>(here + half, high);
    });
}

/// What is there and a bias, as it would be stored.
template <int V>
HERE void load_biased(const ACT *from, const WGT *bias, float (&out)[V]) {
    float added[V];
    load<V>(from, out);
    load<V>(bias, added);
#pragma unroll
    for (int i = 0; i < V; i++) out[i] = stored<ACT>(out[i] + added[i]);
}

KERNEL rope_turn_biased(const u32 *at, const float *table, ACT *x, const WGT *bias, u32 stride, u32 heads, u32 width, u32 more,
                        const u32 *rows) {
    const u32 half = width / 2, turned = heads * half;
    const bool pieces = half % VEC == 0 && more % VEC == 0 && stride % VEC == 0 && whole(x) && whole(table) && whole(bias);
    each_piece(pieces, *rows, turned + more, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float low[V], high[V];
        if (col >= turned) {
            const u32 behind = turned + col;
            ACT *here = x + (u64)row * stride + behind;
            load_biased<V>(here, bias + behind, low);
            store<V>(here, low);
            return;
        }
        const u32 pair = col % half, first = col / half * width + pair;
        ACT *here = x + (u64)row * stride + first;
        load_biased<V>(here, bias + first, low);
        load_biased<V>(here + half, bias + first + half, high);
        turn<V>(table + (u64)at[row] * width + pair, half, 1.0f, low, high);
        store<V>(here, low);
        store<V>(here + half, high);
    });
}
