// Lion: every element moves by the rate, in the direction of a blend of the gradient and its running average.
//
// lion(params, first_block, count, step)          first_block[count] blocks of 256
#include "update.cuh"

KERNEL __launch_bounds__(256) lion(const Param *params, const u32 *first_block, u32 count, const Step *step) {
    if (step->stopped) return;
    const u32 which = param_of(first_block, count);
    const Param param = params[which];
    const float lr = step->numbers[0], decay = step->numbers[1], b1 = step->numbers[2], one_b1 = step->numbers[3],
                b2 = step->numbers[4], one_b2 = step->numbers[5], scale = step->grad_scale;
    MOM *average = (MOM *)param.state0;
    each_eight(param, first_block[which], [&](const Eight &eight) {
        float weight[8], grad[8], m[8];
        read_eight(param.grad, eight, grad);
        read_eight(average, eight, m);
        read_weights(param, eight, weight);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float g = grad[k] * scale, blend = b1 * m[k] + one_b1 * g;
            // Nothing moves where the blend is zero.
            weight[k] = weight[k] * decay - lr * (blend > 0.0f ? 1.0f : blend < 0.0f ? -1.0f : 0.0f);
            m[k] = b2 * m[k] + one_b2 * g;
        }
        write_randomly(average, param, step, 1, eight, m);
        write_weights(param, step, eight, weight);
    });
}
