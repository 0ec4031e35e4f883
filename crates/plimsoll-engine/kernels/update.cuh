// What all updates share: which parameter a block works on, and how a weight is read and written.
#pragma once
#include "philox.cuh"

/// Elements of a block.
#define UPDATE_CHUNK 4096

/// The parameter of this block: the last whose first block is not behind it. Each warp looks at 32 places at a time, since all else
/// that a block does waits for it.
HERE u32 param_of(const u32 *first_block, u32 count) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 apart = (high - low + 31) / 32, at = low + threadIdx.x % 32 * apart;
        const u32 before = __ballot_sync(0xFFFFFFFFu, at < high && first_block[at] <= blockIdx.x);
        low += (__popc(before) - 1) * apart;
        high = min(high, low + apart);
    }
    return low;
}

/// The elements of a thread, as many of them as lie before `end`: eight, 16 apart, because these share one counter of the random
/// bits; and so many loads are on their way at once.
struct Eight {
    u64 first, end;

    __device__ u64 at(int k) const { return first + 16 * k; }
    __device__ bool there(int k) const { return first + 16 * k < end; }
};

/// Calls `f(eight)` for this block's elements of a parameter.
template <class F>
HERE void each_eight(const Param &param, u32 first_block, F f) {
    const u64 first = (u64)(blockIdx.x - first_block) * UPDATE_CHUNK, end = min(param.elements, first + UPDATE_CHUNK);
    for (u64 group = first + threadIdx.x / 16 * 128; group < end; group += blockDim.x * 8) f(Eight{group + threadIdx.x % 16, end});
}

/// The elements of a thread where nothing is rounded at random: twice four, so that a warp takes 256 in a row, in whole pieces.
struct Quads {
    u64 first, end;

    __device__ u64 at(int k) const { return first + k / 4 * 128 + k % 4; }
    __device__ bool there(int k) const { return at(k) < end; }
    /// All four of a half are there.
    __device__ bool four(int half) const { return first + half * 128 + 4 <= end; }
};

template <class T>
struct alignas(4 * sizeof(T)) Four {
    T of[4];
};

/// Whether the parameter's elements can be taken so: it has a master, and all lie in whole pieces.
HERE bool in_quads(const Param &param) {
    return param.master && whole(param.master) && whole(param.weight) && whole(param.grad) && whole(param.state0) && whole(param.state1);
}

/// Calls `f(quads)` for this block's elements of a parameter.
template <class F>
HERE void each_quads(const Param &param, u32 first_block, F f) {
    const u64 first = (u64)(blockIdx.x - first_block) * UPDATE_CHUNK, end = min(param.elements, first + UPDATE_CHUNK);
    for (u64 group = first + threadIdx.x / 32 * 256; group < end; group += blockDim.x * 8) f(Quads{group + threadIdx.x % 32 * 4, end});
}

template <class T>
HERE void read_eight(const T *from, const Quads &quads, float (&out)[8]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Four<T> four = {};
        if (quads.four(half)) {
            four = *reinterpret_cast<const Four<T> *>(from + quads.at(4 * half));
        } else {
            for (int i = 0; i < 4; i++)
                if (quads.there(4 * half + i)) four.of[i] = from[quads.at(4 * half + i)];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) out[4 * half + i] = wide(four.of[i]);
    }
}

template <class T>
HERE void write_four(T *to, const Quads &quads, int half, const Four<T> &four) {
    if (quads.four(half)) {
        *reinterpret_cast<Four<T> *>(to + quads.at(4 * half)) = four;
    } else {
        for (int i = 0; i < 4; i++)
            if (quads.there(4 * half + i)) to[quads.at(4 * half + i)] = four.of[i];
    }
}

template <class T>
HERE void write_eight(T *to, const Quads &quads, const float (&values)[8]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Four<T> four;
#pragma unroll
        for (int i = 0; i < 4; i++) narrow(values[4 * half + i], four.of[i]);
        write_four(to, quads, half, four);
    }
}

template <class T>
HERE void read_eight(const T *from, const Eight &eight, float (&out)[8]) {
#pragma unroll
    for (int k = 0; k < 8; k++) out[k] = eight.there(k) ? wide(from[eight.at(k)]) : 0.0f;
}

template <class T>
HERE void write_eight(T *to, const Eight &eight, const float (&values)[8]) {
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (eight.there(k)) narrow(values[k], to[eight.at(k)]);
}

/// The 16 random bits of each; `stream` is 0 for the weight, as on the CPU.
HERE void write_randomly(bf16 *to, const Param &param, const Step *step, u32 stream, const Eight &eight, const float (&values)[8]) {
    const u64 counter = eight.first / 128 * 16;
    const u32 place = 0x80000000u | stream << 29 | param.key;
    const Words words =
        philox(step->seed, (u32)counter + (u32)(eight.first % 16), (u32)(counter >> 32), place, (u32)step->update);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const u32 random = k < 4 ? words.at[k] & 0xFFFF : words.at[k - 4] >> 16;
        if (eight.there(k)) to[eight.at(k)] = round_randomly(values[k], random);
    }
}
/// Nothing that is taken by fours is rounded so.
template <class T>
HERE void write_randomly(T *to, const Param &, const Step *, u32, const Quads &quads, const float (&values)[8]) {
    write_eight(to, quads, values);
}
HERE void write_randomly(float *to, const Param &, const Step *, u32, const Eight &eight, const float (&values)[8]) {
    write_eight(to, eight, values);
}
HERE void write_randomly(f16 *to, const Param &, const Step *, u32, const Eight &eight, const float (&values)[8]) {
    write_eight(to, eight, values);
}

/// A number of its two halves: where the lower one made the upper one round up, that is taken back.
HERE float joined(bf16 high, u16 low) {
    return __int_as_float((int)((u32)(u16)(high.bits - (low >> 15)) << 16 | low));
}
HERE void split(float value, bf16 &high, u16 &low) {
    const u32 all = (u32)__float_as_int(value);
    high.bits = (u16)((all + 0x8000) >> 16);
    low = (u16)all;
}
/// Only bf16 is the upper half of an f32.
template <class T>
HERE float joined(T, u16) { return 0.0f; }
template <class T>
HERE void split(float, T &, u16 &) {}

HERE float read_weight(const Param &param, u64 at) {
    if (param.flags & SPLIT) return joined(param.weight[at], ((const u16 *)param.master)[at]);
    return param.master ? param.master[at] : wide(param.weight[at]);
}

HERE void read_weights(const Param &param, const Eight &eight, float (&out)[8]) {
    if (param.flags & SPLIT) {
#pragma unroll
        for (int k = 0; k < 8; k++) out[k] = eight.there(k) ? read_weight(param, eight.at(k)) : 0.0f;
    } else if (param.master) read_eight(param.master, eight, out);
    else read_eight(param.weight, eight, out);
}

/// To both halves; to the master and, to nearest, its copy; without a master to the weight itself.
HERE void write_weights(const Param &param, const Step *step, const Eight &eight, const float (&values)[8]) {
    if (param.flags & SPLIT) {
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (eight.there(k)) split(values[k], param.weight[eight.at(k)], ((u16 *)param.master)[eight.at(k)]);
    } else if (param.master) {
        write_eight(param.master, eight, values);
        if (param.weight) write_eight(param.weight, eight, values);
    } else {
        write_randomly(param.weight, param, step, 0, eight, values);
    }
}

HERE void read_weights(const Param &param, const Quads &quads, float (&out)[8]) {
    if (!(param.flags & SPLIT)) return read_eight(param.master, quads, out);
    const u16 *master = (const u16 *)param.master;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Four<WGT> high = {};
        Four<u16> low = {};
        if (quads.four(half)) {
            high = *reinterpret_cast<const Four<WGT> *>(param.weight + quads.at(4 * half));
            low = *reinterpret_cast<const Four<u16> *>(master + quads.at(4 * half));
        } else {
            for (int i = 0; i < 4; i++) {
                if (!quads.there(4 * half + i)) continue;
                high.of[i] = param.weight[quads.at(4 * half + i)];
                low.of[i] = master[quads.at(4 * half + i)];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) out[4 * half + i] = joined(high.of[i], low.of[i]);
    }
}

HERE void write_weights(const Param &param, const Step *, const Quads &quads, const float (&values)[8]) {
    if (!(param.flags & SPLIT)) {
        write_eight(param.master, quads, values);
        if (param.weight) write_eight(param.weight, quads, values);
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Four<WGT> high = {};
        Four<u16> low = {};
#pragma unroll
        for (int i = 0; i < 4; i++) split(values[4 * half + i], high.of[i], low.of[i]);
        write_four(param.weight, quads, half, high);
        write_four((u16 *)param.master, quads, half, low);
    }
}
