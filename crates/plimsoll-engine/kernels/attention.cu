// Attention: `out = drop(softmax(scale * q k^T + bias)) v` and its gradient, for every number type and head size. Of the softmax only
// the log-sum-exp of each row is kept; the scores that exist are one tile's.
//
// attention_forward_32, _16(a, step)          (slots(T) of queries, heads) of 256; smem 4 * (2 * T * (d + 1) + T * (T + 1) + 3 * T)
// attention_dots(a)                           ceil(max_query_rows * heads / 8) of 256; grid for any number of rows
// attention_backward_q_32, _16(a, step)       (slots(T) of queries, heads) of 256;
//                                             smem 4 * (4 * T * (d + 1) + 2 * T * (T + 1) + (dbias_partial ? max_keys + T : 0))
// attention_backward_kv_32, _16(a, step)      (slots(T) of keys, kv_heads) of 256; smem 4 * (4 * T * (d + 1) + 2 * T * (T + 1))
// attention_bias_sum(a)                       (ceil(span / 32), heads) of 256
//
// T is 32 up to head size 128, 16 up to 256. With P the probabilities and D = dout . out of each row: dV = drop(P)^T dout,
// dP = drop(dout V^T), dS = P (dP - D), dQ = scale dS K, dK = scale dS^T Q, and the bias gathers dS along its diagonals.
#include "attention.cuh"

extern __shared__ float shared[];

/// 16 x 16 threads; each has R = T / 16 rows of a tile and up to 16 / R columns of a head, 16 apart.
template <int T>
struct Own {
    static constexpr int R = T / 16, C = 16 / R;
};

/// `to[row][col] = from[row * stride + col]` for the rows of a tile that are there, else zero.
template <int T>
HERE void fetch(const ACT *from, u64 stride, u32 there, u32 d, float *to) {
    for (u32 at = threadIdx.x; at < T * d; at += 256) {
        const u32 row = at / d, col = at % d;
        to[row * (d + 1) + col] = row < there ? wide(from[row * stride + col]) : 0.0f;
    }
}

/// `sum over x of a[row][x] b[col][x]`.
template <int T>
HERE void products(const float *a, const float *b, u32 d, float (&out)[T / 16][T / 16]) {
    constexpr int R = T / 16;
    const u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++) out[i][j] = 0.0f;
    for (u32 x = 0; x < d; x++) {
        float left[R], right[R];
#pragma unroll
        for (int i = 0; i < R; i++) {
            left[i] = a[(ty + 16 * i) * (d + 1) + x];
            right[i] = b[(tx + 16 * i) * (d + 1) + x];
        }
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++) out[i][j] = fmaf(left[i], right[j], out[i][j]);
    }
}

/// `sum[row][col] += sum over j of weights[row][j] values[j][col]`, or of `weights[j][row]` where they are turned.
template <int T, bool TURNED>
HERE void add_weighted(const float *weights, const float *values, u32 d, float (&sum)[T / 16][16 / (T / 16)]) {
    constexpr int R = Own<T>::R, C = Own<T>::C;
    const u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (u32 j = 0; j < T; j++) {
        float w[R];
#pragma unroll
        for (int i = 0; i < R; i++) w[i] = TURNED ? weights[j * (T + 1) + ty + 16 * i] : weights[(ty + 16 * i) * (T + 1) + j];
#pragma unroll
        for (int c = 0; c < C; c++) {
            const u32 col = tx + 16 * c;
            if (col < d) {
                const float v = values[j * (d + 1) + col];
#pragma unroll
                for (int i = 0; i < R; i++) sum[i][c] = fmaf(w[i], v, sum[i][c]);
            }
        }
    }
}

/// Writes a tile's rows that are there.
template <int T>
HERE void leave(const float (&sum)[T / 16][16 / (T / 16)], float scale, u32 there, u32 d, ACT *to, u64 stride) {
    const u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < Own<T>::R; i++)
#pragma unroll
        for (int c = 0; c < Own<T>::C; c++) {
            const u32 row = ty + 16 * i, col = tx + 16 * c;
            if (row < there && col < d) narrow(sum[i][c] * scale, to[row * stride + col]);
        }
}

template <int T>
HERE void forward(const Attention &a, const Step *step) {
    constexpr int R = Own<T>::R, C = Own<T>::C;
    const u32 d = a.d, head = blockIdx.y, lane = threadIdx.x % 32, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float *const q = shared, *const kv = q + T * (d + 1), *const scores = kv + T * (d + 1), *const most = scores + T * (T + 1),
                *const sum = most + T, *const keep = sum + T;
    const Tile tile = tile_of(a.q_starts, *a.documents, blockIdx.x, T);
    if (tile.document == 0xFFFFFFFFu) return;
    const Pair pair = pair_of(a, tile.document);
    const Dropped dropped(a, step, tile.document, head);
    const u32 of = head / (a.heads / a.kv_heads), tall = min((u32)T, pair.queries - tile.first);
    const u64 row0 = pair.q0 + tile.first;
    fetch<T>(a.q + row0 * a.q_stride + head * d, a.q_stride, tall, d, q);
    if (threadIdx.x < T) {
        most[threadIdx.x] = -infinity();
        sum[threadIdx.x] = 0.0f;
    }
    float out[R][C] = {};
    const u32 begin = first_seen(a, tile.first) / T * T, end = end_seen(a, tile.first + tall - 1, pair.keys);
    for (u32 key0 = begin; key0 < end; key0 += T) {
        const u32 there = min((u32)T, pair.keys - key0);
        const u64 at = pair.k0 + key0;
        __syncthreads();
        fetch<T>(a.k + at * a.k_stride + of * d, a.k_stride, there, d, kv);
        __syncthreads();
        float s[R][R];
        products<T>(q, kv, d, s);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++) {
                const u32 row = ty + 16 * i, col = tx + 16 * j, query = tile.first + row, key = key0 + col;
                float score = -infinity();
                if (row < tall && sees(a, query, key, pair.keys)) {
                    score = s[i][j] * a.scale;
                    if (a.bias) score += a.bias[(u64)head * (a.max_queries + a.max_keys - 1) + key + a.max_queries - 1 - query];
                }
                scores[row * (T + 1) + col] = score;
            }
        __syncthreads();
        fetch<T>(a.v + at * a.v_stride + of * d, a.v_stride, there, d, kv);
        for (u32 row = threadIdx.x / 32; row < T; row += 8) {
            const float score = lane < T ? scores[row * (T + 1) + lane] : -infinity();
            const float high = fmaxf(most[row], warp_max(score));
            const float p = high == -infinity() ? 0.0f : expf(score - high);
            const float all = warp_sum(p);
            // All lanes have read what one writes.
            __syncwarp();
            if (lane < T) scores[row * (T + 1) + lane] = p == 0.0f ? 0.0f : p * dropped.factor(tile.first + row, key0 + lane);
            if (lane == 0) {
                const float share = high == -infinity() ? 1.0f : expf(most[row] - high);
                keep[row] = share;
                sum[row] = sum[row] * share + all;
                most[row] = high;
            }
            __syncwarp();
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int c = 0; c < C; c++) out[i][c] *= keep[ty + 16 * i];
        add_weighted<T, false>(scores, kv, d, out);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R; i++) {
        const float all = sum[ty + 16 * i], inverse = all == 0.0f ? 0.0f : 1.0f / all;
#pragma unroll
        for (int c = 0; c < C; c++) out[i][c] *= inverse;
    }
    leave<T>(out, 1.0f, tall, d, a.out + row0 * a.heads * d + head * d, (u64)a.heads * d);
    if (threadIdx.x < tall) {
        const float all = sum[threadIdx.x];
        a.lse[(row0 + threadIdx.x) * a.heads + head] = all == 0.0f ? -infinity() : most[threadIdx.x] + logf(all);
    }
}

/// Turns the scores and `dout v^T` of one element into its dropped probability and the gradient of its score.
HERE void slope(const Attention &a, const Dropped &dropped, u32 head, u32 query, u32 key, bool seen, float lse, float dot, float score,
                float dp, float &p, float &ds) {
    p = 0.0f;
    ds = 0.0f;
    if (!seen) return;
    score *= a.scale;
    if (a.bias) score += a.bias[(u64)head * (a.max_queries + a.max_keys - 1) + key + a.max_queries - 1 - query];
    const float probability = expf(score - lse), factor = dropped.factor(query, key);
    p = probability * factor;
    ds = probability * (dp * factor - dot);
}

template <int T>
HERE void backward_q(const Attention &a, const Step *step) {
    constexpr int R = Own<T>::R, C = Own<T>::C;
    const u32 d = a.d, head = blockIdx.y, tx = threadIdx.x % 16, ty = threadIdx.x / 16, inner = a.heads * d;
    float *const q = shared, *const dout = q + T * (d + 1), *const k = dout + T * (d + 1), *const v = k + T * (d + 1),
                *const ds = v + T * (d + 1), *const near = ds + 2 * T * (T + 1);
    const Tile tile = tile_of(a.q_starts, *a.documents, blockIdx.x, T);
    if (tile.document == 0xFFFFFFFFu) return;
    const Pair pair = pair_of(a, tile.document);
    const Dropped dropped(a, step, tile.document, head);
    const u32 of = head / (a.heads / a.kv_heads), tall = min((u32)T, pair.queries - tile.first);
    const u64 row0 = pair.q0 + tile.first;
    fetch<T>(a.q + row0 * a.q_stride + head * d, a.q_stride, tall, d, q);
    fetch<T>(a.dout + row0 * inner + head * d, inner, tall, d, dout);
    if (a.dbias_partial) {
        for (u32 at = threadIdx.x; at < a.max_keys + T; at += 256) near[at] = 0.0f;
    }
    float lse[R], dot[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        const u64 at = (row0 + ty + 16 * i) * a.heads + head;
        lse[i] = ty + 16 * i < tall ? a.lse[at] : 0.0f;
        dot[i] = ty + 16 * i < tall ? a.dots[at] : 0.0f;
    }
    float dq[R][C] = {};
    const u32 begin = first_seen(a, tile.first) / T * T, end = end_seen(a, tile.first + tall - 1, pair.keys);
    for (u32 key0 = begin; key0 < end; key0 += T) {
        const u32 there = min((u32)T, pair.keys - key0);
        const u64 at = pair.k0 + key0;
        __syncthreads();
        fetch<T>(a.k + at * a.k_stride + of * d, a.k_stride, there, d, k);
        fetch<T>(a.v + at * a.v_stride + of * d, a.v_stride, there, d, v);
        __syncthreads();
        float s[R][R], dp[R][R];
        products<T>(q, k, d, s);
        products<T>(dout, v, d, dp);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++) {
                const u32 row = ty + 16 * i, col = tx + 16 * j, query = tile.first + row, key = key0 + col;
                const bool seen = row < tall && sees(a, query, key, pair.keys);
                float p;
                slope(a, dropped, head, query, key, seen, lse[i], dot[i], s[i][j], dp[i][j], p, ds[row * (T + 1) + col]);
            }
        __syncthreads();
        add_weighted<T, false>(ds, k, d, dq);
        if (a.dbias_partial && threadIdx.x < 2 * T - 1) {
            // One thread a diagonal: column - row = diagonal - (T - 1).
            const u32 diagonal = threadIdx.x;
            float sum = 0.0f;
            for (u32 row = 0; row < T; row++) {
                const u32 col = row + diagonal - (T - 1);
                if (col < T) sum += ds[row * (T + 1) + col];
            }
            // A diagonal that reaches behind the last key has nothing on it there.
            if (key0 + diagonal < a.max_keys + T) near[key0 + diagonal] += sum;
        }
    }
    leave<T>(dq, a.scale, tall, d, a.dq + row0 * a.dq_stride + head * d, a.dq_stride);
    if (a.dbias_partial) {
        __syncthreads();
        float *to = a.dbias_partial + ((u64)blockIdx.x * a.heads + head) * (a.max_keys + T);
        for (u32 at = threadIdx.x; at < a.max_keys + T; at += 256) to[at] = near[at];
    }
}

template <int T>
HERE void backward_kv(const Attention &a, const Step *step) {
    constexpr int R = Own<T>::R, C = Own<T>::C;
    const u32 d = a.d, of = blockIdx.y, tx = threadIdx.x % 16, ty = threadIdx.x / 16, inner = a.heads * d;
    float *const q = shared, *const dout = q + T * (d + 1), *const k = dout + T * (d + 1), *const v = k + T * (d + 1),
                *const ds = v + T * (d + 1), *const ps = ds + T * (T + 1);
    const Tile tile = tile_of(a.k_starts, *a.documents, blockIdx.x, T);
    if (tile.document == 0xFFFFFFFFu) return;
    const Pair pair = pair_of(a, tile.document);
    const u32 group = a.heads / a.kv_heads, tall = min((u32)T, pair.keys - tile.first);
    const u64 row0 = pair.k0 + tile.first;
    fetch<T>(a.k + row0 * a.k_stride + of * d, a.k_stride, tall, d, k);
    fetch<T>(a.v + row0 * a.v_stride + of * d, a.v_stride, tall, d, v);
    float dk[R][C] = {}, dv[R][C] = {};
    const u32 begin = a.causal ? tile.first / T * T : 0, end = end_seeing(a, tile.first + tall - 1, pair.queries);
    for (u32 head = of * group; head < (of + 1) * group; head++) {
        const Dropped dropped(a, step, tile.document, head);
        for (u32 query0 = begin; query0 < end; query0 += T) {
            const u32 there = min((u32)T, pair.queries - query0);
            const u64 at = pair.q0 + query0;
            __syncthreads();
            fetch<T>(a.q + at * a.q_stride + head * d, a.q_stride, there, d, q);
            fetch<T>(a.dout + at * inner + head * d, inner, there, d, dout);
            __syncthreads();
            float s[R][R], dp[R][R];
            products<T>(q, k, d, s);
            products<T>(dout, v, d, dp);
#pragma unroll
            for (int i = 0; i < R; i++) {
                const u32 row = ty + 16 * i, query = query0 + row;
                const float lse = row < there ? a.lse[(at + row) * a.heads + head] : 0.0f;
                const float dot = row < there ? a.dots[(at + row) * a.heads + head] : 0.0f;
#pragma unroll
                for (int j = 0; j < R; j++) {
                    const u32 col = tx + 16 * j, key = tile.first + col;
                    const bool seen = row < there && sees(a, query, key, pair.keys);
                    slope(a, dropped, head, query, key, seen, lse, dot, s[i][j], dp[i][j], ps[row * (T + 1) + col],
                          ds[row * (T + 1) + col]);
                }
            }
            __syncthreads();
            add_weighted<T, true>(ps, dout, d, dv);
            add_weighted<T, true>(ds, q, d, dk);
        }
    }
    leave<T>(dk, a.scale, tall, d, a.dk + row0 * a.dk_stride + of * d, a.dk_stride);
    leave<T>(dv, 1.0f, tall, d, a.dv + row0 * a.dv_stride + of * d, a.dv_stride);
}

KERNEL __launch_bounds__(256) attention_forward_32(Attention a, const Step *step) { forward<32>(a, step); }
KERNEL __launch_bounds__(256) attention_forward_16(Attention a, const Step *step) { forward<16>(a, step); }
KERNEL __launch_bounds__(256) attention_backward_q_32(Attention a, const Step *step) { backward_q<32>(a, step); }
KERNEL __launch_bounds__(256) attention_backward_q_16(Attention a, const Step *step) { backward_q<16>(a, step); }
KERNEL __launch_bounds__(256) attention_backward_kv_32(Attention a, const Step *step) { backward_kv<32>(a, step); }
KERNEL __launch_bounds__(256) attention_backward_kv_16(Attention a, const Step *step) { backward_kv<16>(a, step); }

/// `dots[row, head] = dout . out`, a warp each.
KERNEL attention_dots(Attention a) {
    const u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const u64 all = (u64)(a.q_starts[*a.documents] - a.q_starts[0]) * a.heads;
    for (u64 at = (u64)blockIdx.x * warps + threadIdx.x / 32; at < all; at += (u64)gridDim.x * warps) {
        const ACT *out = a.out + at * a.d, *dout = a.dout + at * a.d;
        float sum = 0.0f;
        for (u32 col = lane; col < a.d; col += 32) sum = fmaf(wide(out[col]), wide(dout[col]), sum);
        sum = warp_sum(sum);
        if (lane == 0) a.dots[at] = sum;
    }
}

/// `dbias += partial sums`, slot by slot: eight warps take every eighth slot, then their sums are added in order.
KERNEL __launch_bounds__(256) attention_bias_sum(Attention a) {
    __shared__ float sums[8][32];
    const u32 span = a.max_queries + a.max_keys - 1, wide_ = a.max_keys + a.tile, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 at = blockIdx.x * 32 + lane, head = blockIdx.y, documents = *a.documents;
    float sum = 0.0f;
    u32 nth = 0;
    for (u32 document = 0; document < documents; document++) {
        const u32 start = a.q_starts[document] - a.q_starts[0], queries = a.q_starts[document + 1] - a.q_starts[document];
        const u32 slot = start / a.tile + document;
        for (u32 first = 0; first < queries; first += a.tile, nth++) {
            if (nth % 8 != warp) continue;
            const int near = (int)at - (int)(a.max_queries - 1) + (int)(first + a.tile - 1);
            if (at < span && near >= 0 && near < (int)wide_) sum += a.dbias_partial[((u64)(slot + first / a.tile) * a.heads + head) * wide_ + near];
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && at < span) {
        sum = a.dbias[(u64)head * span + at];
        for (u32 w = 0; w < 8; w++) sum += sums[w][lane];
        a.dbias[(u64)head * span + at] = sum;
    }
}
