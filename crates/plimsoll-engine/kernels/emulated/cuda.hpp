// Enough of CUDA to run the kernels on a CPU, one block after the other, each thread a fiber: what a test needs where there is no card.
//
// A fiber runs until a barrier of its warp or its block. Shared memory is static, because only one block lives at a time; but for kernels
// whose blocks wait for each other: those run together, each with a memory of its own, and may have no other shared memory.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define EMULATED 1

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct dim3_ {
    unsigned x, y, z;
};
static dim3_ threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
enum State { RUN, WAIT_WARP, WAIT_BLOCK, DONE };
struct Fiber {
    ucontext_t context;
    State state;
    unsigned mask; // lanes that a barrier of the warp waits for
    std::vector<char> stack;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current;
static std::function<void()> body;
static float memory[256 * 1024 / 4] __attribute__((aligned(128)));
static float *here = memory; // that of the block which runs
static uint64_t slots[16 * 1024];
static unsigned given; // bytes of shared memory of this launch

static void enter() {
    body();
    fibers[current].state = DONE;
    swapcontext(&fibers[current].context, &scheduler);
}

static void wait(State state, unsigned mask = 0xFFFFFFFFu) {
    const unsigned mine = current;
    fibers[mine].state = state;
    fibers[mine].mask = mask;
    swapcontext(&fibers[mine].context, &scheduler);
}

/// Lets warps go on whose lanes have all come to the barrier that they wait at, among fibers `first .. end`.
static void release_warps(unsigned first, unsigned end) {
    for (unsigned i = first; i < end; i++) {
        if (fibers[i].state != WAIT_WARP) continue;
        const unsigned mask = fibers[i].mask, warp = i / 32 * 32;
        bool all = true;
        for (unsigned k = warp; k < end && k < warp + 32; k++) {
            const bool here = fibers[k].state == WAIT_WARP && fibers[k].mask == mask;
            all = all && (!(mask >> (k - warp) & 1) || here || fibers[k].state == DONE);
        }
        for (unsigned k = warp; all && k < end && k < warp + 32; k++)
            if (fibers[k].state == WAIT_WARP && fibers[k].mask == mask) fibers[k].state = RUN;
    }
}

static void run_block(unsigned threads) {
    for (unsigned i = 0; i < threads; i++) {
        Fiber &fiber = fibers[i];
        fiber.stack.resize(64 * 1024);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        fiber.state = RUN;
        makecontext(&fiber.context, enter, 0);
    }
    for (;;) {
        bool ran = false;
        for (unsigned i = 0; i < threads; i++) {
            if (fibers[i].state != RUN) continue;
            ran = true;
            current = i;
            threadIdx = {i, 0, 0};
            swapcontext(&scheduler, &fibers[i].context);
        }
        if (ran) {
            release_warps(0, threads);
            continue;
        }
        bool waiting = false, stuck = false;
        for (unsigned i = 0; i < threads; i++) {
            waiting = waiting || fibers[i].state == WAIT_BLOCK;
            stuck = stuck || fibers[i].state == WAIT_WARP;
        }
        if (stuck) {
            fprintf(stderr, "a warp waits for lanes that wait for the block\n");
            abort();
        }
        if (!waiting) return;
        for (unsigned i = 0; i < threads; i++)
            if (fibers[i].state == WAIT_BLOCK) fibers[i].state = RUN;
    }
}

/// Lets others run: for whoever waits for another block.
static void yield() { wait(RUN); }

/// Blocks that run together, each thread a fiber; `threads` are whole warps.
static void launch_together(unsigned gx, unsigned gy, unsigned threads, unsigned smem, std::function<void()> kernel) {
    const unsigned blocks = gx * gy, all = blocks * threads;
    if (all > sizeof(slots) / sizeof(slots[0])) abort();
    std::vector<std::vector<float>> memories(blocks);
    for (auto &own : memories) {
        own.resize(smem / 4 + 32);
        memset(own.data(), 0xFF, own.size() * 4);
    }
    body = kernel;
    given = smem;
    if (fibers.size() < all) fibers.resize(all);
    gridDim = {gx, gy, 1};
    blockDim = {threads, 1, 1};
    for (unsigned i = 0; i < all; i++) {
        Fiber &fiber = fibers[i];
        fiber.stack.resize(64 * 1024);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        fiber.state = RUN;
        makecontext(&fiber.context, enter, 0);
    }
    for (bool alive = true; alive;) {
        alive = false;
        for (unsigned block = 0; block < blocks; block++) {
            bool waits = true, done = true;
            const uintptr_t base = (uintptr_t)memories[block].data();
            here = (float *)((base + 127) / 128 * 128);
            for (unsigned i = block * threads; i < (block + 1) * threads; i++) {
                if (fibers[i].state == RUN) {
                    current = i;
                    threadIdx = {i % threads, 0, 0};
                    blockIdx = {block % gx, block / gx, 0};
                    swapcontext(&scheduler, &fibers[i].context);
                }
                waits = waits && (fibers[i].state == WAIT_BLOCK || fibers[i].state == DONE);
                done = done && fibers[i].state == DONE;
            }
            release_warps(block * threads, (block + 1) * threads);
            for (unsigned i = block * threads; waits && i < (block + 1) * threads; i++)
                if (fibers[i].state == WAIT_BLOCK) fibers[i].state = RUN;
            alive = alive || !done;
        }
    }
    here = memory;
}

static void launch(unsigned gx, unsigned gy, unsigned threads, unsigned smem, std::function<void()> kernel) {
    if (smem > sizeof(memory)) abort();
    body = kernel;
    given = smem;
    if (fibers.size() < threads) fibers.resize(threads);
    gridDim = {gx, gy, 1};
    blockDim = {threads, 1, 1};
    for (unsigned y = 0; y < gy; y++)
        for (unsigned x = 0; x < gx; x++) {
            blockIdx = {x, y, 0};
            // What a block finds in its memory is anything.
            memset(memory, 0xFF, smem);
            run_block(threads);
        }
}

/// All lanes' values: `f` reads those of the warp.
template <class T, class F>
static auto exchange(unsigned mask, T mine, F f) {
    static_assert(sizeof(T) <= 8, "a lane gives one word");
    uint64_t bits = 0;
    memcpy(&bits, &mine, sizeof(T));
    slots[current] = bits;
    wait(WAIT_WARP, mask);
    const auto result = f(&slots[current / 32 * 32], current % 32);
    wait(WAIT_WARP, mask);
    return result;
}
} // namespace emulated

static inline void __syncthreads() { emulated::wait(emulated::WAIT_BLOCK); }
static inline void __syncwarp() { emulated::wait(emulated::WAIT_WARP); }

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int apart) {
    return emulated::exchange(mask, value, [&](uint64_t *all, unsigned lane) {
        T out;
        memcpy(&out, &all[lane ^ apart], sizeof(T));
        return out;
    });
}
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int from) {
    return emulated::exchange(mask, value, [&](uint64_t *all, unsigned) {
        T out;
        memcpy(&out, &all[from], sizeof(T));
        return out;
    });
}
static inline unsigned __ballot_sync(unsigned mask, bool value) {
    return emulated::exchange(mask, (unsigned)value, [&](uint64_t *all, unsigned) {
        unsigned bits = 0;
        for (unsigned i = 0; i < 32; i++) bits |= (unsigned)(all[i] != 0) << i;
        return bits;
    });
}
static inline unsigned __match_any_sync(unsigned mask, unsigned value) {
    return emulated::exchange(mask, value, [&](uint64_t *all, unsigned lane) {
        unsigned same = 0;
        for (unsigned i = 0; i < 32; i++) same |= (unsigned)(all[i] == all[lane]) << i;
        return same;
    });
}

static inline float __int_as_float(int bits) {
    float out;
    memcpy(&out, &bits, 4);
    return out;
}
static inline int __float_as_int(float value) {
    int out;
    memcpy(&out, &value, 4);
    return out;
}
static inline void __threadfence() {}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline unsigned atomicAdd(unsigned *at, unsigned more) {
    const unsigned old = *at;
    *at += more;
    return old;
}
template <class A, class B>
static inline auto min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <class A, class B>
static inline auto max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }

static inline float emulated_from_f16(unsigned short bits) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
}
static inline unsigned short emulated_to_f16(float value) {
    const _Float16 half = (_Float16)value;
    unsigned short out;
    memcpy(&out, &half, 2);
    return out;
}

/// The tensor cores' product: one row of a 16 x 8 x 16 tile's operands is spread over four lanes. `wide` widens 16 bits.
template <class W>
static inline void emulated_mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], W wide) {
    using emulated::current;
    static float left[32][16][16], right[32][16][8];
    const unsigned warp = current / 32, lane = current % 32, row = lane / 4, col = lane % 4 * 2;
    for (unsigned r = 0; r < 4; r++)
        for (unsigned h = 0; h < 2; h++)
            left[warp][row + (r % 2) * 8][col + h + (r / 2) * 8] = wide((unsigned short)(a[r] >> 16 * h));
    for (unsigned r = 0; r < 2; r++)
        for (unsigned h = 0; h < 2; h++) right[warp][col + h + r * 8][row] = wide((unsigned short)(b[r] >> 16 * h));
    __syncwarp();
    for (unsigned r = 0; r < 4; r++) {
        const unsigned i = row + (r / 2) * 8, j = col + r % 2;
        for (unsigned x = 0; x < 16; x++) c[r] += left[warp][i][x] * right[warp][x][j];
    }
    __syncwarp();
}

/// Four 8 x 8 matrices of 16 bits: lane i gives the address of row i % 8 of matrix i / 8 and gets two neighbours of its row of each;
/// turned, of its column.
static inline void emulated_ldmatrix(unsigned (&out)[4], const void *row, bool turned) {
    using emulated::current;
    static const unsigned short *rows[1024];
    rows[current] = (const unsigned short *)row;
    __syncwarp();
    const unsigned base = current / 32 * 32, lane = current % 32;
    for (unsigned m = 0; m < 4; m++) {
        const unsigned i = lane / 4, j = lane % 4 * 2;
        const unsigned short low = turned ? rows[base + m * 8 + j][i] : rows[base + m * 8 + i][j];
        const unsigned short high = turned ? rows[base + m * 8 + j + 1][i] : rows[base + m * 8 + i][j + 1];
        out[m] = (unsigned)low | (unsigned)high << 16;
    }
    __syncwarp();
}
