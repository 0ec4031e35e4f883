// One decoding step: keys and values go behind the earlier ones, and one row per hypothesis attends to its prompt (or the encoder's
// rows), then to what it made since.
//
// cache_append(kv, kv_stride, cache, cache_stride, width, max_len, position, rows)        any grid of 256
// attend_step(a)                                                                          (max_rows, heads) of 128; smem 4 * max_keys
//
// Hypotheses that beam search reorders do not move their cache: `origin[row, position]` says which row of it holds a position.
#include "reduce.cuh"

struct Cached {
    const ACT *q;         // [rows, q_stride], head h from column h * d on
    const ACT *prompt;    // [prompt rows, prompt_stride]: keys, kv_heads * d further values; or null
    const u32 *starts;    // first row of each prompt, and the end
    const ACT *cache;     // [rows, max_len, keys and values]; or null
    const u32 *origin;    // [rows, max_len]
    const u32 *position;  // which new token this step makes, from 0
    const float *bias;    // [heads, max_queries + max_keys - 1], by distance; or null
    ACT *out;             // [rows, heads * d]
    const u32 *rows;
    u32 q_stride, prompt_stride, beams, max_len;
    u32 heads, kv_heads, d;
    float scale;
    u32 causal, window; // window 0: none
    u32 max_queries, max_keys;
};
static_assert(sizeof(Cached) == 120, "the host has the same");

extern __shared__ float shared[];

KERNEL cache_append(const ACT *kv, u32 kv_stride, ACT *cache, u32 cache_stride, u32 width, u32 max_len, const u32 *position,
                    const u32 *rows) {
    const u32 now = *position;
    each_piece(width % VEC == 0 && kv_stride % VEC == 0 && cache_stride % VEC == 0 && whole(kv) && whole(cache), *rows, width,
               [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V];
        load<V>(kv + (u64)row * kv_stride + col, values);
        store<V>(cache + ((u64)row * max_len + now) * cache_stride + col, values);
    });
}

KERNEL __launch_bounds__(128) attend_step(Cached a) {
    const u32 row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = a.d;
    if (row >= *a.rows) return;
    const u32 of = head / (a.heads / a.kv_heads), behind = a.kv_heads * d;
    const u32 first = a.prompt ? a.starts[row / a.beams] - a.starts[0] : 0;
    const u32 prompted = a.prompt ? a.starts[row / a.beams + 1] - a.starts[row / a.beams] : 0;
    const u32 made = a.cache ? *a.position + 1 : 0, all = prompted + made, query = all > 0 ? all - 1 : 0;
    const u32 skipped = a.cache && a.causal && a.window && query + 1 > a.window ? query + 1 - a.window : 0;
    auto key_of = [&](u32 at) -> const ACT * {
        if (at < prompted) return a.prompt + (u64)(first + at) * a.prompt_stride + of * d;
        const u32 made_at = at - prompted;
        return a.cache + ((u64)a.origin[row * a.max_len + made_at] * a.max_len + made_at) * 2 * behind + of * d;
    };
    const ACT *q = a.q + (u64)row * a.q_stride + head * d;
    float most = -infinity();
    for (u32 at = skipped + warp; at < all; at += 4) {
        const ACT *key = key_of(at);
        float sum = 0.0f;
        for (u32 col = lane; col < d; col += 32) sum = fmaf(wide(q[col]), wide(key[col]), sum);
        sum = warp_sum(sum) * a.scale;
        if (a.bias) sum += a.bias[(u64)head * (a.max_queries + a.max_keys - 1) + a.max_queries - 1 - query + at];
        if (lane == 0) shared[at - skipped] = sum;
        most = fmaxf(most, sum);
    }
    __shared__ float peaks[4];
    if (lane == 0) peaks[warp] = most;
    __syncthreads();
    most = fmaxf(fmaxf(peaks[0], peaks[1]), fmaxf(peaks[2], peaks[3]));
    float sum = 0.0f;
    for (u32 at = threadIdx.x; at < all - skipped; at += blockDim.x) {
        const float p = expf(shared[at] - most);
        shared[at] = p;
        sum += p;
    }
    sum = block_sum(sum);
    __syncthreads();
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (u32 col = threadIdx.x; col < d; col += blockDim.x) {
        float out = 0.0f;
        for (u32 at = skipped; at < all; at++) out = fmaf(shared[at - skipped], wide(key_of(at)[behind + col]), out);
        narrow(out * inverse, a.out[(u64)row * a.heads * d + head * d + col]);
    }
}
