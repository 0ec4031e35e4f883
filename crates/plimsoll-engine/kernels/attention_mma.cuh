// Attention on tensor cores. A file that includes this says HEAD, the head's size, 64 or 128, and ANY: whether a bias or dropout may be
// there (found out at run time) or neither is. Masks by documents, order and window are in both: whole tiles ask for none.
//
// A block takes 16 rows a warp; the other side comes in tiles of 64, the next one on its way while one is worked on.
//
// attention_forward_mma(a, step)                        (heads, slots(F) of queries) of 2 * F threads; smem 2 * D * (F + S * 128) + L
// attention_backward_q_mma(a, step)                     (heads, slots(Q) of queries) of 2 * Q; smem 2 * D * (2 * Q + S * 128) + 4 * Q + L,
//                                                       and with dbias_partial 4 * (Q * 72 + max_keys + Q) more; writes dots as well
// attention_backward_kv_mma(a, step, partial, splits)   (kv_heads * splits, slots(K) of keys) of 2 * K;
//                                                       smem 2 * D * (2 * K + S * 128) + S * 512 + L, and with ANY S * 8 * K more
// attention_kv_sum(a, partial, splits)                  any grid of 256
//
// F, Q and K, rows of a block, are ROWS_F, ROWS_Q and ROWS_KV below; S is 2 from sm_80 on, 1 before; L, of a bias' values, is 0 and
// with ANY S * 4 * (rows + 64). With few heads of keys the blocks of backward_kv are few and, causal, uneven: splits, up to heads /
// kv_heads of them, leave sums in partial[splits, 2, key rows, kv_heads * D], and attention_kv_sum adds them up; without, partial is
// null and splits 1.
//
// All pointers to rows begin, and all strides are, whole pieces of 16 bytes. Without ANY, scale is above zero.
#pragma once
#include "attention_tile.cuh"

extern __shared__ __align__(1024) uint4 shared[];

#ifndef ROWS_F
#define ROWS_F 64
#endif
#ifndef ROWS_Q
#define ROWS_Q 64
#endif
#ifndef ROWS_KV
#define ROWS_KV 64
#endif
// Blocks that a processor is to hold: so few registers may a thread have.
#ifndef BLOCKS_F
#define BLOCKS_F (HEAD == 64 ? TOGETHER ? 4 : 3 : 2)
#endif
#ifndef BLOCKS_Q
#define BLOCKS_Q (HEAD == 64 ? TOGETHER && !ANY ? 4 : 3 : 2)
#endif
#ifndef BLOCKS_KV
#define BLOCKS_KV (HEAD == 64 && TOGETHER && ANY ? 3 : 2)
#endif
// Whether the compiler knows the stage of a tile.
#ifndef KNOWN
#define KNOWN (!ANY && (TOGETHER || HEAD == 64))
#endif
// Where the operands of a block's own rows are, going forward and back.
#ifndef WHERE_F
#define WHERE_F (TOGETHER ? IN_PLACE : HELD)
#endif
#ifndef WHERE_B
#define WHERE_B (TOGETHER ? IN_PLACE : HEAD == 64 ? HELD : FETCHED)
#endif

template <int D, int ROWS, class T>
HERE void forward(const Attention &a, const Step *step) {
    if constexpr (Cores<T>::there) {
        constexpr int THREADS = 2 * ROWS;
        constexpr int OWN = WHERE_F;
        constexpr u32 each = 64 * D / 8; // pieces of a tile of the other side
        uint4 *const q = shared, *const ks = q + ROWS * D / 8, *const vs = ks + STAGES * each;
        float *const biases = reinterpret_cast<float *>(vs + STAGES * each);
        const u32 documents = *a.documents, slot = slot_of(a, documents, true);
        const Tile tile = tile_of(a.q_starts, documents, slot, ROWS);
        if (slot == 0xFFFFFFFFu || tile.document == 0xFFFFFFFFu) return;
        const Pair pair = pair_of(a, tile.document);
        const u32 head = blockIdx.x, of = head / (a.heads / a.kv_heads), tall = min((u32)ROWS, pair.queries - tile.first);
        const u32 base = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, four = tile.first + base / 64 * 64, query = tile.first + base + g;
        const u64 row0 = pair.q0 + tile.first;
        const u32 begin = first_seen(a, tile.first) / 64 * 64, end = end_seen(a, tile.first + tall - 1, pair.keys);
        const u32 count = begin < end ? (end - begin + 63) / 64 : 0;
        const T *k_at = a.k + (u64)(pair.k0 + begin) * a.k_stride + of * D + own_piece<D, THREADS>(a.k_stride);
        const T *v_at = a.v + (u64)(pair.k0 + begin) * a.v_stride + of * D + own_piece<D, THREADS>(a.v_stride);
        const bool biased = ANY && a.bias;
        auto fetch = [&](auto of_stage, u32 nth) {
            const u32 stage = of_stage;
            const u32 key0 = begin + nth * 64, there = pair.keys - key0;
            fetch_tile<D, 64, THREADS>(k_at, a.k_stride, there, ks + stage * each);
            fetch_tile<D, 64, THREADS>(v_at, a.v_stride, there, vs + stage * each);
            k_at += (u64)a.k_stride * 64, v_at += (u64)a.v_stride * 64;
            if (biased) fetch_bias<ROWS + 64, THREADS>(a, head, (int)key0 - (int)tile.first - (ROWS - 1), biases + stage * (ROWS + 64));
            copies_begun();
        };
        fetch_tile<D, ROWS, THREADS>(a.q + row0 * a.q_stride + head * D + own_piece<D, THREADS>(a.q_stride), a.q_stride, tall, q);
        if (STAGES == 2 && count > 0) fetch(Stage<0>{}, 0);
        copies_seen();
        Left left[D / 16];
        if constexpr (OWN == HELD) {
            left_of<D, ROWS>(left, q, base);
            pin(left);
        }
        Sum out[D / 8] = {};
        float most[2] = {-infinity(), -infinity()}, all[2] = {};
        const float c = ANY ? 1.0f : a.scale * LOG2E;
        const Sight seen = keys_seen(a, four, pair);
        each_tile<KNOWN>(count, [&](auto of_stage, u32 nth) {
            const u32 stage = of_stage;
            if (nth > 0) copies_seen();
            if (STAGES == 1) {
                fetch(of_stage, nth);
                copies_seen();
            } else if (nth + 1 < count) {
                fetch(other(of_stage), nth + 1);
            }
            const u32 key0 = begin + nth * 64;
            if (ROWS > 64 && seen.none(key0)) return;
            if constexpr (OWN == FETCHED) left_of<D, ROWS>(left, q, base);
            Sum s[8];
            ready();
            begin_rows<D, ROWS, OWN, false>(s, left, q, base, ks + stage * each, T{});
            send();
            wait<0>(s);
            if constexpr (ANY) score<false>(a, s, biases + stage * (ROWS + 64) + (ROWS - 1) - (base + g));
            if (!seen.all(key0)) hide_keys(a, s, query, key0, pair, -infinity());
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float high = most[r];
#pragma unroll
                for (int n = 0; n < 8; n++) high = fmaxf(high, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
                high = quad_max(high);
                // A row that has seen nothing yet: every power of minus infinity is zero.
                const float zero = high == -infinity() ? 0.0f : high * c;
                const float keep = power2(fmaf(most[r], c, -zero));
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    s[n][2 * r] = power2(fmaf(s[n][2 * r], c, -zero));
                    s[n][2 * r + 1] = power2(fmaf(s[n][2 * r + 1], c, -zero));
                    sum += s[n][2 * r] + s[n][2 * r + 1];
                }
                all[r] = all[r] * keep + sum;
                most[r] = high;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    out[n][2 * r] *= keep;
                    out[n][2 * r + 1] *= keep;
                }
            }
            if constexpr (ANY) {
                const Dropped dropped(a, step, tile.document, head);
                if (dropped.threshold) each_factor(dropped, query, key0, [&](int n, int i, float f) { s[n][i] *= f; });
            }
            Left weights[4];
            left_of(weights, s, T{});
            pin(weights);
            pin<D / 64>(out);
            ready();
            begin_columns<D>(out, weights, vs + stage * each, T{});
            send();
            wait<0, D / 64>(out);
        });
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float sum = quad_sum(all[r]);
            const u32 row = base + g + 8 * r;
            inverse[r] = sum == 0.0f ? 0.0f : 1.0f / sum;
            if (row < tall && threadIdx.x % 4 == 0) {
                a.lse[(row0 + row) * a.heads + head] = sum == 0.0f ? -infinity() : most[r] * c * LN2 + logf(sum);
            }
        }
        leave_rows<D>(out, inverse[0], inverse[1], base, tall, a.out + row0 * a.heads * D + head * D, (u64)a.heads * D);
    }
}

/// `dots[row] = dout . out` of a block's rows, in shared memory and for the other kernel.
template <int D, int ROWS>
HERE void dots_of(const Attention &a, u64 row0, u32 tall, u32 head, float *dots) {
    constexpr u32 lanes = D / 8;
#pragma unroll
    for (u32 at = threadIdx.x; at < ROWS * lanes; at += 2 * ROWS) {
        const u32 row = at / lanes, piece = at % lanes;
        const u64 from = (row0 + row) * a.heads * D + head * D + piece * 8;
        float x[8], y[8], sum = 0.0f;
        if (row < tall) {
            load<8>(a.out + from, x);
            load<8>(a.dout + from, y);
#pragma unroll
            for (int i = 0; i < 8; i++) sum = fmaf(x[i], y[i], sum);
        }
#pragma unroll
        for (u32 apart = lanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(FULL, sum, (int)apart);
        if (piece == 0) {
            dots[row] = sum;
            if (row < tall) a.dots[(row0 + row) * a.heads + head] = sum;
        }
    }
}

template <int D, int ROWS, class T>
HERE void backward_q(const Attention &a, const Step *step) {
    if constexpr (Cores<T>::there) {
        static_assert(!ANY || ROWS == 64, "diagonals are those of 64 rows");
        constexpr int THREADS = 2 * ROWS;
        constexpr int OWN = WHERE_B;
        constexpr u32 each = 64 * D / 8, mine = ROWS * D / 8;
        uint4 *const q = shared, *const dout = q + mine, *const ks = dout + mine, *const vs = ks + STAGES * each;
        float *const dots = reinterpret_cast<float *>(vs + STAGES * each), *const biases = dots + ROWS;
        float *const slopes = biases + (ANY ? STAGES * (ROWS + 64) : 0), *const near = slopes + ROWS * 72;
        const u32 documents = *a.documents, slot = slot_of(a, documents, true);
        const Tile tile = tile_of(a.q_starts, documents, slot, ROWS);
        if (slot == 0xFFFFFFFFu || tile.document == 0xFFFFFFFFu) return;
        const Pair pair = pair_of(a, tile.document);
        const u32 head = blockIdx.x, of = head / (a.heads / a.kv_heads), tall = min((u32)ROWS, pair.queries - tile.first);
        const u32 base = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const u32 four = tile.first + base / 64 * 64, query = tile.first + base + g;
        const u64 row0 = pair.q0 + tile.first;
        const u32 begin = first_seen(a, tile.first) / 64 * 64, end = end_seen(a, tile.first + tall - 1, pair.keys);
        const u32 count = begin < end ? (end - begin + 63) / 64 : 0;
        const T *k_at = a.k + (u64)(pair.k0 + begin) * a.k_stride + of * D + own_piece<D, THREADS>(a.k_stride);
        const T *v_at = a.v + (u64)(pair.k0 + begin) * a.v_stride + of * D + own_piece<D, THREADS>(a.v_stride);
        const bool biased = ANY && a.bias, gathers = ANY && a.dbias_partial;
        auto fetch = [&](auto of_stage, u32 nth) {
            const u32 stage = of_stage;
            const u32 key0 = begin + nth * 64, there = pair.keys - key0;
            fetch_tile<D, 64, THREADS>(k_at, a.k_stride, there, ks + stage * each);
            fetch_tile<D, 64, THREADS>(v_at, a.v_stride, there, vs + stage * each);
            k_at += (u64)a.k_stride * 64, v_at += (u64)a.v_stride * 64;
            if (biased) fetch_bias<ROWS + 64, THREADS>(a, head, (int)key0 - (int)tile.first - (ROWS - 1), biases + stage * (ROWS + 64));
            copies_begun();
        };
        fetch_tile<D, ROWS, THREADS>(a.q + row0 * a.q_stride + head * D + own_piece<D, THREADS>(a.q_stride), a.q_stride, tall, q);
        const u32 inner = a.heads * D;
        fetch_tile<D, ROWS, THREADS>(a.dout + row0 * inner + head * D + own_piece<D, THREADS>(inner), inner, tall, dout);
        if (STAGES == 2 && count > 0) fetch(Stage<0>{}, 0);
        dots_of<D, ROWS>(a, row0, tall, head, dots);
        if (gathers) {
            for (u32 at = threadIdx.x; at < a.max_keys + ROWS; at += THREADS) near[at] = 0.0f;
        }
        float lse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 row = base + g + 8 * r;
            lse[r] = row < tall ? a.lse[(row0 + row) * a.heads + head] * LOG2E : 0.0f;
            // Of a row that sees nothing every power is to be zero.
            if (lse[r] == -infinity()) lse[r] = 0.0f;
        }
        copies_seen();
        const float dot[2] = {dots[base + g], dots[base + g + 8]};
        Left left_q[D / 16], left_dout[D / 16];
        if constexpr (OWN == HELD) {
            left_of<D, ROWS>(left_q, q, base);
            left_of<D, ROWS>(left_dout, dout, base);
            pin(left_q);
            pin(left_dout);
        }
        Sum dq[D / 8] = {};
        const float c = ANY ? 1.0f : a.scale * LOG2E;
        const Sight seen = keys_seen(a, four, pair);
        each_tile<KNOWN>(count, [&](auto of_stage, u32 nth) {
            const u32 stage = of_stage;
            if (nth > 0) copies_seen();
            if (STAGES == 1) {
                fetch(of_stage, nth);
                copies_seen();
            } else if (nth + 1 < count) {
                fetch(other(of_stage), nth + 1);
            }
            const u32 key0 = begin + nth * 64;
            if (ROWS > 64 && seen.none(key0)) return;
            if constexpr (OWN == FETCHED) {
                left_of<D, ROWS>(left_q, q, base);
                left_of<D, ROWS>(left_dout, dout, base);
            }
            Sum s[8], dp[8];
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) dp[n][i] = ANY ? 0.0f : -dot[i / 2];
            pin(dp);
            ready();
            begin_rows<D, ROWS, OWN, false>(s, left_q, q, base, ks + stage * each, T{});
            send();
            begin_rows<D, ROWS, OWN, true>(dp, left_dout, dout, base, vs + stage * each, T{});
            send();
            wait<1>(s);
            if constexpr (ANY) score<false>(a, s, biases + stage * (ROWS + 64) + (ROWS - 1) - (base + g));
            if (!seen.all(key0)) hide_keys(a, s, query, key0, pair, -infinity());
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = power2(fmaf(s[n][i], c, -lse[i / 2]));
            wait<0>(dp);
            if constexpr (ANY) {
                const Dropped dropped(a, step, tile.document, head);
                if (dropped.threshold) each_factor(dropped, query, key0, [&](int n, int i, float f) { dp[n][i] *= f; });
            }
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] *= ANY ? dp[n][i] - dot[i / 2] : dp[n][i];
            Left weights[4];
            left_of(weights, s, T{});
            pin(weights);
            ready();
            begin_columns<D>(dq, weights, ks + stage * each, T{});
            send();
            if constexpr (ANY) {
                if (a.dbias_partial) {
#pragma unroll
                    for (int n = 0; n < 8; n++)
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            const float two[2] = {s[n][2 * r], s[n][2 * r + 1]};
                            store<2>(slopes + (base + g + 8 * r) * 72 + n * 8 + 2 * t, two);
                        }
                    __syncthreads();
                    // Diagonals `nth` and `nth + 64` (column - row = diagonal - 63) have 64 slopes together, one a row: lanes 16 apart
                    // share them, half of the rows each.
                    const u32 half = threadIdx.x % 32 / 16, nth_ = threadIdx.x / 32 * 16 + threadIdx.x % 16;
                    float low = 0.0f, high = 0.0f;
#pragma unroll
                    for (u32 j = 0; j < 32; j++) {
                        const u32 row = j % 16 + j / 16 * 32 + half * 16, col = row + nth_ + 1;
                        const float x = slopes[row * 72 + col % 64];
                        if (col >= 64) low += x;
                        else high += x;
                    }
                    low += __shfl_xor_sync(FULL, low, 16);
                    high += __shfl_xor_sync(FULL, high, 16);
                    const u32 diagonal = nth_ + half * 64;
                    // A diagonal that reaches behind the last key has nothing on it there.
                    if (diagonal < 127 && key0 + diagonal < a.max_keys + 64) near[key0 + diagonal] += half ? high : low;
                }
            }
            wait<0, D / 64>(dq);
        });
        leave_rows<D>(dq, a.scale, a.scale, base, tall, a.dq + row0 * a.dq_stride + head * D, a.dq_stride);
        if (gathers) {
            float *to = a.dbias_partial + ((u64)slot * a.heads + head) * (a.max_keys + ROWS);
            __syncthreads();
            for (u32 at = threadIdx.x; at < a.max_keys + ROWS; at += THREADS) to[at] = near[at];
        }
    }
}

/// Rows of the products are keys here, columns queries, so that the gradients of keys and values stay in registers. With `partial`
/// the query heads of a group are shared among `splits` blocks, and each leaves its sums there.
template <int D, int ROWS, class T>
HERE void backward_kv(const Attention &a, const Step *step, float *partial, u32 splits) {
    if constexpr (Cores<T>::there) {
        constexpr int THREADS = 2 * ROWS;
        constexpr int OWN = WHERE_B;
        constexpr u32 each = 64 * D / 8, mine = ROWS * D / 8;
        uint4 *const k = shared, *const v = k + mine, *const qs = v + mine, *const douts = qs + STAGES * each;
        float *const lses = reinterpret_cast<float *>(douts + STAGES * each), *const dots = lses + STAGES * 64;
        float *const biases = dots + STAGES * 64;
        u32 *const drops = reinterpret_cast<u32 *>(biases + STAGES * (ROWS + 64));
        const u32 documents = *a.documents, slot = slot_of(a, documents, false);
        const Tile tile = tile_of(a.k_starts, documents, slot, ROWS);
        if (slot == 0xFFFFFFFFu || tile.document == 0xFFFFFFFFu) return;
        const Pair pair = pair_of(a, tile.document);
        const u32 of = blockIdx.x / splits, split = blockIdx.x % splits, group = a.heads / a.kv_heads;
        const u32 head0 = of * group + group * split / splits, head1 = of * group + group * (split + 1) / splits;
        const u32 tall = min((u32)ROWS, pair.keys - tile.first);
        const u32 base = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const u32 four = tile.first + base / 64 * 64, key = tile.first + base + g;
        const u64 row0 = pair.k0 + tile.first;
        const u32 inner = a.heads * D;
        const u32 begin = a.causal ? tile.first : 0, end = end_seeing(a, tile.first + tall - 1, pair.queries);
        const u32 tiles = begin < end ? (end - begin + 63) / 64 : 0, count = tiles * (head1 - head0);
        u32 next_head = head0, next_query = begin; // of the tile that is fetched next
        const T *const q0 = a.q + own_piece<D, THREADS>(a.q_stride), *const dout0 = a.dout + own_piece<D, THREADS>(inner);
        auto fetch = [&](auto of_stage, u32) {
            const u32 stage = of_stage;
            const u32 there = pair.queries - next_query;
            const u64 row = pair.q0 + next_query;
            fetch_tile<D, 64, THREADS>(q0 + row * a.q_stride + next_head * D, a.q_stride, there, qs + stage * each);
            fetch_tile<D, 64, THREADS>(dout0 + row * inner + next_head * D, inner, there, douts + stage * each);
            const u32 at = threadIdx.x % 64;
            const u64 from = (row + (at < there ? at : 0)) * a.heads + next_head;
            if (threadIdx.x < 64) copy_word(lses + stage * 64 + at, a.lse + from, at < there);
            else if (threadIdx.x < 128) copy_word(dots + stage * 64 + at, a.dots + from, at < there);
            if constexpr (ANY) {
                if (a.bias) {
                    const int first = (int)tile.first - (int)next_query - 63;
                    fetch_bias<ROWS + 64, THREADS>(a, next_head, first, biases + stage * (ROWS + 64));
                }
                const Dropped dropped(a, step, tile.document, next_head);
                if (dropped.threshold) draw<ROWS, THREADS>(dropped, next_query, tile.first, drops + stage * 2 * ROWS);
            }
            copies_begun();
            next_query += 64;
            if (next_query >= end) next_query = begin, next_head++;
        };
        fetch_tile<D, ROWS, THREADS>(a.k + row0 * a.k_stride + of * D + own_piece<D, THREADS>(a.k_stride), a.k_stride, tall, k);
        fetch_tile<D, ROWS, THREADS>(a.v + row0 * a.v_stride + of * D + own_piece<D, THREADS>(a.v_stride), a.v_stride, tall, v);
        if (STAGES == 2 && count > 0) fetch(Stage<0>{}, 0);
        copies_seen();
        Left left_k[D / 16], left_v[D / 16];
        if constexpr (OWN == HELD) {
            left_of<D, ROWS>(left_k, k, base);
            left_of<D, ROWS>(left_v, v, base);
            pin(left_k);
            pin(left_v);
        }
        Sum dk[D / 8] = {}, dv[D / 8] = {};
        const float c = ANY ? 1.0f : a.scale * LOG2E;
        const Sight seen = queries_seeing(a, four, pair);
        u32 next0 = begin;
        each_tile<KNOWN>(count, [&](auto of_stage, u32 nth) {
            const u32 stage = of_stage;
            if (nth > 0) copies_seen();
            if (STAGES == 1) {
                fetch(of_stage, nth);
                copies_seen();
            } else if (nth + 1 < count) {
                fetch(other(of_stage), nth + 1);
            }
            const u32 query0 = next0;
            next0 = next0 + 64 < end ? next0 + 64 : begin;
            const uint4 *q = qs + stage * each, *dout = douts + stage * each;
            const float *lse = lses + stage * 64, *dot = dots + stage * 64;
            if (ROWS > 64 && seen.none(query0)) return;
            if constexpr (OWN == FETCHED) {
                left_of<D, ROWS>(left_k, k, base);
                left_of<D, ROWS>(left_v, v, base);
            }
            Sum s[8], dp[8];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float pair_[2];
                load<2>(dot + n * 8 + 2 * t, pair_);
#pragma unroll
                for (int i = 0; i < 4; i++) dp[n][i] = ANY ? 0.0f : -pair_[i % 2];
            }
            pin(dp);
            ready();
            begin_rows<D, ROWS, OWN, false>(s, left_k, k, base, q, T{});
            send();
            begin_rows<D, ROWS, OWN, true>(dp, left_v, v, base, dout, T{});
            send();
            wait<1>(s);
            if constexpr (ANY) score<true>(a, s, biases + stage * (ROWS + 64) + 63 + base + g);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float pair_[2];
                load<2>(lse + n * 8 + 2 * t, pair_);
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = power2(fmaf(s[n][i], c, -LOG2E * pair_[i % 2]));
            }
            if (!seen.all(query0)) hide_queries(a, s, key, query0, pair, 0.0f);
            Left weights[4], slopes[4];
            if constexpr (ANY) {
                wait<0>(dp);
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    float pair_[2];
                    load<2>(dot + n * 8 + 2 * t, pair_);
                    const u32 gone = a.threshold ? drops[stage * 2 * ROWS + base * 2 + n * 4 + t] >> g : 0;
                    const float kept = a.threshold ? a.drop_scale : 1.0f;
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float f = gone >> (i % 2 * 16 + i / 2 * 8) & 1 ? 0.0f : kept, p = s[n][i];
                        s[n][i] = p * f;
                        dp[n][i] = p * (dp[n][i] * f - pair_[i % 2]);
                    }
                }
                left_of(weights, s, T{});
                pin(weights);
                ready();
                begin_columns<D>(dv, weights, dout, T{});
                send();
            } else {
                left_of(weights, s, T{});
                pin(weights);
                ready();
                begin_columns<D>(dv, weights, dout, T{});
                send();
                wait<1>(dp);
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) dp[n][i] *= s[n][i];
            }
            left_of(slopes, dp, T{});
            pin(slopes);
            ready();
            begin_columns<D>(dk, slopes, q, T{});
            send();
            wait<0, D / 64>(dv);
            wait<0, D / 64>(dk);
        });
        if (partial) {
            const u64 rows = a.k_starts[*a.documents] - a.k_starts[0], wide = (u64)a.kv_heads * D;
            float *to = partial + (2 * split * rows + row0) * wide + of * D;
            leave_sums<D>(dk, a.scale, base, tall, to, wide);
            leave_sums<D>(dv, 1.0f, base, tall, to + rows * wide, wide);
        } else {
            leave_rows<D>(dk, a.scale, a.scale, base, tall, a.dk + row0 * a.dk_stride + of * D, a.dk_stride);
            leave_rows<D>(dv, 1.0f, 1.0f, base, tall, a.dv + row0 * a.dv_stride + of * D, a.dv_stride);
        }
    }
}

KERNEL __launch_bounds__(2 * ROWS_F, BLOCKS_F) attention_forward_mma(Attention a, const Step *step) {
    forward<HEAD, ROWS_F, ACT>(a, step);
}
KERNEL __launch_bounds__(2 * ROWS_Q, BLOCKS_Q) attention_backward_q_mma(Attention a, const Step *step) {
    backward_q<HEAD, ROWS_Q, ACT>(a, step);
}
KERNEL __launch_bounds__(2 * ROWS_KV, BLOCKS_KV) attention_backward_kv_mma(Attention a, const Step *step, float *partial, u32 splits) {
    backward_kv<HEAD, ROWS_KV, ACT>(a, step, partial, splits);
}

/// `dk` and `dv` from the sums of all splits, in order.
KERNEL attention_kv_sum(Attention a, const float *partial, u32 splits) {
    const u32 rows = a.k_starts[*a.documents] - a.k_starts[0], width = a.kv_heads * a.d;
    const u64 each = (u64)rows * width;
    each_piece(width % VEC == 0 && whole(a.dk) && whole(a.dv) && a.dk_stride % VEC == 0 && a.dv_stride % VEC == 0, rows, width,
               [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float dk[V] = {}, dv[V] = {}, more[V];
#pragma unroll 4
        for (u32 split = 0; split < splits; split++) {
            const float *from = partial + 2 * split * each + (u64)row * width + col;
            load<V>(from, more);
#pragma unroll
            for (int i = 0; i < V; i++) dk[i] += more[i];
            load<V>(from + each, more);
#pragma unroll
            for (int i = 0; i < V; i++) dv[i] += more[i];
        }
        store<V>(a.dk + (u64)row * a.dk_stride + col, dk);
        store<V>(a.dv + (u64)row * a.dv_stride + col, dv);
    });
}
