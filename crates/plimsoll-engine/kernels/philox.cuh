// Dropout's random numbers: Philox4x32-7, the stream of the CPU. A number is a pure function of (seed, update, sample, place, row,
// column).
#pragma once
#include "step.cuh"

struct Words {
    u32 at[4];
};

HERE Words philox(u64 seed, u32 counter, u32 sample, u32 place, u32 update) {
    u32 c0 = counter, c1 = sample, c2 = place, c3 = update;
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 7; round++) {
        const u64 a = 0xD2511F53ull * c0;
        const u64 b = 0xCD9E8D57ull * c2;
        c0 = (u32)(b >> 32) ^ c1 ^ k0;
        c2 = (u32)(a >> 32) ^ c3 ^ k1;
        c1 = (u32)b;
        c3 = (u32)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}

/// The word of one column: a block of 64 columns takes 16 counters; word w of counter i is that of column 16 w + i.
HERE u32 drop_word(u64 seed, u32 update, u32 sample, u32 place, u64 row, u32 width, u32 col) {
    const u64 counter = (row * ((width + 63) / 64) + col / 64) * 16;
    const u32 above = place ^ (u32)(counter >> 32) << 20;
    const Words words = philox(seed, (u32)counter + col % 16, sample, above, update);
    const u32 w = col / 16 % 4;
    return w == 0 ? words.at[0] : w == 1 ? words.at[1] : w == 2 ? words.at[2] : words.at[3];
}

/// Multiplies V columns of a row by their factors, 0 or `scale` each. With V > 1, neighbouring lanes have neighbouring pieces of a row,
/// and those of a block of 64 columns come together.
template <int V>
HERE void drop(const Drop &place, const Step *step, u32 row, u32 width, u32 col, float (&values)[V]) {
    if (place.threshold == 0) return;
    const u32 sample = place.steps ? *place.sample + row / place.steps : place.sample[row];
    const u32 position = place.steps ? row % place.steps : place.position[row];
    const u64 seed = step->seed;
    const u32 update = (u32)step->update;
    if constexpr (V == 4 || V == 8) {
        if (width % 64 == 0) {
            // The 64 / V lanes of a block draw its 16 counters between them and hand each other what is dropped, a bit a column.
            constexpr u32 lanes = 64 / V, each = V / 4;
            const u32 lane = threadIdx.x % 32, nth = lane % lanes, first = lane - nth;
            const u32 mask = (u32)((1ull << lanes) - 1) << first;
            const u64 counter = ((u64)position * (width / 64) + col / 64) * 16;
            const u32 above = place.place ^ (u32)(counter >> 32) << 20;
            u32 bits = 0;
#pragma unroll
            for (u32 c = 0; c < each; c++) {
                const Words words = philox(seed, (u32)counter + nth * each + c, sample, above, update);
#pragma unroll
                for (u32 w = 0; w < 4; w++) bits |= (u32)(words.at[w] < place.threshold) << (4 * c + w);
            }
            const u32 w = V * nth / 16, from = first + V * nth % 16 / each;
#pragma unroll
            for (u32 q = 0; q < 4; q++) {
                const u32 theirs = __shfl_sync(mask, bits, (int)(from + q));
#pragma unroll
                for (u32 c = 0; c < each; c++) values[q * each + c] *= theirs >> (4 * c + w) & 1 ? 0.0f : place.scale;
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        const u32 word = drop_word(seed, update, sample, place.place, position, width, col + i);
        values[i] *= word < place.threshold ? 0.0f : place.scale;
    }
}

/// Adds 16 random bits below the ones that are kept, and cuts; what is not finite is cut.
HERE bf16 round_randomly(float value, u32 random) {
    const u32 exact = (u32)__float_as_int(value);
    const u32 up = exact + (is_finite(value) ? random : 0);
    bf16 out;
    out.bits = (u16)(up >> 16 | (is_nan(value) ? 0x40 : 0));
    return out;
}
