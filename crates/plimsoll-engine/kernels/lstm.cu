// An LSTM a step at a time, the products between by the matrix library: for states too wide to be walked in one launch, and for cards
// too small. And what the products of its weights' gradients read.
//
// lstm_step(Lstm, nth)                             any grid of 256: the gates have both products' sums
// lstm_step_back(LstmBack, nth)                    any grid of 256: the carry's first half is read, its second moves on
// lstm_bias_partial(dgates, partial, width, rows)  (ceil(width / 64), chunks) of 256, then `sum_partials`
// lstm_gather(x, stride, to, width, steps, from, count, shift, first, limit)   any grid of 256
//
// Row i of what is gathered is step `from + shift` on of the sample of row `first + i` of [samples, count]; zeros where there is no such step.
#include "columns.cuh"
#include "lstm.cuh"

KERNEL lstm_step(Lstm l, u32 nth) {
    const u64 total = (u64)l.samples * l.hidden;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += (u64)gridDim.x * blockDim.x) {
        const u32 sample = (u32)(at / l.hidden), unit = (u32)(at % l.hidden);
        const ACT *const gates = l.gates + ((u64)sample * l.count + local_step(l, nth)) * 4 * l.hidden + unit;
        float sums[4];
#pragma unroll
        for (u32 n = 0; n < 4; n++) sums[n] = wide(gates[n * l.hidden]);
        move_on(l, nth, sample, unit, sums);
    }
}

KERNEL lstm_step_back(LstmBack l, u32 nth) {
    const u64 total = (u64)l.samples * l.hidden;
    const bool none = l.last && nth + 1 == l.count;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += (u64)gridDim.x * blockDim.x) {
        const u32 sample = (u32)(at / l.hidden), unit = (u32)(at % l.hidden);
        float *const carry = l.carry + (u64)sample * 2 * l.hidden + unit;
        float d[4], dc = none ? 0.0f : carry[l.hidden];
        back_through(l, nth, sample, unit, none ? 0.0f : carry[0], dc, d);
        carry[l.hidden] = dc;
    }
}

KERNEL lstm_bias_partial(const ACT *dgates, float *partial, u32 width, u32 rows) {
    column_partial(whole(dgates), width, rows, partial, [&](auto v, u32 row, u32 col, auto &out) {
        load<decltype(v)::value>(dgates + (u64)row * width + col, out);
    });
}

KERNEL lstm_gather(const ACT *x, u32 stride, ACT *to, u32 width, u32 steps, u32 from, u32 count, int shift, u32 first, u32 limit) {
    each_piece(width % VEC == 0 && stride % VEC == 0 && whole(x) && whole(to), limit, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        const u32 at = first + row, sample = at / count;
        const int step = (int)(from + at % count) + shift;
        float values[V] = {};
        if (step >= 0 && step < (int)steps) load<V>(x + ((u64)sample * steps + (u32)step) * stride + col, values);
        store<V>(to + (u64)row * width + col, values);
    });
}
