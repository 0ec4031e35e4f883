// The loss of each sample of a series, and the gradients of the answers: of its class, of how sure the model is of it, and of values. A
// few numbers a sample, in doubles; a thread takes a sample. `loss_total` of loss.cu adds the losses up.
//
// series_loss(Answer classes, Answer confidence, Answer values, Terms, classes_of, values_of, facts, class_weights, losses, samples,
//             step)                                                               any grid of 256
//
// facts as in windows.cu; values that are not known are NaN, classes 0xFFFFFFFF.
#include "step.cuh"

#define IGNORE 0xFFFFFFFFu

/// A head's outputs, and where their gradients go; both null where there is none.
struct Answer {
    const ACT *out;
    ACT *grad;
    u32 outputs;
    u32 zero;
};

/// Factors of the loss.
struct Terms {
    float label_smoothing, focal_gamma, classes, confidence, values;
    u32 class_weights;
};

HERE void add_to(const Answer &answer, u32 sample, u32 at, double value, float scale) {
    if (!answer.grad) return;
    ACT &to = answer.grad[(u64)sample * answer.outputs + at];
    narrow(wide(to) + (float)value * scale, to);
}

HERE double output(const Answer &answer, u32 sample, u32 at) { return (double)wide(answer.out[(u64)sample * answer.outputs + at]); }

/// Share of class `at` in what is wanted, times the weight of that class.
HERE double wanted_share(const Terms &terms, const float *weights, u32 count, u32 label, u32 at) {
    const double smooth = (double)terms.label_smoothing, weight = at < terms.class_weights ? (double)weights[at] : 1.0;
    return weight * (smooth / count + (at == label ? 1.0 - smooth : 0.0));
}

/// Cross entropy with smoothed labels, each weighted by its own class, times `(1 - p) ^ gamma`.
HERE double class_loss(const Answer &answer, const Terms &terms, const float *weights, u32 sample, u32 label, double share, float scale) {
    const u32 count = answer.outputs;
    double most = output(answer, sample, 0), sum = 0.0, entropy = 0.0, whole = 0.0;
    for (u32 at = 1; at < count; at++) most = fmax(most, output(answer, sample, at));
    for (u32 at = 0; at < count; at++) sum += exp(output(answer, sample, at) - most);
    const double gamma = (double)terms.focal_gamma, log_sum = log(sum), factor = (double)terms.classes;
    for (u32 at = 0; at < count; at++) {
        const double target = wanted_share(terms, weights, count, label, at);
        entropy -= target * (output(answer, sample, at) - most - log_sum);
        whole += target;
    }
    const double p = exp(output(answer, sample, label) - most - log_sum);
    // Of an answer that is sure to the last digit nothing is left, whatever the power says of its slope.
    const bool sure = p == 1.0;
    const double focus = gamma == 0.0 ? 1.0 : sure ? 0.0 : pow(1.0 - p, gamma);
    const double slope = gamma == 0.0 || sure ? 0.0 : -gamma * pow(1.0 - p, gamma - 1.0);
    for (u32 at = 0; at < count; at++) {
        const double share_of = exp(output(answer, sample, at) - most) / sum, target = wanted_share(terms, weights, count, label, at);
        const double of_p = p * ((at == label ? 1.0 : 0.0) - share_of);
        add_to(answer, sample, at, factor * share * (focus * (whole * share_of - target) + entropy * slope * of_p), scale);
    }
    return factor * focus * entropy;
}

HERE double confidence_loss(const Answer &answer, const Terms &terms, u32 sample, bool right, double share, float scale) {
    const double sure = 1.0 / (1.0 + exp(-output(answer, sample, 0))), apart = sure - (right ? 1.0 : 0.0);
    const double factor = (double)terms.confidence;
    add_to(answer, sample, 0, share * factor * 2.0 * apart * sure * (1.0 - sure), scale);
    return factor * apart * apart;
}

/// Squared near the value, straight from one on; a mean over the values.
HERE double value_loss(const Answer &answer, const Terms &terms, u32 sample, const float *wanted, double share, float scale) {
    const double factor = (double)terms.values / (double)answer.outputs;
    double total = 0.0;
    for (u32 at = 0; at < answer.outputs; at++) {
        if (is_nan(wanted[at])) continue;
        const double apart = output(answer, sample, at) - (double)wanted[at];
        const bool near = fabs(apart) < 1.0;
        total += near ? 0.5 * apart * apart : fabs(apart) - 0.5;
        add_to(answer, sample, at, share * factor * (near ? apart : apart < 0.0 ? -1.0 : apart > 0.0 ? 1.0 : apart), scale);
    }
    return factor * total;
}

KERNEL series_loss(Answer classes, Answer confidence, Answer values, Terms terms, const u32 *classes_of, const float *values_of,
                   const u32 *facts, const float *class_weights, float *losses, const u32 *samples, const Step *step) {
    const u32 count = *samples, shift = facts[1];
    const float scale = step->loss_scale;
    const double mixed = (double)__int_as_float((int)facts[0]);
    for (u32 sample = blockIdx.x * blockDim.x + threadIdx.x; sample < count; sample += gridDim.x * blockDim.x) {
        const float none[1] = {0.0f};
        for (u32 at = 0; classes.grad && at < classes.outputs; at++) store<1>(classes.grad + (u64)sample * classes.outputs + at, none);
        for (u32 at = 0; confidence.grad && at < confidence.outputs; at++) {
            store<1>(confidence.grad + (u64)sample * confidence.outputs + at, none);
        }
        for (u32 at = 0; values.grad && at < values.outputs; at++) store<1>(values.grad + (u64)sample * values.outputs + at, none);
        double total = 0.0;
        for (u32 which = 0; which < (shift ? 2u : 1u); which++) {
            const u32 other = which ? (sample + shift) % count : sample;
            const double share = !shift ? 1.0 : which ? 1.0 - mixed : mixed;
            const u32 label = classes_of[other];
            if (classes.out && label != IGNORE) {
                u32 likeliest = 0;
                for (u32 at = 1; at < classes.outputs; at++) {
                    if (output(classes, sample, at) > output(classes, sample, likeliest)) likeliest = at;
                }
                total += share * class_loss(classes, terms, class_weights, sample, label, share, scale);
                if (confidence.out) total += share * confidence_loss(confidence, terms, sample, likeliest == label, share, scale);
            }
            if (values.out) total += share * value_loss(values, terms, sample, values_of + (u64)other * values.outputs, share, scale);
        }
        losses[sample] = (float)total;
    }
}
