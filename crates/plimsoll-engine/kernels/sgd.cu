// SGD, as `torch.optim.SGD` computes it; without a buffer there is no momentum.
//
// sgd(params, first_block, count, step)          first_block[count] blocks of 256
#include "update.cuh"

KERNEL __launch_bounds__(256) sgd(const Param *params, const u32 *first_block, u32 count, const Step *step) {
    if (step->stopped) return;
    const u32 which = param_of(first_block, count);
    const Param param = params[which];
    const float lr = step->numbers[0], decay = step->numbers[1], keep = step->numbers[2], take = step->numbers[3],
                momentum = step->numbers[4], scale = step->grad_scale;
    const bool nesterov = step->numbers[5] != 0.0f;
    MOM *buffer = (MOM *)param.state0;
    each_eight(param, first_block[which], [&](const Eight &eight) {
        float weight[8], grad[8], kept[8] = {};
        read_eight(param.grad, eight, grad);
        if (buffer) read_eight(buffer, eight, kept);
        read_weights(param, eight, weight);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float g = grad[k] * scale + decay * weight[k];
            kept[k] = keep * kept[k] + take * g;
            weight[k] -= lr * (!buffer ? g : nesterov ? g + momentum * kept[k] : kept[k]);
        }
        if (buffer) write_randomly(buffer, param, step, 1, eight, kept);
        write_weights(param, step, eight, weight);
    });
}
