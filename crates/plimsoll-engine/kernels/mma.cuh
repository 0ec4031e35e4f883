// Tensor cores: products of bf16 or f16 with f32 sums, the left operand in registers, the right one a tile in shared memory.
//
// A tile is `ROWS x D` numbers in panels of 64 columns, each row of a panel eight pieces of 16 bytes; a row's pieces are exchanged by
// its number, so that eight rows of one column of pieces lie in different banks. Lane l of a warp holds, with g = l / 4 and t = l % 4:
// of a product rows g and g + 8, columns 2t and 2t + 1; of the left operand the same rows, depths 2t, 2t + 1 and 8 more; of the right
// one column g, the same depths.
//
// By `mma.sync` each warp multiplies its 16 rows. Compiled for sm_90a, by `wgmma`: four warps together multiply their 64 rows, by the
// same registers and the same tiles, and meanwhile do something else. A product is begun, sent (`send`) and waited for (`wait`).
#pragma once
#include "number.cuh"

/// Whether this architecture multiplies this type.
template <class T>
struct Cores {
    static constexpr bool there = false;
};
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <>
struct Cores<bf16> {
    static constexpr bool there = true;
};
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
template <>
struct Cores<f16> {
    static constexpr bool there = true;
};
#endif

/// Tiles in flight: copies are asynchronous from sm_80 on, and older cards have less shared memory.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define STAGES 2
#else
#define STAGES 1
#endif

typedef float Sum[4];
typedef u32 Left[4];
typedef u32 Right[2];

HERE void multiply(Sum &c, const Left &a, const Right &b, bf16) {
#ifndef __CUDA_ARCH__
    emulated_mma(c, a, b, [](u16 bits) { return wide(bf16{bits}); });
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

HERE void multiply(Sum &c, const Left &a, const Right &b, f16) {
#ifndef __CUDA_ARCH__
    emulated_mma(c, a, b, [](u16 bits) { return wide(f16{bits}); });
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif __CUDA_ARCH__ >= 750
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

/// Whether four warps multiply together, which only the machine code of this very architecture can.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TOGETHER 1
#else
#define TOGETHER 0
#endif

/// Two to the power of x; zero where that is below all normal numbers.
HERE float power2(float x) {
#ifdef __CUDA_ARCH__
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
#else
    return exp2f(x);
#endif
}

/// Two numbers side by side, the first in the lower half.
HERE u32 pack(float low, float high, bf16) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
#else
    bf16 a, b;
    narrow(low, a);
    narrow(high, b);
    return (u32)a.bits | (u32)b.bits << 16;
#endif
}
HERE u32 pack(float low, float high, f16) {
    f16 a, b;
    narrow(low, a);
    narrow(high, b);
    return (u32)a.bits | (u32)b.bits << 16;
}

#ifdef __CUDA_ARCH__
HERE u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }
#endif

/// Four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8.
template <bool TURNED>
HERE void matrices(u32 (&out)[4], const uint4 *row) {
#ifndef __CUDA_ARCH__
    emulated_ldmatrix(out, row, TURNED);
#else
    if constexpr (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(shared_address(row)));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(shared_address(row)));
    }
#endif
}

/// 16 bytes from global to shared memory, or zeros: then nothing is read.
HERE void copy_piece(uint4 *to, const void *from, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
#else
    *to = there ? *reinterpret_cast<const uint4 *>(from) : uint4{0, 0, 0, 0};
#endif
}
/// 4 bytes, or zeros.
HERE void copy_word(float *to, const float *from, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0) : "memory");
#else
    *to = there ? *from : 0.0f;
#endif
}
HERE void copies_begun() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits until at most N groups of copies are under way.
template <int N>
HERE void copies_done() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/// All threads' copies into shared memory are there, for all of them.
HERE void copies_seen() {
    copies_done<0>();
#if TOGETHER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
}

/// Piece `piece` of row `row` of a tile.
template <int ROWS>
HERE u32 piece_at(u32 row, u32 piece) { return piece / 8 * (ROWS * 8) + row * 8 + (piece % 8 ^ (row & 7)); }

/// Where in a tensor this thread's first piece of a tile is.
template <int D, int THREADS>
HERE u64 own_piece(u32 stride) { return (u64)(threadIdx.x / (D / 8)) * stride + threadIdx.x % (D / 8) * 8; }

/// Begins to copy ROWS rows into a tile, zeros for those that are not there. `at` is this thread's first piece, `stride` whole pieces.
template <int D, int ROWS, int THREADS, class T>
HERE void fetch_tile(const T *at, u32 stride, u32 there, uint4 *to) {
    constexpr u32 pieces = D / 8, apart = THREADS / pieces;
    const u32 first = threadIdx.x / pieces, piece = threadIdx.x % pieces;
#pragma unroll
    for (u32 i = 0; i < ROWS / apart; i++) {
        const u32 row = first + i * apart;
        copy_piece(to + piece_at<ROWS>(row, piece), at + (u64)stride * (i * apart), row < there);
    }
}

/// The left operands of rows `row .. row + 16` of a tile.
template <int D, int ROWS>
HERE void left_of(Left (&out)[D / 16], const uint4 *tile, u32 row) {
    const u32 lane = threadIdx.x % 32, m = lane / 8;
#pragma unroll
    for (int depth = 0; depth < D / 16; depth++)
        matrices<false>(out[depth], tile + piece_at<ROWS>(row + (m % 2) * 8 + lane % 8, depth * 2 + m / 2));
}

/// A product of 16 x 64 as the left operand of the next.
template <class T>
HERE void left_of(Left (&out)[4], const Sum (&sums)[8], T kind) {
#pragma unroll
    for (int depth = 0; depth < 4; depth++) {
        const Sum &low = sums[2 * depth], &high = sums[2 * depth + 1];
        out[depth][0] = pack(low[0], low[1], kind), out[depth][1] = pack(low[2], low[3], kind);
        out[depth][2] = pack(high[0], high[1], kind), out[depth][3] = pack(high[2], high[3], kind);
    }
}

#if TOGETHER
#define FOUR_SUMS(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define ALL_SUMS(c) \
    FOUR_SUMS(c, 0), FOUR_SUMS(c, 1), FOUR_SUMS(c, 2), FOUR_SUMS(c, 3), FOUR_SUMS(c, 4), FOUR_SUMS(c, 5), FOUR_SUMS(c, 6), FOUR_SUMS(c, 7)

extern __shared__ __align__(1024) uint4 shared[];

/// What the tensor cores know of a panel: rows of 128 bytes, eight of them 1024 bytes behind the eight before, pieces exchanged. Pieces
/// are counted from the start of shared memory on, so that the compiler has but to add a number.
HERE u64 panel_of(const uint4 *at) { return 0x40000040ull << 32 | ((shared_address(shared) >> 4 | 1u << 16) + (u32)(at - shared)); }

/// 64 x 64 x 16 by four warps. TURNED: the panel's rows are depths, not columns.
#define MULTIPLY_TOGETHER(TYPE)                                                                                                       \
    template <int TURNED>                                                                                                             \
    HERE void multiply_together(Sum *c, const Left &a, u64 b, int add, TYPE) {                                                        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                                     \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." #TYPE "." #TYPE " "                                                \
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                        \
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                              \
                     "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"                                                                    \
                     : ALL_SUMS(c)                                                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));                                    \
    }
MULTIPLY_TOGETHER(bf16)
MULTIPLY_TOGETHER(f16)

/// The same with the left operand in a panel.
#define MULTIPLY_PANELS(TYPE)                                                                                                         \
    HERE void multiply_panels(Sum *c, u64 a, u64 b, int add, TYPE) {                                                                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                                     \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." #TYPE "." #TYPE " "                                                \
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                        \
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                              \
                     "%32, %33, p, 1, 1, 0, 0;\n}"                                                                                    \
                     : ALL_SUMS(c)                                                                                                    \
                     : "l"(a), "l"(b), "r"(add));                                                                                     \
    }
MULTIPLY_PANELS(bf16)
MULTIPLY_PANELS(f16)
#endif

/// Nothing that writes these registers moves behind this.
template <int BLOCKS = 1>
HERE void pin(Sum *sums) {
#if TOGETHER
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) asm volatile("" : ALL_SUMS((sums + 8 * block))::"memory");
#endif
}
template <int N>
HERE void pin(Left (&left)[N]) {
#if TOGETHER
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(left[i][0]), "+r"(left[i][1]), "+r"(left[i][2]), "+r"(left[i][3])::"memory");
#endif
}

/// Before products are begun: registers that were written, and pinned, are there.
HERE void ready() {
#if TOGETHER
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

/// The products begun since the last time are a group.
HERE void send() {
#if TOGETHER
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/// Waits until at most LEFT groups are under way; `sums`, BLOCKS of eight, are of one that is not.
template <int LEFT, int BLOCKS = 1>
HERE void wait(Sum *sums) {
#if TOGETHER
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
        asm volatile("wgmma.wait_group.sync.aligned %32;" : ALL_SUMS((sums + 8 * block)) : "n"(LEFT) : "memory");
#endif
}

/// Where the left operands of a block's own rows are: fetched once, fetched for each product, or read where they lie, which only warps
/// that multiply together do. They could also have them fetched, but registers that are read while others are written ask for care.
enum Where { HELD, FETCHED, IN_PLACE };

/// Begins `sums = rows base .. base + 16 of a tile of ROWS  x  rows of the tile`, 64 of them; ADD: `sums +=`.
template <int D, int ROWS, int WHERE, bool ADD, class T>
HERE void begin_rows(Sum (&sums)[8], Left (&left)[D / 16], const uint4 *own, u32 base, const uint4 *tile, T kind) {
#if TOGETHER
    if constexpr (WHERE == IN_PLACE) {
        if (ROWS > 64) own += base / 64 * 512;
#pragma unroll
        for (int depth = 0; depth < D / 16; depth++)
            multiply_panels(sums, panel_of(own + depth / 4 * (ROWS * 8) + depth % 4 * 2), panel_of(tile + depth / 4 * 512 + depth % 4 * 2),
                            ADD || depth > 0, kind);
    } else {
#pragma unroll
        for (int depth = 0; depth < D / 16; depth++)
            multiply_together<0>(sums, left[depth], panel_of(tile + depth / 4 * 512 + depth % 4 * 2), ADD || depth > 0, kind);
    }
#else
    const u32 lane = threadIdx.x % 32, m = lane / 8;
    if constexpr (!ADD) {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[n][i] = 0.0f;
    }
#pragma unroll
    for (int depth = 0; depth < D / 16; depth++)
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            u32 out[4];
            matrices<false>(out, tile + piece_at<64>(n * 8 + (m / 2) * 8 + lane % 8, depth * 2 + m % 2));
            const Right first = {out[0], out[1]}, second = {out[2], out[3]};
            multiply(sums[n], left[depth], first, kind);
            multiply(sums[n + 1], left[depth], second, kind);
        }
#endif
}

/// Begins `sums += left x tile`, its 64 rows the depths.
template <int D, class T>
HERE void begin_columns(Sum (&sums)[D / 8], const Left (&left)[4], const uint4 *tile, T kind) {
#if TOGETHER
#pragma unroll
    for (int panel = 0; panel < D / 64; panel++)
#pragma unroll
        for (int depth = 0; depth < 4; depth++)
            multiply_together<1>(sums + 8 * panel, left[depth], panel_of(tile + panel * 512 + depth * 128), 1, kind);
#else
    const u32 lane = threadIdx.x % 32, m = lane / 8;
#pragma unroll
    for (int depth = 0; depth < 4; depth++)
#pragma unroll
        for (int col = 0; col < D / 16; col++) {
            u32 out[4];
            matrices<true>(out, tile + piece_at<64>(depth * 16 + (m % 2) * 8 + lane % 8, col * 2 + m / 2));
            const Right first = {out[0], out[1]}, second = {out[2], out[3]};
            multiply(sums[2 * col], left[depth], first, kind);
            multiply(sums[2 * col + 1], left[depth], second, kind);
        }
#endif
}

/// Writes 16 rows of sums, those below `there`: `row` is the first of them in the tensor's tile.
template <int D, class T>
HERE void leave_rows(const Sum (&sums)[D / 8], float low_scale, float high_scale, u32 row, u32 there, T *to, u64 stride) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        u32 *low = reinterpret_cast<u32 *>(to + (row + g) * stride + n * 8 + 2 * t);
        u32 *high = reinterpret_cast<u32 *>(to + (row + g + 8) * stride + n * 8 + 2 * t);
        if (row + g < there) *low = pack(sums[n][0] * low_scale, sums[n][1] * low_scale, T{});
        if (row + g + 8 < there) *high = pack(sums[n][2] * high_scale, sums[n][3] * high_scale, T{});
    }
}

/// The same as numbers of their own, scaled.
template <int D>
HERE void leave_sums(const Sum (&sums)[D / 8], float scale, u32 row, u32 there, float *to, u64 stride) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float pair[2] = {sums[n][2 * r] * scale, sums[n][2 * r + 1] * scale};
            if (row + g + 8 * r < there) store<2>(to + (row + g + 8 * r) * stride + n * 8 + 2 * t, pair);
        }
}
