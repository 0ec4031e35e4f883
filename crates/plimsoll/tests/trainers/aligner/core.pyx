# cython: language_level=3, boundscheck=False, wraparound=False
"""Monotonic alignment search, for a Piper package that comes without it.

Kim and others, "Glow-TTS", section 3.1: of all ways to give each frame one token, beginning with the first token,
ending with the last and never going back nor over one, the way of the largest sum. With Q(frame, token) the largest sum
of a way that ends there, Q(f, t) = value(f, t) + max(Q(f-1, t), Q(f-1, t-1)); the way is read back from the end.

A row of Q and one bit per cell (whether the way came from the token before) are kept; the values are left as they were.
"""

from libc.stdlib cimport calloc, free, malloc

cdef float NEVER = -1e30


cdef void align(int[:, ::1] path, const float[:, ::1] value, int frames, int tokens,
                float* best, char* moved) noexcept nogil:
    """Marks the best way in `path`. `best` holds `tokens` floats, `moved` a byte for each frame and token."""
    cdef int f, t
    cdef float stay, step
    for t in range(tokens):
        best[t] = NEVER
    best[0] = value[0, 0]
    for f in range(1, frames):
        # From the last token to the first, so that `best[t - 1]` is still that of the frame before.
        for t in range(min(f, tokens - 1), -1, -1):
            stay = best[t]
            step = best[t - 1] if t > 0 else NEVER
            moved[f * tokens + t] = step > stay
            best[t] = value[f, t] + max(stay, step)
    t = tokens - 1
    for f in range(frames - 1, -1, -1):
        path[f, t] = 1
        if t > 0 and moved[f * tokens + t]:
            t -= 1


def maximum_path_c(int[:, :, ::1] paths, const float[:, :, ::1] values, const int[::1] frames, const int[::1] tokens):
    """Writes ones into `paths` [sample, frame, token] where a frame belongs to a token."""
    cdef int sample
    cdef float* best = <float*> malloc(values.shape[2] * sizeof(float))
    cdef char* moved = <char*> calloc(values.shape[1] * values.shape[2], 1)
    try:
        if best == NULL or moved == NULL:
            raise MemoryError("alignment of {} frames and {} tokens".format(values.shape[1], values.shape[2]))
        with nogil:
            for sample in range(values.shape[0]):
                if frames[sample] > 0 and tokens[sample] > 0:
                    align(paths[sample], values[sample], frames[sample], tokens[sample], best, moved)
    finally:
        free(best)
        free(moved)
