// All steps of an LSTM in one launch. A group of samples has a block for each 16 units of the state; each block holds its units' weights in
// registers for as long as it lives, and after every step waits for the others of its group, whose outputs it reads. All blocks of the
// grid must run at a time: a cooperative launch.
//
// lstm_walk_R(Lstm, Lstm)                  (ceil(H / 16), groups of both) of 256; smem 4 * (16 * 8 * R + 8 * 16 * 64)
// lstm_walk_back_R(LstmBack, LstmBack)     (ceil(H / 16), groups of both) of 256; smem 4 * 16 * 80
//
// R: 16, 32, 64 for H up to 8 R. Both directions of a layer are walked at once, since most of a step is waiting; the second may have no
// groups. counters[groups, 32] are 0 at first. shares[2, blocks, samples, H]: what the state's gradient gets from each block's gates, of this step and
// of the one before it. They are added up in the order of the blocks.
#include "lstm.cuh"

#define UNITS 16u
#define GATES (4 * UNITS)
/// Samples that are worked on at a time.
#define PASS 16u
/// Words between two counters.
#define APART 32u

extern __shared__ float shared[];

/// A number that another block wrote since this one began.
template <class T>
HERE float fresh(const T *at) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(T) == 4) {
        float value;
        asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
        return value;
    } else {
        T value;
        asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(value.bits) : "l"(at) : "memory");
        return wide(value);
    }
#else
    return wide(*at);
#endif
}

template <class T>
HERE uint4 fresh_piece(const T *at) {
#ifdef __CUDA_ARCH__
    uint4 raw;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w) : "l"(at) : "memory");
    return raw;
#else
    return *reinterpret_cast<const uint4 *>(at);
#endif
}

/// What this block has written is there for whoever finds the counter raised.
HERE void arrive(u32 *counter) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(counter, 1u);
    }
}

/// Waits until so many blocks have arrived.
HERE void wait_for(const u32 *counter, u32 arrivals) {
    if (threadIdx.x == 0) {
#ifdef __CUDA_ARCH__
        u32 found;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
        } while (found < arrivals);
#else
        while (*counter < arrivals) emulated::yield();
#endif
    }
    __syncthreads();
}

/// Outputs of the step before, of samples `first .. first + many`, as rows of 8 R floats; zeros behind the last unit.
template <int R>
HERE void load_state(const Lstm &l, u32 nth, u32 first, u32 many, float *state) {
    const int earlier = (int)(l.from + local_step(l, nth)) + (l.reverse ? 1 : -1);
    const bool pieces = l.hidden % VEC == 0 && l.stride % VEC == 0 && whole(l.out);
    const u32 each = pieces ? VEC : 1, width = 8 * R;
    for (u32 at = threadIdx.x * each; at < many * width; at += blockDim.x * each) {
        const u32 sample = at / width, unit = at % width;
        const ACT *const from = l.out + ((u64)(first + sample) * l.steps + (u32)earlier) * l.stride + unit;
        if (!pieces) {
            state[at] = unit < l.hidden ? fresh(from) : 0.0f;
            continue;
        }
        const uint4 raw = unit < l.hidden ? fresh_piece(from) : uint4{0, 0, 0, 0};
        const ACT *const parts = reinterpret_cast<const ACT *>(&raw);
#pragma unroll
        for (u32 i = 0; i < VEC; i++) state[at + i] = wide(parts[i]);
    }
}

/// One of two walks, by the block's group, and which of its groups that is.
template <class L>
HERE L chosen(const L &one, const L &other, u32 &group) {
    const bool is_first = blockIdx.y < one.groups;
    group = is_first ? blockIdx.y : blockIdx.y - one.groups;
    return is_first ? one : other;
}

template <int R>
HERE void walk(const Lstm &one, const Lstm &other) {
    u32 group;
    const Lstm l = chosen(one, other, group);
    float *const state = shared;              // [PASS, 8 R]
    float *const sums = shared + PASS * 8 * R; // [8 warps, PASS, GATES]
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_unit = blockIdx.x * UNITS;
    const u32 first = group * l.group, many = min(l.group, l.samples - first);
    u32 *const counter = l.counters + group * APART;
    // The four gates of unit `lane % 16`; R / 2 rows of the state: half a warp has the first, half the rest of what is this warp's. So
    // four numbers of the state, read at once, are for sixteen products.
    const u32 half = lane / 16, column = lane % 16, own = warp * R + half * (R / 2);
    float weights[4][R / 2];
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
        const ACT *const row = l.weight + ((u64)n * l.hidden + first_unit + column) * l.hidden + own;
#pragma unroll
        for (u32 k = 0; k < R / 2; k++) weights[n][k] = first_unit + column < l.hidden && own + k < l.hidden ? wide(row[k]) : 0.0f;
    }
    const u32 mine = threadIdx.x / UNITS, unit = first_unit + threadIdx.x % UNITS;
    for (u32 nth = 0; nth < l.count; nth++) {
        const bool begins = nth == 0 && l.begins;
        for (u32 from = 0; from < many; from += PASS) {
            const u32 now = min(PASS, many - from), sample = first + from + mine;
            const bool works = mine < now && unit < l.hidden;
            float given[4] = {};
            if (works) {
                const ACT *const gates = l.gates + ((u64)sample * l.count + local_step(l, nth)) * 4 * l.hidden + unit;
#pragma unroll
                for (u32 n = 0; n < 4; n++) given[n] = wide(gates[n * l.hidden]);
            }
            if (!begins) {
                if (from == 0 && nth > 0) wait_for(counter, gridDim.x * nth);
                load_state<R>(l, nth, first + from, now, state);
                __syncthreads();
                for (u32 s = 0; s < now; s += 4) {
                    float sum[4][4] = {};
#pragma unroll
                    for (u32 k = 0; k < R / 2; k += 4) {
#pragma unroll
                        for (u32 i = 0; i < 4; i++) {
                            float h[4];
                            load<4>(state + (s + i) * 8 * R + own + k, h);
#pragma unroll
                            for (u32 j = 0; j < 4; j++) {
#pragma unroll
                                for (u32 n = 0; n < 4; n++) sum[i][n] = fmaf(h[j], weights[n][k + j], sum[i][n]);
                            }
                        }
                    }
                    // Each half keeps two of the four samples, and gives the others to the other half.
#pragma unroll
                    for (u32 i = 0; i < 2; i++) {
                        float *const to = sums + (warp * PASS + s + 2 * half + i) * GATES + column;
#pragma unroll
                        for (u32 n = 0; n < 4; n++) {
                            const float given_away = half ? sum[i][n] : sum[2 + i][n];
                            const float got = __shfl_xor_sync(0xFFFFFFFFu, given_away, 16);
                            to[n * UNITS] = (half ? sum[2 + i][n] : sum[i][n]) + got;
                        }
                    }
                }
                __syncthreads();
                if (works) {
#pragma unroll
                    for (u32 n = 0; n < 4; n++) {
                        float sum = 0.0f;
#pragma unroll
                        for (u32 w = 0; w < 8; w++) sum += sums[(w * PASS + mine) * GATES + n * UNITS + unit - first_unit];
                        given[n] += sum;
                    }
                }
            }
            if (works) move_on(l, nth, sample, unit, given);
        }
        arrive(counter);
    }
}

KERNEL __launch_bounds__(256, 2) lstm_walk_16(Lstm one, Lstm other) { walk<16>(one, other); }
KERNEL __launch_bounds__(256, 2) lstm_walk_32(Lstm one, Lstm other) { walk<32>(one, other); }
KERNEL __launch_bounds__(256, 1) lstm_walk_64(Lstm one, Lstm other) { walk<64>(one, other); }

/// The state's gradient in one unit: the shares of all blocks, in their order.
HERE float all_shares(const LstmBack &l, u32 parity, u32 parts, u32 sample, u32 unit) {
    const float *const from = l.shares + ((u64)parity * parts * l.samples + sample) * l.hidden + unit;
    const u64 apart = (u64)l.samples * l.hidden;
    float sum = 0.0f;
#pragma unroll 8
    for (u32 part = 0; part < parts; part++) sum += fresh(from + part * apart);
    return sum;
}

/// From one gate's gradients of a sample to the next one's, so that those of four gates lie in other banks.
#define GATE_APART 20u

/// A warp has `EACH` times 32 units of the state, 256 apart; where the state is that narrow, `WARPS` of the block's 8 have all of it, and the
/// others other samples.
template <int WARPS, int EACH>
HERE void walk_back(const LstmBack &one, const LstmBack &other) {
    u32 group;
    const LstmBack l = chosen(one, other, group);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_unit = blockIdx.x * UNITS;
    const u32 first = group * l.group, many = min(l.group, l.samples - first), parts = gridDim.x;
    u32 *const counter = l.counters + group * APART;
    // Four units of the state, and what the gate `lane / 8` of each unit of this block has to do with them. So four gradients, read at once,
    // are for sixteen products.
    const u32 gate = lane / 8, own = warp % WARPS * 32 + lane % 8 * 4;
    float weights[EACH][4][UNITS];
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
#pragma unroll
        for (u32 c = 0; c < UNITS; c++) {
            const u32 unit = first_unit + c;
            const ACT *const row = l.weight + ((u64)gate * l.hidden + unit) * l.hidden + own + e * 256;
#pragma unroll
            for (u32 k = 0; k < 4; k++) weights[e][k][c] = unit < l.hidden && own + e * 256 + k < l.hidden ? wide(row[k]) : 0.0f;
        }
    }
    const u32 mine = threadIdx.x / UNITS, unit = first_unit + threadIdx.x % UNITS;
    u32 arrivals = 0;
    for (u32 nth = l.count; nth-- > 0;) {
        const bool comes_in = nth + 1 == l.count, ends = nth == 0 && l.begins;
        if (!comes_in) wait_for(counter, arrivals);
        for (u32 from = 0; from < many; from += PASS) {
            const u32 now = min(PASS, many - from), sample = first + from + mine;
            float d[4] = {};
            if (mine < now && unit < l.hidden) {
                float *const carry = l.carry + (u64)sample * 2 * l.hidden + unit;
                const bool none = comes_in && l.last;
                const float dh = none ? 0.0f : comes_in ? carry[0] : all_shares(l, (nth + 1) % 2, parts, sample, unit);
                float dc = none ? 0.0f : carry[l.hidden];
                back_through(l, nth, sample, unit, dh, dc, d);
                carry[l.hidden] = dc;
            }
            if (ends) continue;
#pragma unroll
            for (u32 n = 0; n < 4; n++) shared[(mine * 4 + n) * GATE_APART + threadIdx.x % UNITS] = d[n];
            __syncthreads();
            for (u32 s = warp / WARPS * 4; s < now; s += 8 / WARPS * 4) {
#pragma unroll
                for (u32 e = 0; e < EACH; e++) {
                    float sum[4][4] = {};
#pragma unroll
                    for (u32 c = 0; c < UNITS; c += 4) {
#pragma unroll
                        for (u32 i = 0; i < 4; i++) {
                            float given[4];
                            load<4>(shared + ((s + i) * 4 + gate) * GATE_APART + c, given);
#pragma unroll
                            for (u32 j = 0; j < 4; j++) {
#pragma unroll
                                for (u32 k = 0; k < 4; k++) sum[i][k] = fmaf(given[j], weights[e][k][c + j], sum[i][k]);
                            }
                        }
                    }
                    // The lanes of the four gates add up: each keeps two of the samples, then one, and gives the others away.
                    const bool high = gate / 2, odd = gate % 2;
                    float all[4];
#pragma unroll
                    for (u32 k = 0; k < 4; k++) {
                        float two[2];
#pragma unroll
                        for (u32 i = 0; i < 2; i++) {
                            const float got = __shfl_xor_sync(0xFFFFFFFFu, high ? sum[i][k] : sum[2 + i][k], 16);
                            two[i] = (high ? sum[2 + i][k] : sum[i][k]) + got;
                        }
                        all[k] = (odd ? two[1] : two[0]) + __shfl_xor_sync(0xFFFFFFFFu, odd ? two[0] : two[1], 8);
                    }
                    const u32 k = own + e * 256, sample = first + from + s + gate;
                    float *const to = l.shares + (((u64)(nth % 2) * parts + blockIdx.x) * l.samples + sample) * l.hidden + k;
                    if (s + gate >= now) continue;
                    if (l.hidden % 4 == 0 && k < l.hidden) {
                        store<4>(to, all);
                    } else {
#pragma unroll
                        for (u32 i = 0; i < 4; i++)
                            if (k + i < l.hidden) to[i] = all[i];
                    }
                }
            }
            __syncthreads();
        }
        if (!ends) {
            arrive(counter);
            arrivals += gridDim.x;
        }
    }
    if (l.begins) return;
    wait_for(counter, arrivals);
    for (u32 from = 0; from < many; from += PASS) {
        const u32 sample = first + from + mine;
        if (from + mine < many && unit < l.hidden) l.carry[(u64)sample * 2 * l.hidden + unit] = all_shares(l, 0, parts, sample, unit);
    }
}

KERNEL __launch_bounds__(256, 2) lstm_walk_back_16(LstmBack one, LstmBack other) { walk_back<4, 1>(one, other); }
KERNEL __launch_bounds__(256, 2) lstm_walk_back_32(LstmBack one, LstmBack other) { walk_back<8, 1>(one, other); }
KERNEL __launch_bounds__(256, 1) lstm_walk_back_64(LstmBack one, LstmBack other) { walk_back<8, 2>(one, other); }
