// `out = drop(table[ids] + positions[at])`, and the gradients of the tables.
//
// embed_forward(ids, table, at, positions, out, width, rows, drop, step)               any grid of 256
// embed_int8_forward(ids, codes, scales, out, width, rows, drop, step)                 any grid of 256
// embed_nf4_forward(ids, codes, blocks, groups, out, width, rows, drop, step)          any grid of 256
// embed_sort(ids, order, spare, rows)                                                  1 block of 1024
// embed_backward(ids, order, grad, table_grad, width, skip, rows, drop, step)          (max_rows, ceil(width / 256)) of 256
//
// The gradient needs no atomics: rows are sorted by id once, and the block of an id's first row adds up all of them in order.
#include "philox.cuh"
#include "quant.cuh"
#include "reduce.cuh"

KERNEL embed_forward(const u32 *ids, const WGT *table, const u32 *at, const WGT *positions, ACT *out, u32 width, const u32 *rows,
                     Drop place, const Step *step) {
    each_piece(width % VEC == 0 && whole(table) && whole(positions) && whole(out), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V];
        load<V>(table + (u64)ids[row] * width + col, values);
        if (positions) {
            float more[V];
            load<V>(positions + (u64)at[row] * width + col, more);
#pragma unroll
            for (int i = 0; i < V; i++) values[i] += more[i];
        }
        drop<V>(place, step, row, width, col, values);
        store<V>(out + (u64)row * width + col, values);
    });
}

template <class Q>
HERE void embed_quantised(const Q &table, const u32 *ids, ACT *out, u32 width, const u32 *rows, const Drop &place, const Step *step) {
    each_piece(false, *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V] = {table.at((u64)ids[row] * width + col)};
        drop<V>(place, step, row, width, col, values);
        store<V>(out + (u64)row * width + col, values);
    });
}

KERNEL embed_int8_forward(const u32 *ids, const u8 *codes, const float *scales, ACT *out, u32 width, const u32 *rows, Drop place,
                          const Step *step) {
    embed_quantised(Int8{codes, scales}, ids, out, width, rows, place, step);
}

KERNEL embed_nf4_forward(const u32 *ids, const u8 *codes, const i8 *blocks, const float *groups, ACT *out, u32 width, const u32 *rows,
                         Drop place, const Step *step) {
    embed_quantised(Nf4{codes, blocks, groups, shared_levels()}, ids, out, width, rows, place, step);
}

/// A radix sort of one block, eight bits at a time from the lowest: each pass keeps the order of equal digits.
KERNEL __launch_bounds__(1024) embed_sort(const u32 *ids, u32 *order, u32 *spare, const u32 *rows) {
    __shared__ u32 begins[256];     // where the next row of a digit goes
    __shared__ u16 counts[32][256]; // rows of a digit in each warp, then in all warps before it
    __shared__ u32 totals[256];
    const u32 count = *rows, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    u32 *const other = spare;
    for (u32 pass = 0; pass < 3; pass++) {
        const u32 shift = 8 * pass;
        // Rows go from nowhere to `order`, to `other`, to `order`.
        const u32 *from = pass == 1 ? order : other;
        u32 *to = pass == 1 ? other : order;
        if (thread < 256) totals[thread] = 0;
        __syncthreads();
        for (u32 i = thread; i < count; i += blockDim.x) atomicAdd(&totals[ids[i] >> shift & 255], 1u);
        __syncthreads();
        if (thread == 0) {
            u32 sum = 0;
            for (u32 digit = 0; digit < 256; digit++) {
                begins[digit] = sum;
                sum += totals[digit];
            }
        }
        for (u32 base = 0; base < count; base += blockDim.x) {
            const u32 i = base + thread;
            for (u32 digit = lane; digit < 256; digit += 32) counts[warp][digit] = 0;
            __syncthreads();
            const bool there = i < count;
            const u32 row = !there ? 0 : pass == 0 ? i : from[i];
            // Threads behind the end share a digit that nobody has.
            const u32 digit = there ? ids[row] >> shift & 255 : 256;
            const u32 same = __match_any_sync(FULL, digit);
            const u32 before = __popc(same & ((1u << lane) - 1));
            if (there && before == 0) counts[warp][digit] = (u16)__popc(same);
            __syncthreads();
            if (thread < 256) {
                u32 sum = 0;
                for (u32 w = 0; w < blockDim.x / 32; w++) {
                    const u32 here = counts[w][thread];
                    counts[w][thread] = (u16)sum;
                    sum += here;
                }
                totals[thread] = sum;
            }
            __syncthreads();
            if (there) to[begins[digit] + counts[warp][digit] + before] = row;
            __syncthreads();
            if (thread < 256) begins[thread] += totals[thread];
            __syncthreads();
        }
    }
}

KERNEL __launch_bounds__(256) embed_backward(const u32 *ids, const u32 *order, const ACT *grad, GRD *table_grad, u32 width, u32 skip,
                                             const u32 *rows, Drop place, const Step *step) {
    __shared__ float sums[8][256];
    const u32 count = *rows, begin = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (begin >= count) return;
    const u32 id = ids[order[begin]];
    if (id == skip || (begin > 0 && ids[order[begin - 1]] == id)) return;
    const u32 first = blockIdx.y * 256;
    float sum[8] = {};
    const bool alone = begin + 1 >= count || ids[order[begin + 1]] != id;
    // Eight warps take turns at the rows of the id.
    for (u32 i = begin + warp; i < count; i += 8) {
        const u32 row = order[i];
        if (ids[row] != id) break;
        for (u32 j = 0; j < 8; j++) {
            const u32 col = first + j * 32 + lane;
            if (col < width) {
                float value[1] = {wide(grad[(u64)row * width + col])};
                drop<1>(place, step, row, width, col, value);
                sum[j] += value[0];
            }
        }
    }
    if (!alone) {
        for (u32 j = 0; j < 8; j++) sums[warp][j * 32 + lane] = sum[j];
        __syncthreads();
    }
    GRD *const into = table_grad + (u64)id * width;
    if (alone) {
        if (warp > 0) return;
        for (u32 j = 0; j < 8; j++) {
            const u32 col = first + j * 32 + lane;
            if (col < width) narrow(wide(into[col]) + sum[j], into[col]);
        }
    } else {
        const u32 col = first + threadIdx.x;
        if (col < width) {
            float all = 0.0f;
            for (u32 w = 0; w < 8; w++) all += sums[w][threadIdx.x];
            narrow(wide(into[col]) + all, into[col]);
        }
    }
}
