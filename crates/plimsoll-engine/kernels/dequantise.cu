// Elements `first .. first + count` of a quantised weight, as numbers, into a scratch panel.
//
// dequantise_int8(codes, scales, out, first, count)          any grid of 256
// dequantise_nf4(codes, blocks, groups, out, first, count)   any grid of 256
#include "quant.cuh"

template <class Q>
HERE void dequantise(const Q &from, ACT *out, u64 first, u64 count) {
    const u64 begin = (u64)blockIdx.x * blockDim.x + threadIdx.x, apart = (u64)gridDim.x * blockDim.x;
    if (first % 8 == 0 && whole(out)) {
        const u64 pieces = count / 8;
        for (u64 piece = begin; piece < pieces; piece += apart) {
            float values[8];
            from.eight(first + piece * 8, values);
            store<8>(out + piece * 8, values);
        }
        const u64 at = pieces * 8 + begin;
        if (at < count) narrow(from.at(first + at), out[at]);
    } else {
        for (u64 at = begin; at < count; at += apart) narrow(from.at(first + at), out[at]);
    }
}

KERNEL dequantise_int8(const u8 *codes, const float *scales, ACT *out, u64 first, u64 count) {
    dequantise(Int8{codes, scales}, out, first, count);
}

KERNEL dequantise_nf4(const u8 *codes, const i8 *blocks, const float *groups, ACT *out, u64 first, u64 count) {
    dequantise(Nf4{codes, blocks, groups, shared_levels()}, out, first, count);
}
