// What is between the products of attention over samples of equal length, where those are the matrix library's: some samples of one head at
// a time, whose scores [samples, max_queries, max_keys] are written out. Without bias, mask or window.
//
// attention_scores_forward(Attention, step, scores, first, samples, head)           ceil(samples * max_queries / 8) of 256
// attention_scores_backward(Attention, step, scores, slopes, first, samples, head)  ceil(samples * max_queries / 8) of 256
//
// Forward, scores become dropped probabilities, and `lse` is written. Back, they become them again, and `slopes`, dout v^T at first, the
// gradients of the scores; needs `lse` and `dots`. A warp has a row.
#include "attention.cuh"

/// Columns that a lane has of every 128: 16 apart, so that one draw is for all of them.
#define COLS 4u

/// Calls `f(column, factor)` for the columns of this lane.
template <class F>
HERE void each_column(const Dropped &dropped, u32 query, u32 keys, F f) {
    const u32 lane = threadIdx.x % 32;
    for (u32 col = lane / 16 * 64 + lane % 16; col < keys; col += 128) {
        Words words;
        if (dropped.threshold) {
            const u64 counter = ((dropped.first + query) * ((dropped.width + 63) / 64) + col / 64) * 16;
            const u32 above = dropped.place ^ (u32)(counter >> 32) << 20;
            words = philox(dropped.seed, (u32)counter + col % 16, dropped.sample, above, dropped.update);
        }
#pragma unroll
        for (u32 w = 0; w < COLS; w++) {
            if (col + 16 * w >= keys) continue;
            f(col + 16 * w, !dropped.threshold ? 1.0f : words.at[w] < dropped.threshold ? 0.0f : dropped.scale);
        }
    }
}

KERNEL attention_scores_forward(Attention a, const Step *step, float *scores, u32 first, u32 samples, u32 head) {
    const u32 row = blockIdx.x * 8 + threadIdx.x / 32, keys = a.max_keys, lane = threadIdx.x % 32;
    if (row >= samples * a.max_queries) return;
    const u32 document = first + row / a.max_queries, query = row % a.max_queries;
    float *const mine = scores + (u64)row * keys;
    float most = -infinity(), sum = 0.0f;
    for (u32 at = lane; at < keys; at += 32) most = fmaxf(most, mine[at]);
    most = warp_max(most);
    for (u32 at = lane; at < keys; at += 32) sum += expf(mine[at] - most);
    sum = warp_sum(sum);
    const float lse = most + logf(sum);
    if (lane == 0) a.lse[((u64)document * a.max_queries + query) * a.heads + head] = lse;
    // All lanes have read the row before its numbers are changed.
    __syncwarp();
    const Dropped dropped(a, step, document, head);
    each_column(dropped, query, keys, [&](u32 at, float factor) { mine[at] = expf(mine[at] - lse) * factor; });
}

KERNEL attention_scores_backward(Attention a, const Step *step, float *scores, float *slopes, u32 first, u32 samples, u32 head) {
    const u32 row = blockIdx.x * 8 + threadIdx.x / 32, keys = a.max_keys;
    if (row >= samples * a.max_queries) return;
    const u32 document = first + row / a.max_queries, query = row % a.max_queries;
    const u64 at_head = ((u64)document * a.max_queries + query) * a.heads + head;
    const float lse = a.lse[at_head], dot = a.dots[at_head];
    float *const mine = scores + (u64)row * keys, *const slope = slopes + (u64)row * keys;
    const Dropped dropped(a, step, document, head);
    each_column(dropped, query, keys, [&](u32 at, float factor) {
        const float p = expf(mine[at] - lse);
        mine[at] = p * factor;
        slope[at] = p * (slope[at] * factor - dot);
    });
}
