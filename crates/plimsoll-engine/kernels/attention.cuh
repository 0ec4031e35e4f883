// What all attention kernels share: their arguments, which rows a block works on, what a query sees, what is dropped.
//
// Documents lie behind each other without padding. A block takes a tile of T rows of one document; because documents end anywhere,
// document i has its tiles from slot `start / T + i` on. Slots are as many as `max_rows / T + max_documents`, and no map is needed.
#pragma once
#include "philox.cuh"
#include "reduce.cuh"

struct Attention {
    const ACT *q, *k, *v; // [rows, stride], head h from column h * d on
    ACT *out;             // [query rows, heads * d]
    float *lse;           // [query rows, heads]
    const ACT *dout;      // as out
    ACT *dq, *dk, *dv;
    const float *bias;    // [heads, max_queries + max_keys - 1], by key - query + max_queries - 1; or null
    float *dbias_partial; // [slots, heads, max_keys + tile]; null: the bias has no gradient
    float *dbias;         // as bias
    float *dots;          // [query rows, heads]: scratch of the backward pass
    const u32 *q_starts;  // first query row of each document, and the end
    const u32 *k_starts;  // first key row of each document, and the end
    const u32 *documents; // how many
    const u32 *sample;    // sample of each document in the effective batch, for dropout
    const u32 *offset;    // first row of each document in its sample, for dropout
    u32 q_stride, k_stride, v_stride, dq_stride, dk_stride, dv_stride;
    u32 heads, kv_heads, d;
    float scale;
    u32 causal, window; // window 0: none
    u32 max_queries, max_keys;
    u32 place, threshold; // threshold 0: no dropout
    float drop_scale;
    u32 tile; // rows of a tile of the kernel that writes dbias_partial
};
static_assert(sizeof(Attention) == 216, "the host has the same");

/// A tile of rows of one document.
struct Tile {
    u32 document; // 0xFFFFFFFF: none
    u32 first;    // first row of the tile in its document
};

/// The tile of a slot.
HERE Tile tile_of(const u32 *starts, u32 documents, u32 slot, u32 tile) {
    const u32 zero = starts[0];
    u32 low = 0, high = documents;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if ((starts[middle] - zero) / tile + middle <= slot) low = middle;
        else high = middle;
    }
    if (documents == 0) return Tile{0xFFFFFFFFu, 0};
    const u32 first = (slot - ((starts[low] - zero) / tile + low)) * tile;
    return first < starts[low + 1] - starts[low] ? Tile{low, first} : Tile{0xFFFFFFFFu, 0};
}

/// One document on both sides: first rows and lengths.
struct Pair {
    u32 q0, queries, k0, keys;
};

HERE Pair pair_of(const Attention &a, u32 document) {
    return Pair{a.q_starts[document] - a.q_starts[0], a.q_starts[document + 1] - a.q_starts[document],
                a.k_starts[document] - a.k_starts[0], a.k_starts[document + 1] - a.k_starts[document]};
}

/// First key that a query sees, counted in its document.
HERE u32 first_seen(const Attention &a, u32 query) {
    return a.causal && a.window && query + 1 > a.window ? query + 1 - a.window : 0;
}

/// One behind the last key that a query sees.
HERE u32 end_seen(const Attention &a, u32 query, u32 keys) { return a.causal ? min(keys, query + 1) : keys; }

HERE bool sees(const Attention &a, u32 query, u32 key, u32 keys) {
    return key >= first_seen(a, query) && key < end_seen(a, query, keys);
}

/// One behind the last query that sees a key.
HERE u32 end_seeing(const Attention &a, u32 key, u32 queries) {
    return a.causal && a.window ? min(queries, key + a.window) : queries;
}

/// The dropout of one head of one document.
struct Dropped {
    u64 seed, first;
    u32 update, sample, place, threshold, width;
    float scale;

    __device__ Dropped(const Attention &a, const Step *step, u32 document, u32 head) {
        threshold = a.threshold;
        if (threshold == 0) return;
        seed = step->seed;
        update = (u32)step->update;
        sample = a.sample[document];
        first = (u64)head * a.max_queries + a.offset[document];
        place = a.place;
        width = a.max_keys;
        scale = a.drop_scale;
    }

    /// The factor of a probability.
    __device__ float factor(u32 query, u32 key) const {
        if (threshold == 0) return 1.0f;
        return drop_word(seed, update, sample, place, first + query, width, key) < threshold ? 0.0f : scale;
    }
};
