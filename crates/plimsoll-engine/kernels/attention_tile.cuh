// What attention on tensor cores does with a tile of 64 x 64 scores, as `mma.cuh` leaves them: what is seen of it, a bias, dropout.
#pragma once
#include "attention.cuh"
#include "mma.cuh"

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

/// Sum or maximum over the four lanes that share a row.
HERE float quad_sum(float x) {
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}
HERE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}

/// The slot of a block. Causal, late queries see many keys and late keys are seen by few: the blocks with most work, of all documents,
/// begin first, so that none is waited for. They are so many more that each slot is some block's.
HERE u32 slot_of(const Attention &a, u32 documents, bool queries) {
    if (!a.causal || documents == 0) return blockIdx.y;
    const u32 each = gridDim.y / documents, nth = blockIdx.y / documents, of = blockIdx.y % documents;
    return nth >= each ? 0xFFFFFFFFu : of * each + (queries ? each - 1 - nth : nth);
}

/// Which tiles of 64 of the other side some of 64 rows see, and which all of them.
struct Sight {
    u32 begin, end, open, shut;

    __device__ bool none(u32 first) const { return first + 64 <= begin || first >= end; }
    __device__ bool all(u32 first) const { return first >= open && first + 64 <= shut; }
};

/// Of 64 queries, what keys they see.
HERE Sight keys_seen(const Attention &a, u32 query0, const Pair &pair) {
    const u32 last = min(query0 + 63, pair.queries - 1);
    if (query0 >= pair.queries) return Sight{0, 0, 0, 0};
    return Sight{first_seen(a, query0), end_seen(a, last, pair.keys), first_seen(a, query0 + 63),
                 query0 + 64 > pair.queries ? 0 : end_seen(a, query0, pair.keys)};
}

/// Of 64 keys, what queries see them.
HERE Sight queries_seeing(const Attention &a, u32 key0, const Pair &pair) {
    const u32 last = min(key0 + 63, pair.keys - 1);
    if (key0 >= pair.keys) return Sight{0, 0, 0, 0};
    return Sight{a.causal ? key0 : 0, end_seeing(a, last, pair.queries), a.causal ? key0 + 63 : 0,
                 key0 + 64 > pair.keys ? 0 : end_seeing(a, key0, pair.queries)};
}

/// What lies outside of `from .. end` in a lane's columns, counted from the tile's first on, becomes `with`: of row g (R 0) or g + 8.
template <int R>
HERE void hide(Sum (&s)[8], int from, int end, float with) {
    const int t = threadIdx.x % 4;
    from -= 2 * t, end -= 2 * t;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (n * 8 + i >= end) s[n][2 * R + i] = with;
    if (from > 0) {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (n * 8 + i < from) s[n][2 * R + i] = with;
    }
}

/// Scores of keys that a query does not see become `with`. Rows are queries.
HERE void hide_keys(const Attention &a, Sum (&s)[8], u32 query, u32 key0, const Pair &pair, float with) {
    const u32 end = query < pair.queries ? end_seen(a, query, pair.keys) : 0;
    const u32 end8 = query + 8 < pair.queries ? end_seen(a, query + 8, pair.keys) : 0;
    hide<0>(s, (int)first_seen(a, query) - (int)key0, (int)end - (int)key0, with);
    hide<1>(s, (int)first_seen(a, query + 8) - (int)key0, (int)end8 - (int)key0, with);
}

/// The same for queries that do not see a key. Rows are keys.
HERE void hide_queries(const Attention &a, Sum (&s)[8], u32 key, u32 query0, const Pair &pair, float with) {
    const u32 end = key < pair.keys ? end_seeing(a, key, pair.queries) : 0;
    const u32 end8 = key + 8 < pair.keys ? end_seeing(a, key + 8, pair.queries) : 0;
    hide<0>(s, a.causal ? (int)key - (int)query0 : 0, (int)end - (int)query0, with);
    hide<1>(s, a.causal ? (int)key + 8 - (int)query0 : 0, (int)end8 - (int)query0, with);
}

/// A stage that the compiler knows: addresses in shared memory then are numbers.
template <u32 N>
struct Stage {
    __device__ operator u32() const { return N; }
};
template <u32 N>
HERE Stage<1 - N> other(Stage<N>) { return {}; }
HERE u32 other(u32 stage) { return 1 - stage; }

/// Calls `f(stage, nth)` for all tiles. WRITTEN_OUT: the tiles of two stages are written out one behind the other, which takes registers.
template <bool WRITTEN_OUT, class F>
HERE void each_tile(u32 count, F f) {
    if constexpr (STAGES == 1) {
        for (u32 nth = 0; nth < count; nth++) f(Stage<0>{}, nth);
    } else if constexpr (WRITTEN_OUT) {
        for (u32 nth = 0; nth < count; nth += 2) {
            f(Stage<0>{}, nth);
            if (nth + 1 < count) f(Stage<1>{}, nth + 1);
        }
    } else {
#pragma unroll 1
        for (u32 nth = 0; nth < count; nth++) f(nth % 2, nth);
    }
}

/// Begins to copy COUNT values of a bias, from that of `key - query == first` on; zeros where it has none.
template <int COUNT, int THREADS>
HERE void fetch_bias(const Attention &a, u32 head, int first, float *to) {
    const int span = (int)(a.max_queries + a.max_keys - 1), from = first + (int)a.max_queries - 1;
    const float *bias = a.bias + (u64)head * span;
#pragma unroll
    for (int i = threadIdx.x; i < COUNT; i += THREADS) {
        const bool there = from + i >= 0 && from + i < span;
        copy_word(to + i, bias + (there ? from + i : 0), there);
    }
}

/// `s = scale * s + bias`, in powers of two. The value of row 0 and column 0 lies at `zero`; UP: rows are keys.
template <bool UP>
HERE void score(const Attention &a, Sum (&s)[8], const float *zero) {
    const int t = threadIdx.x % 4;
    const float c = a.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] *= c;
    if (!a.bias) return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = i / 2 * 8, col = n * 8 + 2 * t + i % 2;
            s[n][i] = fmaf(zero[UP ? row - col : col - row], LOG2E, s[n][i]);
        }
}

/// Calls `f(n, i, factor)` for each of a row pair's dropout factors; keys begin with a multiple of 64, so that four tiles of eight keys
/// share a counter.
template <class F>
HERE void each_factor(const Dropped &dropped, u32 query, u32 key0, F f) {
    const u32 t = threadIdx.x % 4;
    const u64 blocks = (dropped.width + 63) / 64;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u64 counter = ((dropped.first + query + i / 2 * 8) * blocks + key0 / 64) * 16;
        const u32 above = dropped.place ^ (u32)(counter >> 32) << 20;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const Words words = philox(dropped.seed, (u32)counter + n * 8 + 2 * t + i % 2, dropped.sample, above, dropped.update);
#pragma unroll
            for (int w = 0; w < 4; w++) f(n + 2 * w, i, words.at[w] < dropped.threshold ? 0.0f : dropped.scale);
        }
    }
}

/// What is dropped of 64 queries and ROWS keys: a word for 16 keys and two queries, a bit each, the words of 16 keys side by side.
template <int ROWS, int THREADS>
HERE void draw(const Dropped &dropped, u32 query0, u32 key0, u32 *to) {
    const u64 blocks = (dropped.width + 63) / 64;
    const u32 lane = threadIdx.x % 32;
    // All at once would take too many registers.
#pragma unroll 2
    for (u32 at = threadIdx.x; at < 16 * ROWS; at += THREADS) {
        const u32 block = at / 1024, query = at % 1024 / 16;
        const u64 counter = ((dropped.first + query0 + query) * blocks + key0 / 64 + block) * 16;
        const Words words =
            philox(dropped.seed, (u32)counter + at % 16, dropped.sample, dropped.place ^ (u32)(counter >> 32) << 20, dropped.update);
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
            const u32 gone = __ballot_sync(FULL, words.at[w] < dropped.threshold);
            if (lane == w) to[(block * 4 + w) * 32 + query / 2] = gone;
        }
    }
}
