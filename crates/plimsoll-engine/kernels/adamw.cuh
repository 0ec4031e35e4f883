// AdamW, as `torch.optim.AdamW` computes it, with moments of type MOM.
//
// adamw(params, first_block, count, step)          first_block[count] blocks of 256
#pragma once
#include "adam.cuh"

KERNEL __launch_bounds__(256) adamw(const Param *params, const u32 *first_block, u32 count, const Step *step) {
    if (step->stopped) return;
    const u32 which = param_of(first_block, count);
    const Param param = params[which];
    const Adam adam(step);
    MOM *m = (MOM *)param.state0, *v = (MOM *)param.state1;
    const auto update = [&](const auto &eight) {
        float weight[8], grad[8], first[8], second[8];
        read_eight(param.grad, eight, grad);
        read_eight(m, eight, first);
        read_eight(v, eight, second);
        read_weights(param, eight, weight);
#pragma unroll
        for (int k = 0; k < 8; k++) weight[k] = adam.update(weight[k], grad[k], first[k], second[k]);
        write_randomly(m, param, step, 1, eight, first);
        write_randomly(v, param, step, 2, eight, second);
        write_weights(param, step, eight, weight);
    };
    if (sizeof(MOM) == sizeof(float) && in_quads(param)) each_quads(param, first_block[which], update);
    else each_eight(param, first_block[which], update);
}
