// Sums and maxima over a warp or a block, in an order that does not change from run to run.
#pragma once
#include "number.cuh"

#define FULL 0xFFFFFFFFu

/// Every lane gets the sum.
template <class T>
HERE T warp_sum(T x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(FULL, x, apart);
    return x;
}

HERE float warp_max(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(FULL, x, apart));
    return x;
}

/// Every thread gets the sum; all threads of a block of whole warps take part.
template <class T>
HERE T block_sum(T x) {
    __shared__ T sums[32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) sums[warp] = x;
    __syncthreads();
    x = lane < blockDim.x / 32 ? sums[lane] : (T)0;
    return warp_sum(x);
}

/// Rows `first .. end` of chunk `chunk` out of `chunks`.
struct Chunk {
    u32 first, end;
};

HERE Chunk chunk_of(u32 rows, u32 chunk, u32 chunks) {
    const u32 each = (rows + chunks - 1) / chunks;
    const u32 first = min(rows, chunk * each);
    return Chunk{first, min(rows, first + each)};
}
