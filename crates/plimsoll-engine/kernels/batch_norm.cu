// Statistics of batch norm: of the rows at hand, and running ones. Sums are taken in doubles, so that a mean far from zero costs no
// digits of the variance.
//
// batch_stats_partial(x, partial, width, rows)                                   (ceil(width / 64), chunks) of 256
// batch_stats_finish(partial, chunks, width, eps, momentum, stats, running, rows, step)  ceil(width / 32) of 256
// running_stats(mean, variance, stats, width, eps)                               any grid of 256
// commit(from, to, count, step)                                                  any grid of 256
//
// partial[chunks, 2, width] doubles: sums and sums of squares. stats: means, then inverse deviations.
#include "step.cuh"
#include "reduce.cuh"

KERNEL batch_stats_partial(const ACT *x, double *partial, u32 width, const u32 *rows) {
    __shared__ double sums[8][64][2];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * 64 + lane;
    const Chunk chunk = chunk_of(*rows, blockIdx.y, gridDim.y);
    double sum[2] = {}, squares[2] = {};
#pragma unroll 4
    for (u32 row = chunk.first + warp; row < chunk.end; row += 8) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (col + 32 * i < width) {
                const double value = (double)wide(x[(u64)row * width + col + 32 * i]);
                sum[i] += value;
                squares[i] += value * value;
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        sums[warp][lane + 32 * i][0] = sum[i];
        sums[warp][lane + 32 * i][1] = squares[i];
    }
    __syncthreads();
    const u32 mine = blockIdx.x * 64 + threadIdx.x % 64, which = threadIdx.x / 64;
    if (which < 2 && mine < width) {
        double all = 0.0;
        for (u32 w = 0; w < 8; w++) all += sums[w][threadIdx.x % 64][which];
        partial[((u64)blockIdx.y * 2 + which) * width + mine] = all;
    }
}

/// Mean, variance and number of batches: as they are, and behind this update.
struct Running {
    const float *now[3];
    float *next[3];
};

KERNEL batch_stats_finish(const double *partial, u32 chunks, u32 width, float eps, float momentum, float *stats, Running running,
                          const u32 *rows, const Step *step) {
    __shared__ double sums[8][32][2];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
    double sum = 0.0, squares = 0.0;
    if (col < width) {
        for (u32 chunk = warp; chunk < chunks; chunk += 8) {
            sum += partial[(u64)chunk * 2 * width + col];
            squares += partial[((u64)chunk * 2 + 1) * width + col];
        }
    }
    sums[warp][lane][0] = sum;
    sums[warp][lane][1] = squares;
    __syncthreads();
    if (warp > 0 || col >= width) return;
    sum = squares = 0.0;
    for (u32 w = 0; w < 8; w++) {
        sum += sums[w][lane][0];
        squares += sums[w][lane][1];
    }
    const double count = (double)max(*rows, 1u), share = (double)momentum, mean = sum / count;
    const double plain = squares / count - mean * mean, variance = plain < 0.0 ? 0.0 : plain;
    stats[col] = (float)mean;
    stats[width + col] = (float)(1.0 / sqrt(variance + (double)eps));
    // A later micro-batch of an update goes on from the one before it.
    const bool first = step->first_micro;
    const float mean_now = first ? running.now[0][col] : running.next[0][col];
    const float variance_now = first ? running.now[1][col] : running.next[1][col];
    const double whole = variance * count / (count - 1.0 < 1.0 ? 1.0 : count - 1.0);
    running.next[0][col] = (float)((1.0 - share) * (double)mean_now + share * mean);
    running.next[1][col] = (float)((1.0 - share) * (double)variance_now + share * whole);
    if (col == 0) running.next[2][0] = (first ? running.now[2][0] : running.next[2][0]) + 1.0f;
}

KERNEL running_stats(const float *mean, const float *variance, float *stats, u32 width, float eps) {
    for (u32 col = blockIdx.x * blockDim.x + threadIdx.x; col < width; col += gridDim.x * blockDim.x) {
        stats[col] = mean[col];
        stats[width + col] = (float)(1.0 / sqrt((double)variance[col] + (double)eps));
    }
}

/// Running statistics move on with the weights: an update that comes to nothing leaves them.
KERNEL commit(const float *from, float *to, u32 count, const Step *step) {
    if (step->stopped) return;
    for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) to[at] = from[at];
}
