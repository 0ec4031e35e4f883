// AdamW with both moments in 8 bits: a code a number, the largest magnitude of each block of 256. Small parameters have f32 moments.
//
// adamw8bit(params, first_block, count, maps, step)          first_block[count] blocks of 256
//
// A warp takes a block of 256 numbers, a lane eight of them. The code is that of the nearest value of the CPU's map: as many
// middles between neighbouring values as are not above the number.
#include "adam.cuh"
#include "reduce.cuh"

#define EIGHT_BIT_LEAST 4096
#define SIGNED_ZERO 127

/// Codes above zero's: middles between `values[zero + i]` and its neighbour that are not above `size`.
HERE u32 steps_from_zero(const float *values, u32 zero, float size) {
    u32 low = 0, high = 255 - zero;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if ((values[zero + middle] + values[zero + middle + 1]) / 2.0f <= size) low = middle + 1;
        else high = middle;
    }
    return low;
}

HERE u32 nearest(const float *values, u32 zero, float x) {
    const u32 steps = steps_from_zero(values, zero, fabsf(x));
    if (x < 0.0f) return zero > steps ? zero - steps : 0;
    return min(zero + steps, 255u);
}

/// Codes of eight numbers of each lane of one block; returns its scale. Numbers that are not there are zero.
HERE float encode(const float *values, u32 zero, const float (&numbers)[8], u32 (&codes)[8]) {
    float most = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        // As on the CPU: what is not a number is never the largest.
        const float size = fabsf(numbers[i]);
        if (size > most) most = size;
    }
    most = warp_max(most);
    const float inverse = most > 0.0f ? 1.0f / most : 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8; i++) codes[i] = nearest(values, zero, fminf(fmaxf(numbers[i] * inverse, -1.0f), 1.0f));
    return most;
}

KERNEL __launch_bounds__(256) adamw8bit(const Param *params, const u32 *first_block, u32 count, const float *maps, const Step *step) {
    __shared__ float values[512];
    if (step->stopped) return;
    values[threadIdx.x] = maps[threadIdx.x];
    values[256 + threadIdx.x] = maps[256 + threadIdx.x];
    __syncthreads();
    const u32 which = param_of(first_block, count);
    const Param param = params[which];
    const Adam adam(step);
    if (param.elements < EIGHT_BIT_LEAST) {
        float *m = (float *)param.state0, *v = (float *)param.state1;
        each_eight(param, first_block[which], [&](const Eight &eight) {
            float weight[8], grad[8], first[8], second[8];
            read_eight(param.grad, eight, grad);
            read_eight(m, eight, first);
            read_eight(v, eight, second);
            read_weights(param, eight, weight);
#pragma unroll
            for (int k = 0; k < 8; k++) weight[k] = adam.update(weight[k], grad[k], first[k], second[k]);
            write_eight(m, eight, first);
            write_eight(v, eight, second);
            write_weights(param, step, eight, weight);
        });
        return;
    }
    const u64 first = (u64)(blockIdx.x - first_block[which]) * UPDATE_CHUNK, end = min(param.elements, first + UPDATE_CHUNK);
    const u64 words = (param.elements + 3) / 4;
    u8 *codes[2] = {(u8 *)param.state0, (u8 *)param.state1};
    float *scales[2] = {(float *)param.state0 + words, (float *)param.state1 + words};
    const u32 lane = threadIdx.x % 32;
    for (u64 block = first + threadIdx.x / 32 * 256; block < end; block += 8 * 256) {
        const Eight eight{block + lane / 16 * 128 + lane % 16, end};
        float weight[8], grad[8], moments[2][8];
        u32 coded[8];
        read_eight(param.grad, eight, grad);
        read_weights(param, eight, weight);
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            const float scale = scales[m][block / 256];
#pragma unroll
            for (int k = 0; k < 8; k++) moments[m][k] = eight.there(k) ? values[256 * m + codes[m][eight.at(k)]] * scale : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) weight[k] = adam.update(weight[k], grad[k], moments[0][k], moments[1][k]);
        write_weights(param, step, eight, weight);
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            // All lanes have read the old scale before the new one is written: the maximum waits for them.
            const float scale = encode(values + 256 * m, m == 0 ? SIGNED_ZERO : 0, moments[m], coded);
            if (lane == 0) scales[m][block / 256] = scale;
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (eight.there(k)) codes[m][eight.at(k)] = (u8)coded[k];
        }
    }
}
