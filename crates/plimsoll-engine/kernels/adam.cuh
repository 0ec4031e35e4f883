// The arithmetic of AdamW, whatever the moments are stored in.
#pragma once
#include "update.cuh"

struct Adam {
    float decay, size, root, one_b1, b2, one_b2, eps, scale;

    __device__ explicit Adam(const Step *step)
        : decay(step->numbers[0]), size(step->numbers[1]), root(step->numbers[2]), one_b1(step->numbers[3]), b2(step->numbers[4]),
          one_b2(step->numbers[5]), eps(step->numbers[6]), scale(step->grad_scale) {}

    /// The new weight; the moments are changed.
    __device__ float update(float weight, float grad, float &m, float &v) const {
        const float g = grad * scale;
        m += (g - m) * one_b1;
        v = v * b2 + one_b2 * g * g;
        return weight * decay - size * (m / (sqrtf(v) / root + eps));
    }
};
