// What products of a convolution read: the steps around each step of a sample, zeros before the first and behind the last one; and
// the weight for the gradient of its input.
//
// conv_gather(x, to, steps, channels, kernel, turned, first, limit)     any grid of 256; to[limit, channels * kernel]
// conv_turn(weight, to, inputs, outputs, kernel)                        any grid of 256; to[outputs * kernel, inputs]
//
// Column c * kernel + j of a gathered row is channel c of step j of those around it, from the first, turned from the last: so the
// weight [outputs, inputs, kernel] is the other side of the product as it lies.
#include "step.cuh"

KERNEL conv_gather(const ACT *x, ACT *to, u32 steps, u32 channels, u32 kernel, u32 turned, u32 first, u32 limit) {
    const u32 width = channels * kernel;
    const int half = (int)(kernel / 2);
    each_piece(width % VEC == 0 && whole(to), limit, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        const u32 at = first + row, step = at % steps;
        const ACT *const sample = x + (u64)(at - step) * channels;
        u32 channel = col / kernel, j = col - channel * kernel;
        float values[V];
#pragma unroll
        for (int i = 0; i < V; i++) {
            const int other = (int)step + (turned ? half - (int)j : (int)j - half);
            values[i] = other >= 0 && other < (int)steps ? wide(sample[(u64)other * channels + channel]) : 0.0f;
            if (++j == kernel) {
                j = 0;
                channel++;
            }
        }
        store<V>(to + (u64)row * width + col, values);
    });
}

KERNEL conv_turn(const ACT *weight, ACT *to, u32 inputs, u32 outputs, u32 kernel) {
    const u64 total = (u64)outputs * kernel * inputs;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += (u64)gridDim.x * blockDim.x) {
        const u32 input = (u32)(at % inputs), rest = (u32)(at / inputs), j = rest % kernel, output = rest / kernel;
        to[at] = weight[((u64)output * inputs + input) * kernel + j];
    }
}
