// One step of an LSTM for one unit of one sample, forward and back.
//
// Legend: H units of the state. Gates are i, f, g, o of H each; steps `from .. from + count` of a sample's `steps` are walked, in the order
// of time or the other way.
#pragma once
#include "curve.cuh"

/// `gates[samples, count, 4 H]` hold the inputs' share and become gates; `cells[samples, count, H]`; `out` is the first column of
/// `[samples, steps]` rows. `start` and `end`, `[samples, H]`, are cells before and behind these steps, or null.
struct Lstm {
    ACT *gates;
    const ACT *weight;
    const float *input_bias;
    const float *state_bias;
    float *cells;
    const float *start;
    float *end;
    ACT *out;
    u32 *counters;
    u32 stride, samples, steps, from, count, hidden;
    /// From the last step to the first; nothing is before the first one that is walked.
    u32 reverse, begins;
    /// Samples that a group of blocks has, and groups.
    u32 group, groups;
};
static_assert(sizeof(Lstm) == 112, "the host has the same");

/// Gates become their gradients. `carry[samples, 2 H]`: gradients of output and cell that come from the steps behind these (with `last`
/// there are none), then those for the steps before them.
struct LstmBack {
    ACT *gates;
    const ACT *weight;
    const float *cells;
    const float *start;
    const ACT *dout;
    float *carry;
    float *shares;
    u32 *counters;
    u32 stride, samples, steps, from, count, hidden;
    u32 reverse, begins;
    u32 group, groups;
    u32 last, zero;
};
static_assert(sizeof(LstmBack) == 112, "the host has the same");

/// The step that is walked `nth`, counted from `from`.
template <class L>
HERE u32 local_step(const L &l, u32 nth) { return l.reverse ? l.count - 1 - nth : nth; }

/// Where the cell before the one that is walked `nth` lies; null at the very beginning.
template <class L>
HERE const float *earlier_cell(const L &l, u32 nth, u32 sample, u32 unit) {
    if (nth == 0) return l.begins || !l.start ? nullptr : l.start + (u64)sample * l.hidden + unit;
    return l.cells + ((u64)sample * l.count + local_step(l, nth - 1)) * l.hidden + unit;
}

/// Bends the four sums, moves the cell on and says the output.
HERE void move_on(const Lstm &l, u32 nth, u32 sample, u32 unit, const float (&sums)[4]) {
    const u32 local = local_step(l, nth);
    const u64 row = (u64)sample * l.count + local;
    float biased[4];
#pragma unroll
    for (u32 n = 0; n < 4; n++) biased[n] = sums[n] + (l.input_bias[n * l.hidden + unit] + l.state_bias[n * l.hidden + unit]);
    const float i = sigmoid(biased[0]), f = sigmoid(biased[1]), g = tanhf(biased[2]), o = sigmoid(biased[3]);
    const float *const earlier = earlier_cell(l, nth, sample, unit);
    const float cell = earlier ? fmaf(f, *earlier, i * g) : i * g;
    ACT *const gates = l.gates + row * 4 * l.hidden + unit;
    narrow(i, gates[0]);
    narrow(f, gates[l.hidden]);
    narrow(g, gates[2 * l.hidden]);
    narrow(o, gates[3 * l.hidden]);
    l.cells[row * l.hidden + unit] = cell;
    if (l.end && nth + 1 == l.count) l.end[(u64)sample * l.hidden + unit] = cell;
    narrow(o * tanhf(cell), l.out[((u64)sample * l.steps + l.from + local) * l.stride + unit]);
}

/// Gradients of the four gates, from those of output (beside `dout`) and cell; the cell's becomes that of the one before it.
HERE void back_through(const LstmBack &l, u32 nth, u32 sample, u32 unit, float dh, float &dc, float (&d)[4]) {
    const u32 local = local_step(l, nth);
    const u64 row = (u64)sample * l.count + local;
    ACT *const gates = l.gates + row * 4 * l.hidden + unit;
    const float i = wide(gates[0]), f = wide(gates[l.hidden]), g = wide(gates[2 * l.hidden]), o = wide(gates[3 * l.hidden]);
    const float *const earlier = earlier_cell(l, nth, sample, unit);
    dh += wide(l.dout[((u64)sample * l.steps + l.from + local) * l.stride + unit]);
    const float t = tanhf(l.cells[row * l.hidden + unit]);
    dc += dh * o * (1.0f - t * t);
    d[0] = dc * g * i * (1.0f - i);
    d[1] = earlier ? dc * f * (1.0f - f) * *earlier : 0.0f;
    d[2] = dc * i * (1.0f - g * g);
    d[3] = dh * t * o * (1.0f - o);
    dc *= f;
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
        narrow(d[n], gates[n * l.hidden]);
        d[n] = stored<ACT>(d[n]);
    }
}
