// Cross entropy over a chunk of logits, with the gradient in their place. A block takes a row: one pass for maximum and sum together,
// one for the gradient. What fits of the row into the shared memory that the launch gives waits there for the second.
//
// loss_forward(logits, labels, losses, vocab, first, limit, gradient, rows, step)        limit blocks of 1024; smem any
// loss_total(losses, rows, step)                                                         1 block of 1024
#include "reduce.cuh"
#include "step.cuh"

#define IGNORE 0xFFFFFFFFu
#define PIECE ((u32)(16 / sizeof(LGT)))

extern __shared__ uint4 shared[];

/// Bytes of shared memory that the launch gave.
HERE u32 shared_bytes() {
#ifdef __CUDA_ARCH__
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
#else
    return emulated::given;
#endif
}

/// A maximum and the sum of exponentials relative to it.
struct Peak {
    float most, sum;
};

HERE Peak both(Peak a, Peak b) {
    const float most = fmaxf(a.most, b.most);
    if (most == -infinity()) return Peak{most, 0.0f};
    return Peak{most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
}

HERE Peak warp_peak(Peak mine) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        mine = both(mine, Peak{__shfl_xor_sync(FULL, mine.most, apart), __shfl_xor_sync(FULL, mine.sum, apart)});
    }
    return mine;
}

HERE Peak block_peak(Peak mine) {
    __shared__ float mosts[32], sums[32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    mine = warp_peak(mine);
    if (lane == 0) {
        mosts[warp] = mine.most;
        sums[warp] = mine.sum;
    }
    __syncthreads();
    mine = lane < blockDim.x / 32 ? Peak{mosts[lane], sums[lane]} : Peak{-infinity(), 0.0f};
    return warp_peak(mine);
}

template <int V>
HERE void cross_entropy(LGT *logits, u32 vocab, u32 label, float *loss, bool gradient, float scale) {
    Peak peak{-infinity(), 0.0f};
    LGT *const kept = reinterpret_cast<LGT *>(shared);
    const u32 keeps = V == 1 ? 0 : shared_bytes() / 16 * V;
    // Read by everyone before anyone writes: the barriers of `block_peak` lie between.
    const float picked = wide(logits[label]);
    for (u32 at = threadIdx.x * V; at < vocab; at += blockDim.x * V) {
        float values[V];
        load<V>(logits + at, values);
        if (at < keeps) store<V>(kept + at, values);
        float most = peak.most;
#pragma unroll
        for (int i = 0; i < V; i++) most = fmaxf(most, values[i]);
        // NaN is not seen by `fmaxf`, but comes through the sum.
        float sum = most == -infinity() ? 0.0f : peak.sum * expf(peak.most - most);
#pragma unroll
        for (int i = 0; i < V; i++) sum += expf(values[i] - (most == -infinity() ? 0.0f : most));
        peak = Peak{most, sum};
    }
    peak = block_peak(peak);
    if (threadIdx.x == 0) *loss = logf(peak.sum) + (peak.most - picked);
    if (!gradient) return;
    const float inverse = scale / peak.sum;
    for (u32 at = threadIdx.x * V; at < vocab; at += blockDim.x * V) {
        float values[V];
        // A thread reads what it wrote itself.
        load<V>((at < keeps ? kept : logits) + at, values);
#pragma unroll
        for (int i = 0; i < V; i++) {
            values[i] = expf(values[i] - peak.most) * inverse;
            if (at + i == label) values[i] -= scale;
        }
        store<V>(logits + at, values);
    }
}

KERNEL __launch_bounds__(1024) loss_forward(LGT *logits, const u32 *labels, float *losses, u32 vocab, u32 first, u32 limit, u32 gradient,
                                            const u32 *rows, const Step *step) {
    const u32 row = blockIdx.x;
    if (row >= limit) return;
    LGT *const mine = logits + (u64)row * vocab;
    const bool there = first + row < *rows;
    const u32 label = there ? labels[first + row] : IGNORE;
    const bool pieces = vocab % PIECE == 0 && whole(logits);
    if (label != IGNORE) {
        if (pieces) cross_entropy<16 / sizeof(LGT)>(mine, vocab, label, losses + first + row, gradient, step->loss_scale);
        else cross_entropy<1>(mine, vocab, label, losses + first + row, gradient, step->loss_scale);
        return;
    }
    if (there && threadIdx.x == 0) losses[first + row] = 0.0f;
    if (!gradient) return;
    const float zero[1] = {0.0f};
    for (u32 at = threadIdx.x; at < vocab; at += blockDim.x) store<1>(mine + at, zero);
}

KERNEL __launch_bounds__(1024) loss_total(const float *losses, const u32 *rows, Step *step) {
    double sum = 0.0;
    for (u32 row = threadIdx.x; row < *rows; row += blockDim.x) sum += (double)losses[row];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        step->loss_sum += sum;
        // Comparisons with NaN are false.
        if (!(fabs(step->loss_sum) <= 1.7e308) && step->stopped == 0) step->stopped = 1;
    }
}
