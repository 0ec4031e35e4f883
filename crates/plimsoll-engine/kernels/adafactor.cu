// Adafactor, as `transformers.Adafactor` computes it: of a matrix' second moment one number a row and one a column are kept.
//
// adafactor_rows(params, first_block, count, step)       ceil(rows / 8) blocks of 256 a matrix, 1 a vector
// adafactor_columns(params, first_block, count, step)    16 * ceil(cols / 64) blocks of 256 a matrix, none a vector
// adafactor_factors(params, count, step)                 count blocks of 1024
// adafactor_size(params, first_block, count, step)       as adafactor_rows
// adafactor_numbers(params, count, step)                 count blocks of 1024
// adafactor_apply(params, first_block, count, step)      ceil(elements / 4096) blocks of 256
//
// In this order, for one parameter or many. Scratch of a matrix, 2 * rows + 17 * cols + 8 words: 8 for the numbers of the last pass,
// [rows] sums and then factors of rows, [rows] squares of the weight's rows and then of the update's, [cols] factors of columns,
// [16, cols] sums of columns. Of a vector, 8 words.
#include "reduce.cuh"
#include "update.cuh"

#define CHUNKS 16

/// Where the parts of a matrix' scratch lie.
struct Scratch {
    float *numbers, *row, *squares, *col, *partial;

    __device__ explicit Scratch(const Param &param)
        : numbers(param.scratch), row(numbers + 8), squares(row + param.rows), col(squares + param.rows), partial(col + param.cols) {}
};

struct Rates {
    double lr, eps0, eps1, clip_threshold, beta2, weight_decay, beta1, scale_parameter;

    __device__ explicit Rates(const Step *step)
        : lr(step->rates[0]), eps0(step->rates[1]), eps1(step->rates[2]), clip_threshold(step->rates[3]), beta2(step->rates[4]),
          weight_decay(step->rates[5]), beta1(step->rates[6]), scale_parameter(step->rates[7]) {}

    /// The numbers of the last pass: factor on the gradient, factor on the weight, beta1.
    __device__ void leave(double update_squares, double weight_squares, u64 elements, float grad_scale, float *numbers) const {
        const double rms = sqrt(update_squares / (double)elements);
        const double clip = fmax(rms / clip_threshold, 1.0);
        const double rate = scale_parameter != 0.0 ? lr * fmax(sqrt(weight_squares / (double)elements), eps1) : lr;
        numbers[0] = (float)(rate / clip) * grad_scale;
        numbers[1] = (float)(1.0 - weight_decay * rate);
        numbers[2] = (float)beta1;
    }
};

/// The second moment of a vector is kept whole; one block does all of it but the last pass.
HERE void whole_vector(const Param &param, const Step *step) {
    const Rates rates(step);
    const float keep = (float)rates.beta2, take = (float)(1.0 - rates.beta2), eps = (float)rates.eps0, scale = step->grad_scale;
    float *square = (float *)param.state0;
    double size = 0.0, squares = 0.0;
    for (u64 at = threadIdx.x; at < param.elements; at += blockDim.x) {
        const float g = wide(param.grad[at]) * scale;
        const float state = square[at] * keep + take * (g * g + eps);
        square[at] = state;
        const double u = (double)(g / sqrtf(state)), w = (double)read_weight(param, at);
        size += u * u;
        squares += w * w;
    }
    size = block_sum(size);
    squares = block_sum(squares);
    if (threadIdx.x == 0) rates.leave(size, squares, param.elements, scale, param.scratch);
}

KERNEL adafactor_rows(const Param *params, const u32 *first_block, u32 count, const Step *step) {
    if (step->stopped) return;
    const u32 which = param_of(first_block, count);
    const Param param = params[which];
    if (!(param.flags & MATRIX)) return whole_vector(param, step);
    const Scratch scratch(param);
    const float scale = step->grad_scale, eps = (float)step->rates[1];
    const bool weigh = step->rates[7] != 0.0;
    const u32 row = (blockIdx.x - first_block[which]) * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= param.rows) return;
    const u64 first = (u64)row * param.cols;
    float sum = 0.0f, squares = 0.0f;
    for (u32 col = lane; col < param.cols; col += 32) {
        const float g = wide(param.grad[first + col]) * scale;
        sum += g * g + eps;
        if (weigh) {
            const float w = read_weight(param, first + col);
            squares = fmaf(w, w, squares);
        }
    }
    sum = warp_sum(sum);
    squares = warp_sum(squares);
    if (lane == 0) {
        scratch.row[row] = sum;
        scratch.squares[row] = squares;
    }
}

KERNEL __launch_bounds__(256) adafactor_columns(const Param *params, const u32 *first_block, u32 count, const Step *step) {
    __shared__ float sums[8][64];
    if (step->stopped) return;
    const u32 which = param_of(first_block, count);
    const Param param = params[which];
    const Scratch scratch(param);
    const float scale = step->grad_scale, eps = (float)step->rates[1];
    const u32 here = blockIdx.x - first_block[which], across = (param.cols + 63) / 64;
    const u32 begin = here % across * 64, nth = here / across;
    const Chunk chunk = chunk_of(param.rows, nth, CHUNKS);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float low = 0.0f, high = 0.0f;
    for (u32 row = chunk.first + warp; row < chunk.end; row += 8) {
        const GRD *from = param.grad + (u64)row * param.cols;
        const u32 col = begin + lane * 2;
        if (col < param.cols) {
            const float g = wide(from[col]) * scale;
            low += g * g + eps;
        }
        if (col + 1 < param.cols) {
            const float g = wide(from[col + 1]) * scale;
            high += g * g + eps;
        }
    }
    sums[warp][lane * 2] = low;
    sums[warp][lane * 2 + 1] = high;
    __syncthreads();
    const u32 col = begin + threadIdx.x;
    if (threadIdx.x < 64 && col < param.cols) {
        float sum = 0.0f;
        for (u32 w = 0; w < 8; w++) sum += sums[w][threadIdx.x];
        scratch.partial[(u64)nth * param.cols + col] = sum;
    }
}

KERNEL __launch_bounds__(1024) adafactor_factors(const Param *params, u32, const Step *step) {
    if (step->stopped) return;
    const Param param = params[blockIdx.x];
    if (!(param.flags & MATRIX)) return;
    const Scratch scratch(param);
    const double beta2 = step->rates[4];
    const float keep = (float)beta2, take = (float)(1.0 - beta2);
    float *row_state = (float *)param.state0, *col_state = (float *)param.state1;
    double sum = 0.0, squares = 0.0;
    for (u32 row = threadIdx.x; row < param.rows; row += blockDim.x) {
        const float state = row_state[row] * keep + take * (scratch.row[row] / (float)param.cols);
        row_state[row] = state;
        sum += (double)state;
        squares += (double)scratch.squares[row];
    }
    const float mean = (float)(block_sum(sum) / (double)param.rows);
    squares = block_sum(squares);
    for (u32 row = threadIdx.x; row < param.rows; row += blockDim.x) scratch.row[row] = 1.0f / sqrtf(row_state[row] / mean);
    for (u32 col = threadIdx.x; col < param.cols; col += blockDim.x) {
        float of_col = 0.0f;
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) of_col += scratch.partial[(u64)chunk * param.cols + col];
        const float state = col_state[col] * keep + take * (of_col / (float)param.rows);
        col_state[col] = state;
        scratch.col[col] = 1.0f / sqrtf(state);
    }
    // A double, for the pass after next; the numbers begin at a multiple of 8 bytes.
    if (threadIdx.x == 0) reinterpret_cast<double *>(scratch.numbers)[2] = squares;
}

KERNEL adafactor_size(const Param *params, const u32 *first_block, u32 count, const Step *step) {
    if (step->stopped) return;
    const u32 which = param_of(first_block, count);
    const Param param = params[which];
    if (!(param.flags & MATRIX)) return;
    const Scratch scratch(param);
    const float scale = step->grad_scale;
    const u32 row = (blockIdx.x - first_block[which]) * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= param.rows) return;
    const u64 first = (u64)row * param.cols;
    const float of_row = scratch.row[row];
    float sum = 0.0f;
    for (u32 col = lane; col < param.cols; col += 32) {
        const float u = wide(param.grad[first + col]) * scale * of_row * scratch.col[col];
        sum = fmaf(u, u, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) scratch.squares[row] = sum;
}

KERNEL __launch_bounds__(1024) adafactor_numbers(const Param *params, u32, const Step *step) {
    if (step->stopped) return;
    const Param param = params[blockIdx.x];
    if (!(param.flags & MATRIX)) return;
    const Scratch scratch(param);
    double size = 0.0;
    for (u32 row = threadIdx.x; row < param.rows; row += blockDim.x) size += (double)scratch.squares[row];
    size = block_sum(size);
    if (threadIdx.x == 0) {
        const double squares = reinterpret_cast<double *>(scratch.numbers)[2];
        Rates(step).leave(size, squares, param.elements, step->grad_scale, scratch.numbers);
    }
}

KERNEL __launch_bounds__(256) adafactor_apply(const Param *params, const u32 *first_block, u32 count, const Step *step) {
    if (step->stopped) return;
    const u32 which = param_of(first_block, count);
    const Param param = params[which];
    const Scratch scratch(param);
    const float scale = scratch.numbers[0], keep = scratch.numbers[1], beta1 = scratch.numbers[2];
    const float *square = (const float *)param.state0;
    float *average = (float *)param.state2;
    each_eight(param, first_block[which], [&](const Eight &eight) {
        float weight[8], update[8];
        read_eight(param.grad, eight, update);
        read_weights(param, eight, weight);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const u64 at = eight.at(k);
            if (!eight.there(k)) continue;
            if (param.flags & MATRIX) {
                const u64 row = param.elements >> 32 ? at / param.cols : (u32)at / param.cols;
                update[k] *= scratch.row[row] * scale * scratch.col[at - row * param.cols];
            } else {
                update[k] *= scale / sqrtf(square[at]);
            }
        }
        if (average) {
            float old[8];
            read_eight(average, eight, old);
#pragma unroll
            for (int k = 0; k < 8; k++) update[k] = old[k] * beta1 + (1.0f - beta1) * update[k];
            write_eight(average, eight, update);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) weight[k] = weight[k] * keep - update[k];
        write_weights(param, step, eight, weight);
    });
}
