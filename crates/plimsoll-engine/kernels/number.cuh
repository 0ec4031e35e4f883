// The number types: float, bf16 and f16, read and written as float; rows in pieces of 16 bytes.
//
// The 16-bit types are plain bits with conversions of their own, so that nothing is needed from a toolkit and bf16 works on cards
// that do not know it. Narrowing is to nearest, ties to even.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};
#define __nv_bfloat16 bf16
#define __half f16

#ifndef ACT
#define ACT float
#endif
#ifndef WGT
#define WGT ACT
#endif
#ifndef GRD
#define GRD float
#endif
#ifndef MOM
#define MOM float
#endif
#ifndef LGT
#define LGT ACT
#endif

#define HERE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void

/// Pieces of 16 bytes.
#define VEC ((u32)(16 / sizeof(ACT)))

HERE float infinity() { return __int_as_float(0x7F800000); }
HERE bool is_finite(float x) { return (__float_as_int(x) & 0x7F800000) != 0x7F800000; }
HERE bool is_nan(float x) { return x != x; }

HERE float wide(float x) { return x; }
HERE float wide(bf16 x) { return __int_as_float((int)((u32)x.bits << 16)); }
HERE float wide(f16 x) {
#ifdef __CUDA_ARCH__
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
    return out;
#else
    return emulated_from_f16(x.bits);
#endif
}

HERE void narrow(float x, float &out) { out = x; }
HERE void narrow(float x, bf16 &out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
    u32 bits = (u32)__float_as_int(x);
    u32 rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    out.bits = (u16)(is_nan(x) ? (bits >> 16 | 0x40) : rounded);
#endif
}
HERE void narrow(float x, f16 &out) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
    out.bits = emulated_to_f16(x);
#endif
}

/// What a number becomes when it is stored.
template <class T>
HERE float stored(float x) {
    T out;
    narrow(x, out);
    return wide(out);
}

/// V numbers; with V > 1, `from` begins a piece of V numbers.
template <int V, class T>
HERE void load(const T *from, float (&out)[V]) {
    if constexpr (V * sizeof(T) % 16 == 0) {
        constexpr int each = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < V / each; i++) {
            uint4 raw = reinterpret_cast<const uint4 *>(from)[i];
            const T *parts = reinterpret_cast<const T *>(&raw);
#pragma unroll
            for (int j = 0; j < each; j++) out[i * each + j] = wide(parts[j]);
        }
    } else if constexpr (V * sizeof(T) == 8) {
        uint2 raw = *reinterpret_cast<const uint2 *>(from);
        const T *parts = reinterpret_cast<const T *>(&raw);
#pragma unroll
        for (int j = 0; j < V; j++) out[j] = wide(parts[j]);
    } else if constexpr (V * sizeof(T) == 4 && V > 1) {
        const u32 raw = *reinterpret_cast<const u32 *>(from);
        const T *parts = reinterpret_cast<const T *>(&raw);
#pragma unroll
        for (int j = 0; j < V; j++) out[j] = wide(parts[j]);
    } else {
#pragma unroll
        for (int j = 0; j < V; j++) out[j] = wide(from[j]);
    }
}

template <int V, class T>
HERE void store(T *to, const float (&values)[V]) {
    if constexpr (V * sizeof(T) % 16 == 0) {
        constexpr int each = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < V / each; i++) {
            uint4 raw;
            T *parts = reinterpret_cast<T *>(&raw);
#pragma unroll
            for (int j = 0; j < each; j++) narrow(values[i * each + j], parts[j]);
            reinterpret_cast<uint4 *>(to)[i] = raw;
        }
    } else if constexpr (V * sizeof(T) == 8) {
        uint2 raw;
        T *parts = reinterpret_cast<T *>(&raw);
#pragma unroll
        for (int j = 0; j < V; j++) narrow(values[j], parts[j]);
        *reinterpret_cast<uint2 *>(to) = raw;
    } else {
#pragma unroll
        for (int j = 0; j < V; j++) narrow(values[j], to[j]);
    }
}

/// Whether a pointer begins a piece of 16 bytes; null does.
HERE bool whole(const void *at) { return ((u64)at & 15) == 0; }

/// A number that a lambda gets as a type.
template <int N>
struct Pieces {
    static constexpr int value = N;
};

/// Calls `f` with pieces of 16 bytes where `wide_enough` holds, else with single numbers.
template <class F>
HERE void by_pieces(bool wide_enough, F f) {
    if (wide_enough) f(Pieces<(int)VEC>{});
    else f(Pieces<1>{});
}

/// Calls `f(pieces, row, col)` for all pieces of `count` rows of `width` columns, whatever the grid.
template <class F>
HERE void each_piece(bool wide_enough, u32 count, u32 width, F f) {
    by_pieces(wide_enough, [&](auto v) {
        const u32 pieces = width / decltype(v)::value;
        const u64 total = (u64)count * pieces, apart = (u64)gridDim.x * blockDim.x;
        for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += apart) {
            // A long division costs more than the rest of the loop.
            const u32 row = total >> 32 ? (u32)(at / pieces) : (u32)at / pieces;
            f(v, row, (u32)(at - (u64)row * pieces) * decltype(v)::value);
        }
    });
}
