// Quantised weights, read one element at a time or in pieces; the layout is `plimsoll_plan::dtype`'s.
#pragma once
#include "number.cuh"

__device__ const float NF4_LEVELS[16] = {
    -1.0f,       -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
    0.0795803f,  0.1609302f,  0.2461123f,   0.33791524f, 0.44070983f,  0.562617f,    0.72295684f,   1.0f,
};

#define QUANT_BLOCK 64
#define QUANT_BLOCKS 256

/// One signed byte an element, one scale a block.
struct Int8 {
    const u8 *codes;
    const float *scales;

    __device__ float at(u64 i) const { return (float)(i8)codes[i] * scales[i / QUANT_BLOCK]; }

    /// Elements `i .. i + 8`, `i` a multiple of 8.
    __device__ void eight(u64 i, float (&out)[8]) const {
        const uint2 raw = *reinterpret_cast<const uint2 *>(codes + i);
        const float scale = scales[i / QUANT_BLOCK];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            out[j] = (float)(i8)(raw.x >> 8 * j) * scale;
            out[4 + j] = (float)(i8)(raw.y >> 8 * j) * scale;
        }
    }
};

/// Four bits an element; the block's absmax in a byte, with an offset and a scale a group. `levels` may lie in shared memory.
struct Nf4 {
    const u8 *codes;
    const i8 *blocks;
    const float *groups;
    const float *levels;

    __device__ float absmax(u64 i) const {
        const u64 block = i / QUANT_BLOCK, group = block / QUANT_BLOCKS;
        return __fadd_rn(groups[2 * group], __fmul_rn((float)blocks[block], groups[2 * group + 1]));
    }

    __device__ float at(u64 i) const { return levels[codes[i / 2] >> 4 * (i % 2) & 15] * absmax(i); }

    __device__ void eight(u64 i, float (&out)[8]) const {
        const u32 raw = *reinterpret_cast<const u32 *>(codes + i / 2);
        const float most = absmax(i);
#pragma unroll
        for (int j = 0; j < 8; j++) out[j] = levels[raw >> 4 * j & 15] * most;
    }
};

/// Brings the levels into shared memory; every thread of the block calls it.
HERE const float *shared_levels() {
    __shared__ float levels[16];
    if (threadIdx.x < 16) levels[threadIdx.x] = NF4_LEVELS[threadIdx.x];
    __syncthreads();
    return levels;
}
