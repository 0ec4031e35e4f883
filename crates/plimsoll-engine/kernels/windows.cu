// The windows of a batch of series as a model sees them: as they are, or each mixed with another.
//
// windows_input(windows, facts, out, width, samples)             any grid of 256
//
// facts: share of a sample in its mix (f32), how far its partner is behind it (0: nothing is mixed), index of the first sample.
#include "step.cuh"

KERNEL windows_input(const float *windows, const u32 *facts, ACT *out, u32 width, const u32 *samples) {
    const u32 count = *samples, shift = facts ? facts[1] : 0;
    const float share = facts ? __int_as_float((int)facts[0]) : 1.0f;
    each_piece(width % VEC == 0 && whole(windows) && whole(out), count, width, [&](auto v, u32 sample, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V];
        load<V>(windows + (u64)sample * width + col, values);
        if (shift) {
            float others[V];
            load<V>(windows + (u64)((sample + shift) % count) * width + col, others);
#pragma unroll
            for (int i = 0; i < V; i++) values[i] = share * values[i] + (1.0f - share) * others[i];
        }
        store<V>(out + (u64)sample * width + col, values);
    });
}
