// Copies, and zeroes where something is to begin at zero.
//
// copy_columns(from, from_stride, to, to_stride, width, rows)            any grid of 256
// clear_tails(x, x_stride, x_width, y, y_stride, y_width, rows, max_rows)  (any, 1 for x alone, 2 for both) of 256
// clear(words, count, write, step)                                       any grid of 256
// gather_rows(from, index, to, width, first, limit, count)               any grid of 256
// scatter_rows(from, index, to, width, first, limit, count)              any grid of 256
// cast_weights(from, to, count)                                          any grid of 256
// cast_gradient(from, to, count, write, step)                            any grid of 256
#include "step.cuh"

KERNEL copy_columns(const ACT *from, u32 from_stride, ACT *to, u32 to_stride, u32 width, const u32 *rows) {
    each_piece(width % VEC == 0 && from_stride % VEC == 0 && to_stride % VEC == 0 && whole(from) && whole(to), *rows, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V];
        load<V>(from + (u64)row * from_stride + col, values);
        store<V>(to + (u64)row * to_stride + col, values);
    });
}

KERNEL clear_tails(ACT *x, u32 x_stride, u32 x_width, ACT *y, u32 y_stride, u32 y_width, const u32 *rows, u32 max_rows) {
    const u32 count = *rows;
    if (count >= max_rows) return;
    ACT *const to = blockIdx.y == 0 ? x : y;
    const u32 stride = blockIdx.y == 0 ? x_stride : y_stride, width = blockIdx.y == 0 ? x_width : y_width;
    each_piece(width % VEC == 0 && stride % VEC == 0 && whole(to), max_rows - count, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        const float zeros[V] = {};
        store<V>(to + (u64)(count + row) * stride + col, zeros);
    });
}

KERNEL clear(u32 *words, u64 count, u32 write, const Step *step) {
    if (adds(write, step)) return;
    const u64 begin = (u64)blockIdx.x * blockDim.x + threadIdx.x, apart = (u64)gridDim.x * blockDim.x;
    if (whole(words)) {
        for (u64 i = begin; i < count / 4; i += apart) reinterpret_cast<uint4 *>(words)[i] = uint4{0, 0, 0, 0};
        if (begin < count % 4) words[count / 4 * 4 + begin] = 0;
    } else {
        for (u64 i = begin; i < count; i += apart) words[i] = 0;
    }
}

KERNEL gather_rows(const ACT *from, const u32 *index, ACT *to, u32 width, u32 first, u32 limit, const u32 *count) {
    const u32 all = *count;
    each_piece(width % VEC == 0 && whole(from) && whole(to), limit, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        float values[V] = {};
        if (first + row < all) load<V>(from + (u64)index[first + row] * width + col, values);
        store<V>(to + (u64)row * width + col, values);
    });
}

KERNEL scatter_rows(const ACT *from, const u32 *index, ACT *to, u32 width, u32 first, u32 limit, const u32 *count) {
    const u32 all = *count;
    each_piece(width % VEC == 0 && whole(from) && whole(to), limit, width, [&](auto v, u32 row, u32 col) {
        constexpr int V = decltype(v)::value;
        if (first + row < all) {
            float values[V];
            load<V>(from + (u64)row * width + col, values);
            store<V>(to + (u64)index[first + row] * width + col, values);
        }
    });
}

KERNEL cast_weights(const float *from, WGT *to, u64 count) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) narrow(from[i], to[i]);
}

KERNEL cast_gradient(const ACT *from, GRD *to, u64 count, u32 write, const Step *step) {
    const bool add = adds(write, step);
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        narrow(wide(from[i]) + (add ? wide(to[i]) : 0.0f), to[i]);
    }
}
