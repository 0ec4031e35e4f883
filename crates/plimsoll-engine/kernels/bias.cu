// T5's relative position bias: a table by bucket and head, expanded to a vector by distance, and back.
//
// bias_expand(table, bucket, delta, heads, span)                         ceil(heads * span / 256) of 256
// bias_collect(ddelta, bucket, table_grad, write, heads, span, step)     (buckets, heads) of 256
#include "reduce.cuh"
#include "step.cuh"

KERNEL bias_expand(const WGT *table, const u32 *bucket, float *delta, u32 heads, u32 span) {
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < heads * span) delta[at] = wide(table[bucket[at % span] * heads + at / span]);
}

KERNEL bias_collect(const float *ddelta, const u32 *bucket, GRD *table_grad, u32 write, u32 heads, u32 span, const Step *step) {
    float sum = 0.0f;
    for (u32 at = threadIdx.x; at < span; at += blockDim.x) {
        if (bucket[at] == blockIdx.x) sum += ddelta[(u64)blockIdx.y * span + at];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        GRD *into = table_grad + blockIdx.x * heads + blockIdx.y;
        narrow(sum + (adds(write, step) ? wide(*into) : 0.0f), *into);
    }
}
