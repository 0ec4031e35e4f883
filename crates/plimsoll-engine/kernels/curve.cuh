// The activation functions and their slopes.
#pragma once
#include "number.cuh"

#define GELU_ROOT 0.7978846f // sqrt(2 / pi)

HERE float gelu_inner(float x) { return GELU_ROOT * (x + 0.044715f * x * x * x); }

/// Hugging Face's `gelu_new`: the tanh form.
HERE float gelu(float x) { return 0.5f * x * (1.0f + tanhf(gelu_inner(x))); }

HERE float gelu_with_slope(float x, float &slope) {
    const float t = tanhf(gelu_inner(x));
    slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_ROOT * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * x * (1.0f + t);
}

HERE float silu(float x) { return x / (1.0f + expf(-x)); }

HERE float silu_with_slope(float x, float &slope) {
    const float sigmoid = 1.0f / (1.0f + expf(-x));
    slope = sigmoid * (1.0f + x * (1.0f - sigmoid));
    return x * sigmoid;
}

HERE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// The normal distribution's share below `x`.
HERE float share_below(float x) { return 0.5f * erfcf(-0.70710678f * x); }

/// The exact GELU (`torch.nn.GELU`).
HERE float gelu_erf(float x) { return x * share_below(x); }

HERE float gelu_erf_slope(float x) { return share_below(x) + x * expf(-0.5f * x * x) * 0.3989423f; } // 1 / sqrt(2 pi)
