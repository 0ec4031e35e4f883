// Sums over rows, column by column, in two passes: chunks of rows here, the chunks in `sum_partials`.
#pragma once
#include "reduce.cuh"

/// `partial[blockIdx.y, col] = sum of f(row, col)` over the rows of this chunk. Block x takes 64 columns, each of its 8 warps every
/// eighth row, a lane two neighbouring columns: `f(pieces, row, col, out)` gives both where `pairs` holds, else one by one.
template <class F>
HERE void column_partial(bool pairs, u32 width, u32 rows, float *partial, F f) {
    __shared__ float sums[8][64];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 col = blockIdx.x * 64 + lane * 2;
    const Chunk chunk = chunk_of(rows, blockIdx.y, gridDim.y);
    float sum[2] = {};
    if (pairs && width % 2 == 0) {
        if (col < width) {
#pragma unroll 4
            for (u32 row = chunk.first + warp; row < chunk.end; row += 8) {
                float both[2];
                f(Pieces<2>{}, row, col, both);
                sum[0] += both[0];
                sum[1] += both[1];
            }
        }
    } else {
        for (u32 row = chunk.first + warp; row < chunk.end; row += 8) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float one[1];
                if (col + i < width) {
                    f(Pieces<1>{}, row, col + i, one);
                    sum[i] += one[0];
                }
            }
        }
    }
    __syncthreads();
    sums[warp][lane * 2] = sum[0];
    sums[warp][lane * 2 + 1] = sum[1];
    __syncthreads();
    const u32 mine = blockIdx.x * 64 + threadIdx.x;
    if (threadIdx.x < 64 && mine < width) {
        float all = 0.0f;
        for (u32 w = 0; w < 8; w++) all += sums[w][threadIdx.x];
        partial[(u64)blockIdx.y * width + mine] = all;
    }
}
