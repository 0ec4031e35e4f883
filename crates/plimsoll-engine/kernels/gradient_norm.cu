// The norm of all gradients, and what follows from it.
//
// gradient_norm_partial(grad, count, partial)          ceil(count / 65536) of 256
// gradient_norm_params(params, first_block, count, partial)   first_block[count] blocks of 256: of the parameters of an update
// gradient_norm_finish(partial, count, step)           1 block of 1024
// clip(step)                                           1 thread
#include "reduce.cuh"
#include "update.cuh"

KERNEL gradient_norm_partial(const GRD *grad, u64 count, double *partial) {
    constexpr int V = 16 / sizeof(GRD);
    const u64 first = (u64)blockIdx.x * 65536;
    const u32 here = (u32)min((u64)65536, count - first);
    const GRD *from = grad + first;
    float sum = 0.0f;
    if (whole(grad)) {
        for (u32 at = threadIdx.x * V; at + V <= here; at += blockDim.x * V) {
            float values[V];
            load<V>(from + at, values);
#pragma unroll
            for (int i = 0; i < V; i++) sum = fmaf(values[i], values[i], sum);
        }
        const u32 at = here / V * V + threadIdx.x;
        if (at < here) sum = fmaf(wide(from[at]), wide(from[at]), sum);
    } else {
        for (u32 at = threadIdx.x; at < here; at += blockDim.x) sum = fmaf(wide(from[at]), wide(from[at]), sum);
    }
    const double all = block_sum((double)sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

KERNEL gradient_norm_params(const Param *params, const u32 *first_block, u32 count, double *partial) {
    const u32 which = param_of(first_block, count);
    const Param param = params[which];
    float sum = 0.0f;
    const auto add = [&](const auto &eight) {
        float grad[8];
        read_eight(param.grad, eight, grad);
#pragma unroll
        for (int k = 0; k < 8; k++) sum = fmaf(grad[k], grad[k], sum);
    };
    if (whole(param.grad)) each_quads(param, first_block[which], add);
    else each_eight(param, first_block[which], add);
    const double all = block_sum((double)sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

KERNEL __launch_bounds__(1024) gradient_norm_finish(const double *partial, u32 count, Step *step) {
    double sum = 0.0;
    for (u32 at = threadIdx.x; at < count; at += blockDim.x) sum += partial[at];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        step->squares += sum;
        if (!(step->squares <= 1.7e308) && step->stopped == 0) step->stopped = 2;
        if (step->stopped == 0) step->judged++;
    }
}

KERNEL clip(Step *step) {
    // Gradients are `loss_scale` times as long as they are meant.
    const double mean = step->mean / (double)step->loss_scale;
    step->norm = sqrt(step->squares) * mean;
    // As torch.nn.utils.clip_grad_norm_.
    const double shorter = step->clip_norm > 0.0 ? fmin(step->clip_norm / (step->norm + 1e-6), 1.0) : 1.0;
    step->grad_scale = (float)(mean * shorter);
}
