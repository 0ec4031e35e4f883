#!/usr/bin/env python3
"""Runs the kernels on the CPU and compares them with numpy in double precision. Needs g++ and numpy, no card.

Usage: test_ops.py [name ...]
"""

import sys

import numpy as np
from emulate import Attention, Cached, Drop, Module, Param, Step, from_bf16, read, store

RNG = np.random.default_rng(7)
NONE = Drop()


def philox(seed, counter, sample, place, update):
    """Four words of each counter; arguments are broadcast."""
    c = [np.asarray(x, np.uint64) & np.uint64(0xFFFFFFFF) for x in np.broadcast_arrays(counter, sample, place, update)]
    k0, k1, low = seed & 0xFFFFFFFF, seed >> 32, np.uint64(0xFFFFFFFF)
    for _ in range(7):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        high = np.uint64(32)
        c = [(b >> high) ^ c[1] ^ np.uint64(k0), b & low, (a >> high) ^ c[3] ^ np.uint64(k1), a & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def factors(step, sample, place, row, width, threshold, scale):
    """Dropout factors of one row, as `Dropper::row` gives them."""
    blocks = -(-width // 64)
    out = np.zeros(blocks * 64)
    for block in range(blocks):
        counter = (row * blocks + block) * 16
        words = philox(step.seed, np.arange(16) + (counter & 0xFFFFFFFF), sample, place ^ ((counter >> 32) << 20), step.update)
        out[block * 64 : block * 64 + 64] = np.concatenate(words)
    return np.where(out[:width] < threshold, 0.0, scale)


def a_step(**more):
    step = Step(seed=0x123456789ABCDEF, update=5, first_micro=1, mean=1.0, grad_scale=0.5, loss_scale=1.0)
    for name, value in more.items():
        setattr(step, name, value)
    return step


class Rows:
    """Rows of two samples, with a dropout on them."""

    def __init__(self, count, rate=0.3):
        self.count = count
        self.rows = store(np.array([count], np.uint32), "")
        self.sample = store(np.array([3 if i < count // 2 else 4 for i in range(count)], np.uint32), "")
        self.position = store(np.array([i % max(count // 2, 1) for i in range(count)], np.uint32), "")
        self.rate = rate
        self.threshold, self.scale = int(rate * 2**32), np.float32(1 / (1 - np.float32(rate)))

    def drop(self, place=9):
        return Drop(self.sample.ctypes.data, self.position.ctypes.data, place, self.threshold, self.scale, 0)

    def factors(self, step, width, place=9):
        return np.array(
            [factors(step, int(s), place, int(p), width, self.threshold, self.scale) for s, p in zip(self.sample, self.position)]
        )


def normal(*shape):
    return RNG.standard_normal(shape)


def close(what, got, want, kind="float", tolerance=None):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    tolerance = tolerance or {"float": 2e-6, "bf16": 1e-2, "f16": 2e-3}[kind]
    assert np.isfinite(got).all(), f"{what}: not finite"
    error = np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30)
    assert error < tolerance, f"{what}: {error:.2e}"


KINDS = ["float", "bf16", "f16"]


def each(widths=(64, 192, 40, 7)):
    return [(kind, width) for kind in KINDS for width in widths]


def test_the_generator_is_philox():
    words = [int(w) for w in philox(0, 0, 0, 0, 0)]
    assert words == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]


def test_embed():
    for kind, width in each():
        module, rows, step = Module("embed.cu", kind), Rows(37), a_step()
        table, places = store(normal(50, width), kind), store(normal(60, width), kind)
        ids = store(RNG.integers(0, 12, 37).astype(np.uint32), "")
        at = store(RNG.integers(0, 60, 37).astype(np.uint32), "")
        out = store(np.zeros((37, width)), kind)
        module.run("embed_forward", 3, ids, table, at, places, out, width, rows.rows, rows.drop(), step)
        want = (read(table, kind)[ids] + read(places, kind)[at]) * rows.factors(step, width)
        close("embed", read(out, kind), want, kind)
        order, spare = store(np.zeros(37, np.uint32), ""), store(np.zeros(74, np.uint32), "")
        module.run("embed_sort", 1, ids, order, spare, rows.rows, block=1024)
        assert (order == np.argsort(ids, kind="stable")).all()
        grad, table_grad = store(normal(37, width), kind), store(np.ones((50, width), np.float32), "float")
        skip = int(ids[3])
        module.run("embed_backward", (40, -(-width // 256)), ids, order, grad, table_grad, width, skip, rows.rows, rows.drop(), step)
        want = np.ones((50, width))
        given = read(grad, kind) * rows.factors(step, width)
        for row in range(37):
            if ids[row] != skip:
                want[ids[row]] += given[row]
        close("embed gradient", table_grad, want)


def test_sort_of_many_ids():
    module = Module("embed.cu")
    count = 5000
    ids = store((RNG.zipf(1.3, count) % 151936).astype(np.uint32), "")
    order, spare = store(np.zeros(count, np.uint32), ""), store(np.zeros(2 * count, np.uint32), "")
    module.run("embed_sort", 1, ids, order, spare, store(np.array([count], np.uint32), ""), block=1024)
    assert (order == np.argsort(ids, kind="stable")).all()


def sum_columns(partial, chunks, width, start=None):
    grad = store(np.full(width, 0.0 if start is None else start), "float")
    Module("column_sum.cu").run("sum_partials", -(-width // 32), partial, chunks, width, grad, 0 if start is None else 2, a_step())
    return grad


def test_norm():
    for kind, width in each((64, 320, 300, 7)):
        module, rows, step = Module("norm.cu", kind), Rows(21), a_step()
        x, y, weight = store(normal(21, width), kind), store(normal(21, width), kind), store(normal(width), kind)
        rstd, out, given = store(np.zeros(21), "float"), store(np.zeros((21, width)), kind), store(y, "")
        xs, w, eps = read(x, kind).astype(np.float64), read(weight, kind).astype(np.float64), 1e-5
        module.run("norm_forward", 2, x, weight, rstd, out, width, eps, rows.rows, rows.drop(), step)
        inverse = 1 / np.sqrt((xs**2).mean(1) + eps)
        close("rstd", rstd, inverse)
        close("norm", read(out, kind), xs * inverse[:, None] * w * rows.factors(step, width), kind)
        again = store(np.zeros((21, width)), kind)
        module.run("norm_apply", 2, x, weight, rstd, again, width, rows.rows, rows.drop(), step)
        assert (again == out).all(), "norm_apply is bit-equal"
        dy, dx = store(normal(21, width), kind), store(normal(21, width), kind)
        dys, before = read(dy, kind).astype(np.float64), read(dx, kind).astype(np.float64)
        module.run("norm_backward", 2, dy, x, weight, rstd, dx, 1, width, rows.rows)
        hat = xs * inverse[:, None]
        want = before + inverse[:, None] * (dys * w - hat * (dys * w * hat).mean(1, keepdims=True))
        close("norm dx", read(dx, kind), want, kind)
        partial = store(np.zeros((5, width)), "float")
        module.run("norm_weight_partial", (-(-width // 64), 5), dy, x, rstd, partial, width, rows.rows)
        close("norm dweight", sum_columns(partial, 5, width, 1.5), 1.5 + (dys * hat).sum(0))
        if width % 8 == 0:
            inplace, partial = store(dy, ""), store(np.full((3, width), np.nan), "float")
            module.run("norm_backward_both", 3, inplace, x, weight, rstd, inplace, 0, partial, width, rows.rows)
            close("norm dx in place", read(inplace, kind), want - before, kind)
            close("norm dweight with it", sum_columns(partial, 3, width, 1.5), 1.5 + (dys * hat).sum(0))
            dx = store(before, kind)
            module.run("norm_backward_both", 3, dy, x, weight, rstd, dx, 1, partial, width, rows.rows)
            close("norm dx with dweight", read(dx, kind), want, kind)
        module.run("norm_residual_forward", 2, x, y, weight, rstd, out, width, eps, rows.rows, rows.drop(), NONE, step)
        both = xs + read(given, kind) * rows.factors(step, width)
        close("residual", read(y, kind), both, kind)
        both = read(y, kind).astype(np.float64)
        close("norm of residual", read(out, kind), both / np.sqrt((both**2).mean(1, keepdims=True) + eps) * w, kind)


def test_layer_norm():
    for kind, width in each((64, 320, 300, 7)):
        module, rows, step = Module("layer_norm.cu", kind), Rows(21), a_step()
        x, y = store(normal(21, width) + 1, kind), store(normal(21, width), kind)
        weight, bias = store(normal(width), kind), store(normal(width), kind)
        stats, out, given = store(np.zeros((21, 2)), "float"), store(np.zeros((21, width)), kind), store(y, "")
        xs, w, b, eps = read(x, kind).astype(np.float64), read(weight, kind), read(bias, kind), 1e-5
        module.run("layer_norm_forward", 2, x, weight, bias, stats, out, width, eps, rows.rows)
        mean, inverse = xs.mean(1, keepdims=True), 1 / np.sqrt(xs.var(1, keepdims=True) + eps)
        close("stats", stats, np.concatenate([mean, inverse], 1))
        hat = (xs - mean) * inverse
        close("layer norm", read(out, kind), hat * w + b, kind)
        again = store(np.zeros((21, width)), kind)
        module.run("layer_norm_apply", 2, x, weight, bias, stats, again, width, rows.rows)
        assert (again == out).all(), "layer_norm_apply is bit-equal"
        dy, dx = store(normal(21, width), kind), store(np.full((21, width), np.nan), kind)
        dys = read(dy, kind).astype(np.float64)
        module.run("layer_norm_backward", 2, dy, x, weight, stats, dx, 0, width, rows.rows)
        g = dys * w
        want = inverse * (g - g.mean(1, keepdims=True) - hat * (g * hat).mean(1, keepdims=True))
        close("layer norm dx", read(dx, kind), want, kind)
        pw, pb = store(np.zeros((3, width)), "float"), store(np.zeros((3, width)), "float")
        module.run("layer_norm_weight_partial", (-(-width // 64), 3), dy, x, stats, pw, pb, width, rows.rows)
        close("layer norm dweight", sum_columns(pw, 3, width), (dys * hat).sum(0))
        close("layer norm dbias", sum_columns(pb, 3, width), dys.sum(0))
        module.run("layer_norm_residual_forward", 2, x, y, weight, bias, stats, out, width, eps, rows.rows, rows.drop(), step)
        both = xs + read(given, kind) * rows.factors(step, width)
        close("residual", read(y, kind), both, kind)
        both = read(y, kind).astype(np.float64)
        want = (both - both.mean(1, keepdims=True)) / np.sqrt(both.var(1, keepdims=True) + eps) * w + b
        close("layer norm of residual", read(out, kind), want, kind)


def test_column_sum_and_bias():
    for kind, width in each((64, 100)):
        module, rows = Module("column_sum.cu", kind), Rows(50)
        dy, partial = store(normal(50, width + 16), kind), store(np.zeros((4, width)), "float")
        module.run("column_sum_partial", (-(-width // 64), 4), dy, width + 16, partial, width, rows.rows)
        close("column sum", sum_columns(partial, 4, width), read(dy, kind)[:, :width].astype(np.float64).sum(0), tolerance=1e-5)
        bias, out = store(normal(width), kind), store(dy, "")
        module.run("bias_add", 2, bias, out, width + 16, width, rows.rows)
        close("bias", read(out, kind)[:, :width], read(dy, kind)[:, :width] + read(bias, kind), kind)
        assert (out[:, width:] == dy[:, width:]).all()


def test_head_norm():
    for kind, width in each((64, 20)):
        module, rows, heads, eps = Module("head_norm.cu", kind), Rows(13), 3, 1e-6
        stride = heads * width + 8
        x, weight, out = store(normal(13, stride), kind), store(normal(width), kind), store(np.zeros((13, stride)), kind)
        rstd = store(np.zeros((13, heads)), "float")
        module.run("head_norm_forward", 2, x, stride, weight, rstd, out, stride, heads, width, eps, rows.rows)
        xs = read(x, kind)[:, : heads * width].reshape(13, heads, width).astype(np.float64)
        w = read(weight, kind).astype(np.float64)
        inverse = 1 / np.sqrt((xs**2).mean(2) + eps)
        close("rstd", rstd, inverse)
        close("head norm", read(out, kind)[:, : heads * width].reshape(xs.shape), xs * inverse[..., None] * w, kind)
        dy, partial = store(normal(13, stride), kind), store(np.zeros((4, width)), "float")
        d = read(dy, kind)[:, : heads * width].reshape(xs.shape).astype(np.float64)
        module.run("head_norm_backward", 4, dy, stride, x, stride, weight, rstd, dy, stride, partial, heads, width, rows.rows)
        hat = xs * inverse[..., None]
        want = inverse[..., None] * (d * w - hat * (d * w * hat).mean(2, keepdims=True))
        close("head norm dx", read(dy, kind)[:, : heads * width].reshape(xs.shape), want, kind)
        close("head norm dweight", sum_columns(partial, 4, width), (d * hat).sum((0, 1)), tolerance=1e-5)


def test_rope():
    for kind, width in each((64, 12)):
        module, rows, heads = Module("rope.cu", kind), Rows(13), 3
        stride = heads * width + 16
        x, table = store(normal(13, stride), kind), store(normal(40, width), "float")
        at, before = store(RNG.integers(0, 40, 13).astype(np.uint32), ""), read(store(x, ""), kind).copy()
        for back in (0, 1):
            y = store(x, "")
            module.run("rope_turn", 2, at, table, y, stride, heads, width, back, rows.rows)
            part = before[:, : heads * width].reshape(13, heads, 2, width // 2)
            cos, sin = table[at][:, None, : width // 2], table[at][:, None, width // 2 :] * (-1 if back else 1)
            want = np.stack([part[:, :, 0] * cos - part[:, :, 1] * sin, part[:, :, 1] * cos + part[:, :, 0] * sin], 2)
            close("rope", read(y, kind)[:, : heads * width], want.reshape(13, -1), kind)
            assert (y[:, heads * width :] == x[:, heads * width :]).all()
        # With a bias, to some columns behind the heads too: the bits of both one by one.
        more, bias = 8, store(normal(heads * width + 8), "float")
        apart, together = store(x, ""), store(x, "")
        Module("column_sum.cu", kind, WGT="float").run("bias_add", 2, bias, apart, stride, heads * width + more, rows.rows)
        module.run("rope_turn", 2, at, table, apart, stride, heads, width, 0, rows.rows)
        Module("rope.cu", kind, WGT="float").run(
            "rope_turn_biased", 2, at, table, together, bias, stride, heads, width, more, rows.rows)
        assert (apart == together).all() and (apart != x).any()


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


def slope(f, x):
    return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5


def test_curves():
    for kind, width in each():
        rows, step = Rows(19), a_step()
        f = rows.factors(step, width)
        h, dh = store(normal(19, width), kind), store(normal(19, width), kind)
        hs, ds = read(store(h, ""), kind).astype(np.float64), read(store(dh, ""), kind).astype(np.float64)
        module, out = Module("gelu.cu", kind), store(np.zeros((19, width)), kind)
        module.run("gelu_forward", 2, h, out, width, rows.rows)
        close("gelu", read(out, kind), gelu(hs), kind)
        d = store(dh, "")
        module.run("gelu_backward", 2, d, h, width, rows.rows)
        close("gelu'", read(d, kind), ds * slope(gelu, hs), kind)
        module, r, d = Module("relu.cu", kind), store(h, ""), store(dh, "")
        module.run("relu_forward", 2, r, width, rows.rows, rows.drop(), step)
        close("relu", read(r, kind), np.maximum(hs, 0) * f, kind)
        module.run("relu_backward", 2, d, r, width, rows.scale, rows.rows)
        close("relu'", read(d, kind), ds * (hs > 0) * f, kind)
        ab, dab = store(normal(19, 2 * width), kind), store(np.full((19, 2 * width), np.nan), kind)
        a, b = np.split(read(ab, kind).astype(np.float64), 2, 1)
        for name, curve, drop in [("gated_gelu", gelu, True), ("gated_silu", silu, False)]:
            module, more, g = Module(name + ".cu", kind), [rows.drop(), step] if drop else [], f if drop else 1.0
            module.run(name + "_forward", 2, ab, out, width, rows.rows, *more)
            close(name, read(out, kind), curve(a) * b * g, kind)
            if name == "gated_silu":
                dab, gate = store(ab, ""), store(dh, "")
                module.run(name + "_backward", 2, gate, dab, width, rows.rows)
                close(name + " again", read(gate, kind), curve(a) * b, kind)
            else:
                module.run(name + "_backward", 2, dh, ab, dab, width, rows.rows, *more)
            want = np.concatenate([ds * g * b * slope(curve, a), ds * g * curve(a)], 1)
            close(name + "'", read(dab, kind), want, kind)
        module, y = Module("residual.cu", kind), store(dh, "")
        module.run("residual_forward", 2, h, y, width, rows.rows, rows.drop(), step)
        close("residual", read(y, kind), hs + ds * f, kind)
        module.run("drop_forward", 2, h, out, width, rows.rows, rows.drop(), step)
        close("drop", read(out, kind), hs * f, kind)


def test_copies():
    for kind, width in each((64, 7)):
        module, rows, step = Module("copy.cu", kind), Rows(9), a_step()
        x, to = store(normal(9, width + 8), kind), store(np.zeros((12, width + 16)), kind)
        module.run("copy_columns", 2, x, width + 8, to, width + 16, width, rows.rows)
        assert (to[:9, :width] == x[:, :width]).all() and not to[9:].any() and not to[:, width:].any()
        x = store(normal(12, width), kind)
        kept = x.copy()
        module.run("clear_tails", 2, x, width, width, None, 0, 0, rows.rows, 12)
        assert (x[:9] == kept[:9]).all() and not x[9:].any()
        x, y = store(normal(12, width), kind), store(normal(12, width + 8), kind)
        kept, other = x.copy(), y.copy()
        module.run("clear_tails", (2, 2), x, width, width, y, width + 8, width, rows.rows, 12)
        assert (x[:9] == kept[:9]).all() and not x[9:].any()
        assert (y[:9] == other[:9]).all() and not y[9:, :width].any() and (y[9:, width:] == other[9:, width:]).all()
        index, count = store(np.array([1, 4, 5, 8], np.uint32), ""), store(np.array([4], np.uint32), "")
        side = store(np.full((3, width), np.nan), kind)
        module.run("gather_rows", 2, x, index, side, width, 2, 3, count)
        assert (side[:2] == x[[5, 8]]).all() and not side[2].any()
        back = store(np.zeros((12, width)), kind)
        module.run("scatter_rows", 2, side, index, back, width, 2, 3, count)
        assert (back[[5, 8]] == side[:2]).all() and not back[:5].any()
        words = store(np.ones(31, np.uint32), "")
        module.run("clear", 1, words, 30, 2, step)
        assert words.all()
        module.run("clear", 1, words, 30, 1, step)
        assert not words[:30].any() and words[30]


def test_bias():
    module, heads, span, buckets = Module("bias.cu"), 3, 45, 8
    table, bucket = store(normal(buckets, heads), "float"), store(RNG.integers(0, buckets, span).astype(np.uint32), "")
    delta, grad = store(np.zeros((heads, span)), "float"), store(np.ones((buckets, heads)), "float")
    module.run("bias_expand", 1, table, bucket, delta, heads, span)
    assert (delta == table[bucket].T).all()
    ddelta = store(normal(heads, span), "float")
    module.run("bias_collect", (buckets, heads), ddelta, bucket, grad, 2, heads, span, a_step())
    want = np.ones((buckets, heads))
    np.add.at(want, bucket, ddelta.T.astype(np.float64))
    close("bias gradient", grad, want)


def test_loss():
    for kind, vocab in each((64, 999, 40)):
        module, rows, step = Module("loss.cu", kind), store(np.array([6], np.uint32), ""), a_step(loss_scale=4.0)
        logits = store(normal(5, vocab) * 3, kind)
        labels = store(np.array([1, 2, 3, 0xFFFFFFFF, 5, vocab - 1], np.uint32), "")
        losses, given = store(np.full(6, np.nan), "float"), read(store(logits, ""), kind).astype(np.float64)
        smem = 64 if vocab == 64 else 0
        module.run("loss_forward", 5, logits, labels, losses, vocab, 2, 5, 1, rows, step, block=1024, smem=smem)
        p = np.exp(given - given.max(1, keepdims=True))
        total = np.log(p.sum(1)) + given.max(1)
        p /= p.sum(1, keepdims=True)
        want = [total[0] - given[0, 3], 0.0, total[2] - given[2, 5], total[3] - given[3, vocab - 1]]
        close("loss", losses[2:], want)
        for row, label in enumerate([3, None, 5, vocab - 1, None]):
            p[row] = 0 if label is None else p[row]
            if label is not None:
                p[row, label] -= 1
        close("loss gradient", read(logits, kind), 4.0 * p, kind)
        losses[:2] = 1.0
        module.run("loss_total", 1, losses, rows, step, block=1024)
        close("loss sum", step.loss_sum, 2 + np.sum(want))
        losses[0] = np.nan
        module.run("loss_total", 1, losses, rows, step, block=1024)
        assert step.stopped == 1


def test_gradient_norm():
    module, step = Module("gradient_norm.cu"), a_step(mean=0.25, clip_norm=1.0)
    grad, partial = store(normal(150_001), "float"), store(np.zeros(3, np.float64), "")
    module.run("gradient_norm_partial", 3, grad, 150_001, partial)
    module.run("gradient_norm_finish", 1, partial, 3, step, block=1024)
    module.run("clip", 1, step, block=1)
    norm = np.linalg.norm(grad.astype(np.float64)) * 0.25
    close("norm", step.norm, norm)
    close("scale", step.grad_scale, 0.25 / (norm + 1e-6))
    grad[77] = np.inf
    module.run("gradient_norm_partial", 3, grad, 150_001, partial)
    module.run("gradient_norm_finish", 1, partial, 3, step, block=1024)
    assert step.stopped == 2


def test_gradient_norm_of_parameters():
    module, step = Module("gradient_norm.cu"), a_step(mean=0.25)
    params = Params(SHAPES, "float", True, lambda s: [])
    first = params.blocks(by_elements)
    partial = store(np.zeros(int(first[-1]), np.float64), "")
    module.run("gradient_norm_params", int(first[-1]), params.array, first, len(SHAPES), partial)
    module.run("gradient_norm_finish", 1, partial, int(first[-1]), step, block=1024)
    close("squares", step.squares, sum((p[2].astype(np.float64) ** 2).sum() for p in params.keep))


class Params:
    """Parameters of some shapes with their state, for one launch."""

    def __init__(self, shapes, kind, masters, states, split=False):
        self.shapes, self.kind, self.masters, self.split = shapes, kind, masters, split
        self.keep, self.array = [], (Param * len(shapes))()
        for i, shape in enumerate(shapes):
            n, matrix = int(np.prod(shape)), len(shape) == 2
            rows, cols = shape if matrix else (1, n)
            master = store(normal(*shape), "float") if masters else None
            weight = store(master if masters else normal(*shape), kind)
            if split:
                bits = master.view(np.uint32)
                master, weight = store(bits.astype(np.uint16), ""), store(((bits + 0x8000) >> 16).astype(np.uint16), "")
            grad, state = store(normal(*shape), "float"), [store(s, s.dtype.kind) for s in states(shape)]
            state = [s.astype(np.float32) if s.dtype == np.float64 else s for s in state]
            state = [store(s, "") for s in state] + [None] * (3 - len(state))
            scratch = store(np.zeros(2 * rows + 17 * cols + 8, np.float32), "")
            p = self.array[i]
            p.master = master.ctypes.data if masters else 0
            p.weight, p.grad, p.scratch = weight.ctypes.data, grad.ctypes.data, scratch.ctypes.data
            p.state0, p.state1, p.state2 = [s.ctypes.data if s is not None else 0 for s in state]
            p.elements, p.rows, p.cols, p.key, p.flags = n, rows, cols, 3 + i, int(matrix) + 2 * split
            self.keep.append((master, weight, grad, state, scratch))

    def weights(self, i):
        """What the update was taken on, in double."""
        master, weight = self.keep[i][:2]
        if self.split:
            low, high = master.astype(np.uint32), weight.view(np.uint16).astype(np.uint32)
            return (((high - (low >> 15)) << 16) | low).view(np.float32).astype(np.float64)
        return (master if self.masters else read(weight, self.kind)).astype(np.float64)

    def blocks(self, each):
        return store(np.concatenate([[0], np.cumsum([each(p) for p in self.array])]).astype(np.uint32), "")


def by_elements(p):
    return -(-p.elements // 4096)


def run_update(file, kernel, params, step, *more):
    first = params.blocks(by_elements)
    Module(file, params.kind if params.kind != "float" else "float").run(
        kernel, int(first[-1]), params.array, first, len(params.shapes), *more, step
    )


SHAPES = [(3, 5000), (7,), (70, 130), (4095,)]


def test_updates():
    g = 0.5
    for kind, masters, split in [("float", True, False), ("f16", True, False), ("bf16", True, True), ("float", False, False),
                                 ("bf16", False, False)]:
        tolerance = 2e-6 if masters or kind == "float" else 5e-3
        b1, b2, lr, decay, eps, t = 0.9, 0.99, 1e-2, 0.1, 1e-8, 6
        moments = lambda shape: [normal(*shape), normal(*shape) ** 2]
        adam = [1 - lr * decay, lr / (1 - b1**t), np.sqrt(1 - b2**t), 1 - b1, b2, 1 - b2, eps]
        lion = [lr, 1 - lr * decay, b1, 1 - b1, b2, 1 - b2]
        sgd = [lr, decay, 0.8, 0.9, 0.8, 1.0]
        for file, kernel, numbers in [("adamw.cu", "adamw", adam), ("lion.cu", "lion", lion), ("sgd.cu", "sgd", sgd)]:
            params, step = Params(SHAPES, kind, masters, moments, split), a_step(grad_scale=g)
            step.numbers[: len(numbers)] = numbers
            before = [(params.weights(i), *[s.astype(np.float64) for s in params.keep[i][3][:2]]) for i in range(len(SHAPES))]
            step.stopped = 1
            run_update(file, kernel, params, step)
            assert all((params.weights(i) == before[i][0]).all() for i in range(len(SHAPES))), "a stopped step changes nothing"
            step.stopped = 0
            run_update(file, kernel, params, step)
            for i, (w, m, v) in enumerate(before):
                grad = params.keep[i][2].astype(np.float64) * g
                if kernel == "adamw":
                    m, v = m + (grad - m) * (1 - b1), v * b2 + (1 - b2) * grad**2
                    want = w * (1 - lr * decay) - lr / (1 - b1**t) * (m / (np.sqrt(v) / np.sqrt(1 - b2**t) + eps))
                    close("adamw v", params.keep[i][3][1], v)
                elif kernel == "lion":
                    want = w * (1 - lr * decay) - lr * np.sign(b1 * m + (1 - b1) * grad)
                    m = b2 * m + (1 - b2) * grad
                else:
                    grad = grad + decay * w
                    m = 0.8 * m + 0.9 * grad
                    want = w - lr * (grad + 0.8 * m)
                close(kernel + " m", params.keep[i][3][0], m)
                close(kernel, params.weights(i), want, tolerance=tolerance)
                if split:
                    near = params.weights(i).astype(np.float32)
                    high = store(near, kind)
                    ties = (near.view(np.uint32) & 0xFFFF) == 0x8000
                    assert ((params.keep[i][1] == high.view(np.uint16)) | ties).all(), "the upper half is the nearest bf16"
                elif masters:
                    assert (params.keep[i][1] == store(params.keep[i][0], kind)).all(), "the copy is the master, rounded"


def test_weights_are_rounded_with_the_stream_of_the_cpu():
    params, step = Params([(300,)], "bf16", False, lambda s: [np.zeros(s), np.zeros(s)]), a_step()
    step.numbers[:7] = [1.0, 0.01, 1.0, 0.1, 0.99, 0.01, 1e-8]
    w = read(params.keep[0][1], "bf16").copy()
    grad = params.keep[0][2] * np.float32(0.5)
    run_update("adamw.cu", "adamw", params, step)
    f = np.float32
    m, v = (grad - f(0)) * f(0.1), f(0.01) * grad * grad
    exact = (w * f(1) - f(0.01) * (m / (np.sqrt(v) / f(1) + f(1e-8)))).astype(np.float32).view(np.uint32)
    want = ((exact + rounding(step, 0x80000000 | 3, 300)) >> 16).astype(np.uint16)
    assert (params.keep[0][1] == want).mean() > 0.99, (params.keep[0][1] == want).mean()


def rounding(step, place, count):
    """The 16 random bits of each element, as the CPU draws them."""
    random = np.zeros(-(-count // 128) * 128, np.uint32)
    for group in range(len(random) // 128):
        words = np.concatenate(philox(step.seed, group * 16 + np.arange(16), 0, place, step.update)).astype(np.uint32)
        random[group * 128 : group * 128 + 64], random[group * 128 + 64 : group * 128 + 128] = words & 0xFFFF, words >> 16
    return random[:count]


def test_moments_of_16_bits():
    half = lambda shape: store(normal(*shape), "bf16")
    params, step = Params([(300,), (3, 5000)], "float", False, lambda s: [half(s), half(s) & 0x7FFF]), a_step()
    step.numbers[:7] = [1.0, 0.01, 1.0, 0.1, 0.99, 0.01, 1e-8]
    before = [(params.weights(i), *[read(s, "bf16") for s in params.keep[i][3][:2]]) for i in range(2)]
    run_update("adamw16bit.cu", "adamw", params, step)
    f = np.float32
    for i, (w, m, v) in enumerate(before):
        grad = params.keep[i][2] * f(0.5)
        m, v = m + (grad - m) * f(0.1), v * f(0.99) + f(0.01) * grad * grad
        close("weight", params.weights(i), w - 0.01 * (m / (np.sqrt(v) + 1e-8)))
        for stream, exact in [(1, m), (2, v)]:
            random = rounding(step, 0x80000000 | stream << 29 | 3 + i, exact.size)
            want = ((exact.astype(np.float32).reshape(-1).view(np.uint32) + random) >> 16).astype(np.uint16)
            same = (params.keep[i][3][stream - 1].reshape(-1) == want).mean()
            assert same > 0.99, same


def code_maps():
    maps = []
    for signed in (True, False):
        values = [0.0, 1.0]
        for decade in range(7):
            cells = (1 if signed else 2) << decade
            for cell in range(cells):
                middle = 10.0 ** (decade - 6) * (0.1 + 0.9 * (cell + 0.5) / cells)
                values += [middle, -middle] if signed else [middle]
        maps.append(np.sort(np.array(values, np.float32)))
    return maps


def test_adamw8bit():
    maps = code_maps()
    both = store(np.concatenate(maps), "float")
    shapes = [(4097,), (100,), (33, 400)]

    def state(shape):
        n = int(np.prod(shape))
        if n < 4096:
            return [normal(n), normal(n) ** 2]
        words = -(-n // 4) + -(-n // 256)
        return [np.zeros(words, np.float32), np.zeros(words, np.float32)]

    params, step = Params(shapes, "float", True, state), a_step(grad_scale=0.5)
    b1, b2, lr = 0.9, 0.99, 1e-2
    step.numbers[:7] = [1.0, lr, 1.0, 1 - b1, b2, 1 - b2, 1e-8]
    before = []
    for i, shape in enumerate(shapes):
        n, moments = int(np.prod(shape)), []
        for k in range(2):
            s = params.keep[i][3][k]
            if n < 4096:
                moments.append(s.copy())
                continue
            codes = RNG.integers(0, 256, n).astype(np.uint8)
            s.view(np.uint8)[:n] = codes
            scales = (RNG.random(-(-n // 256)) + 0.5).astype(np.float32)
            s[-(-n // 4) :] = scales
            moments.append(maps[k][codes] * np.repeat(scales, 256)[:n])
        before.append((params.weights(i).reshape(-1), *moments))
    run_update("adamw8bit.cu", "adamw8bit", params, step, both)
    for i, (w, m, v) in enumerate(before):
        n, grad = len(w), params.keep[i][2].reshape(-1) * np.float32(0.5)
        f = np.float32
        m = m + (grad - m) * f(1 - b1)
        v = v * f(b2) + f(1 - b2) * grad * grad
        want = w - lr * (m.astype(np.float64) / (np.sqrt(v.astype(np.float64)) + 1e-8))
        close("adamw8bit", params.weights(i).reshape(-1), want)
        if n < 4096:
            continue
        for k, moment in enumerate([m, v]):
            s, values = params.keep[i][3][k], maps[k]
            padded = np.zeros(-(-n // 256) * 256, np.float32)
            padded[:n] = moment
            most = np.abs(padded.reshape(-1, 256)).max(1)
            close("scale", s[-(-n // 4) :], most)
            x = moment * np.repeat(f(1) / most, 256)[:n]
            zero = int(np.where(values == 0)[0][0])
            middles = (values[zero:-1] + values[zero + 1 :]) / f(2)
            steps = np.searchsorted(middles, np.abs(x), side="right")
            codes = np.where(x < 0, np.maximum(zero - steps, 0), np.minimum(zero + steps, 255))
            assert (s.view(np.uint8)[:n] == codes).mean() > 0.999, "the codes are the CPU's"


def test_adafactor():
    g = 0.5
    for kind, masters, beta1, scaled, split in [("float", True, 0.0, True, False), ("bf16", True, 0.9, False, True),
                                                ("bf16", False, 0.0, True, False)]:
        shapes = [(70, 130), (7,), (9, 5000), (300,)]

        def state(shape):
            more = [normal(*shape)] if beta1 else []
            if len(shape) == 2:
                return [normal(shape[0]) ** 2, normal(shape[1]) ** 2] + more
            return [normal(*shape) ** 2, np.zeros(1)] + more

        params, step = Params(shapes, kind, masters, state, split), a_step(grad_scale=g)
        lr, eps, threshold, beta2, decay = 1e-2, (1e-30, 1e-3), 0.7, 0.6, 0.1
        step.rates[:8] = [lr, *eps, threshold, beta2, decay, beta1, float(scaled)]
        copies = lambda: [(params.weights(i), *[None if s is None else s.astype(np.float64) for s in params.keep[i][3]]) for i in range(4)]
        before, module, count = copies(), Module("adafactor.cu", kind), len(shapes)
        of_rows = params.blocks(lambda p: -(-p.rows // 8) if p.flags & 1 else 1)
        of_columns = params.blocks(lambda p: 16 * -(-p.cols // 64) if p.flags & 1 else 0)
        of_all = params.blocks(by_elements)
        module.run("adafactor_rows", int(of_rows[-1]), params.array, of_rows, count, step)
        module.run("adafactor_columns", int(of_columns[-1]), params.array, of_columns, count, step)
        module.run("adafactor_factors", count, params.array, count, step, block=1024)
        module.run("adafactor_size", int(of_rows[-1]), params.array, of_rows, count, step)
        module.run("adafactor_numbers", count, params.array, count, step, block=1024)
        module.run("adafactor_apply", int(of_all[-1]), params.array, of_all, count, step)
        for i, (w, s0, s1, s2) in enumerate(before):
            grad = params.keep[i][2].astype(np.float64) * g
            if len(shapes[i]) == 2:
                square = grad**2 + eps[0]
                s0 = s0 * beta2 + (1 - beta2) * square.mean(1)
                s1 = s1 * beta2 + (1 - beta2) * square.mean(0)
                close("rows", params.keep[i][3][0], s0)
                close("columns", params.keep[i][3][1], s1)
                update = grad / np.sqrt(s0 / s0.mean())[:, None] / np.sqrt(s1)
            else:
                s0 = s0 * beta2 + (1 - beta2) * (grad**2 + eps[0])
                update = grad / np.sqrt(s0)
            rate = lr * max(np.sqrt((w**2).mean()), eps[1]) if scaled else lr
            update = update * rate / max(1.0, np.sqrt((update**2).mean()) / threshold)
            if beta1:
                update = s2 * beta1 + (1 - beta1) * update
                close("average", params.keep[i][3][2], update)
            want = w * (1 - decay * rate) - update
            close("adafactor", params.weights(i), want, tolerance=2e-6 if masters else 5e-3)


LEVELS = np.array(
    [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0, 0.0795803, 0.1609302, 0.2461123,
     0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0], np.float32)  # fmt: skip


def test_dequantise():
    n = 40_000
    codes, scales = store(RNG.integers(0, 256, n).astype(np.uint8), ""), store(normal(n // 64), "float")
    nibbles = store(RNG.integers(0, 256, n // 2).astype(np.uint8), "")
    blocks, groups = store(RNG.integers(-127, 128, n // 64).astype(np.int8), ""), store(normal(3, 2), "float")
    whole8 = codes.view(np.int8).astype(np.float32) * np.repeat(scales, 64)
    both = np.stack([nibbles & 15, nibbles >> 4], 1).reshape(-1)
    absmax = groups[np.arange(n // 64) // 256, 0] + blocks * groups[np.arange(n // 64) // 256, 1]
    whole4 = LEVELS[both] * np.repeat(absmax, 64)
    for kind in KINDS:
        module = Module("dequantise.cu", kind)
        for first, count in [(0, n), (64, 1003), (13, 500)]:
            out = store(np.zeros(count), kind)
            module.run("dequantise_int8", 2, codes, scales, out, first, count)
            close("int8", read(out, kind), whole8[first : first + count], kind)
            module.run("dequantise_nf4", 2, nibbles, blocks, groups, out, first, count)
            close("nf4", read(out, kind), whole4[first : first + count], kind)
    module, rows, width = Module("embed.cu"), Rows(11), 40
    ids, out = store(RNG.integers(0, 1000, 11).astype(np.uint32), ""), store(np.zeros((11, width)), "float")
    module.run("embed_int8_forward", 1, ids, codes, scales, out, width, rows.rows, rows.drop(), a_step())
    close("embed int8", out, whole8.reshape(1000, 40)[ids] * rows.factors(a_step(), width))
    module.run("embed_nf4_forward", 1, ids, nibbles, blocks, groups, out, width, rows.rows, NONE, a_step())
    close("embed nf4", out, whole4.reshape(1000, 40)[ids])


class AttentionCase:
    def __init__(self, kind, queries, keys, heads, kv_heads, d, causal=0, window=0, bias=False, rate=0.0, scale=None):
        self.kind, self.queries, self.keys, self.heads, self.kv_heads, self.d = kind, queries, keys, heads, kv_heads, d
        rows, krows, width, kwidth = sum(queries), sum(keys), heads * d, kv_heads * d
        self.rows, self.krows = rows, krows
        mq, mk = max(queries) + 3, max(keys) + 2
        self.t = t = {
            "q": store(normal(rows, width + 16), kind),
            "k": store(normal(krows, kwidth + 8), kind),
            "v": store(normal(krows, kwidth), kind),
            "out": store(np.full((rows, width), np.nan), kind),
            "lse": store(np.full((rows, heads), np.nan), "float"),
            "dout": store(normal(rows, width), kind),
            "dq": store(np.full((rows, width), np.nan), kind),
            "dk": store(np.full((krows, kwidth), np.nan), kind),
            "dv": store(np.full((krows, kwidth), np.nan), kind),
            "dots": store(np.full((rows, heads), np.nan), "float"),
            "q_starts": store((5 + np.concatenate([[0], np.cumsum(queries)])).astype(np.uint32), ""),
            "k_starts": store((9 + np.concatenate([[0], np.cumsum(keys)])).astype(np.uint32), ""),
            "documents": store(np.array([len(queries)], np.uint32), ""),
            "sample": store((np.arange(len(queries)) // 2 + 3).astype(np.uint32), ""),
            "offset": store((np.arange(len(queries)) % 2).astype(np.uint32), ""),
        }
        self.a = a = Attention()
        if bias:
            t["bias"], t["dbias"] = store(normal(heads, mq + mk - 1), "float"), store(np.ones((heads, mq + mk - 1)), "float")
            t["dbias_partial"] = store(np.full((rows // 16 + len(queries), heads, mk + 64), np.nan), "float")
        for name, array in t.items():
            setattr(a, name, array.ctypes.data)
        a.q_stride, a.k_stride, a.v_stride, a.dq_stride, a.dk_stride, a.dv_stride = width + 16, kwidth + 8, kwidth, width, kwidth, kwidth
        a.heads, a.kv_heads, a.d, a.scale = heads, kv_heads, d, scale or d**-0.5
        a.causal, a.window, a.max_queries, a.max_keys = causal, window, mq, mk
        a.place, a.threshold, a.drop_scale = 6, int(rate * 2**32), 1 / (1 - rate)
        self.step = a_step()

    def reference(self):
        a, t, kind, d = self.a, self.t, self.kind, self.d
        wide = lambda n: read(t[n], kind).astype(np.float64)
        q, k, v, dout = wide("q"), wide("k"), wide("v"), wide("dout")
        out, dq = np.zeros((self.rows, self.heads * d)), np.zeros((self.rows, self.heads * d))
        dk, dv = np.zeros((self.krows, self.kv_heads * d)), np.zeros((self.krows, self.kv_heads * d))
        lse = np.zeros((self.rows, self.heads))
        span = a.max_queries + a.max_keys - 1
        dbias = np.ones((self.heads, span))
        q0 = k0 = 0
        for doc, (nq, nk) in enumerate(zip(self.queries, self.keys)):
            i, j = np.arange(nq)[:, None], np.arange(nk)[None]
            seen = np.ones((nq, nk), bool)
            if a.causal:
                seen &= j <= i
                if a.window:
                    seen &= j > i - a.window
            for h in range(self.heads):
                kv = h // (self.heads // self.kv_heads)
                Q, K, V = q[q0 : q0 + nq, h * d :][:, :d], k[k0 : k0 + nk, kv * d :][:, :d], v[k0 : k0 + nk, kv * d :][:, :d]
                G = dout[q0 : q0 + nq, h * d :][:, :d]
                s = Q @ K.T * a.scale
                if a.bias:
                    s = s + t["bias"][h].astype(np.float64)[j - i + a.max_queries - 1]
                s = np.where(seen, s, -np.inf)
                with np.errstate(all="ignore"):
                    l = np.log(np.exp(s - s.max(1, keepdims=True)).sum(1)) + s.max(1)
                    l = np.where(seen.any(1), l, -np.inf)
                    p = np.where(seen, np.exp(s - l[:, None]), 0.0)
                f = np.ones((nq, nk))
                if a.threshold:
                    for r in range(nq):
                        row = h * a.max_queries + int(t["offset"][doc]) + r
                        f[r] = factors(self.step, int(t["sample"][doc]), a.place, row, a.max_keys, a.threshold, a.drop_scale)[:nk]
                o = (p * f) @ V
                ds = p * (G @ V.T * f - (G * o).sum(1, keepdims=True))
                out[q0 : q0 + nq, h * d : h * d + d], lse[q0 : q0 + nq, h] = o, l
                dq[q0 : q0 + nq, h * d : h * d + d] = ds @ K * a.scale
                dk[k0 : k0 + nk, kv * d : kv * d + d] += ds.T @ Q * a.scale
                dv[k0 : k0 + nk, kv * d : kv * d + d] += (p * f).T @ G
                np.add.at(dbias[h], j - i + a.max_queries - 1, ds)
            q0, k0 = q0 + nq, k0 + nk
        return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias}

    def check(self, what, tile, forward, dots, back_q, back_kv, bias_sum):
        slots, kslots = self.rows // tile + len(self.queries), self.krows // tile + len(self.queries)
        self.a.tile = tile
        want, kind = self.reference(), self.kind
        forward(slots, self.heads)
        close(what + " out", read(self.t["out"], kind), want["out"], kind)
        there = np.isfinite(want["lse"])
        assert (np.isfinite(self.t["lse"]) == there).all()
        close(what + " lse", self.t["lse"][there], want["lse"][there], tolerance=2e-6 if kind == "float" else 1e-3)
        dots()
        back_q(slots, self.heads)
        back_kv(kslots, self.kv_heads)
        for name in ("dq", "dk", "dv"):
            close(f"{what} {name}", read(self.t[name], kind), want[name], kind, tolerance=1e-5 if kind == "float" else None)
        if self.a.dbias:
            bias_sum()
            close(what + " dbias", self.t["dbias"], want["dbias"], kind, tolerance=1e-5 if kind == "float" else None)


def plain(case, what, tile):
    module, a, step, d = Module("attention.cu", case.kind), case.a, case.step, case.d
    near = a.max_keys + tile if a.dbias_partial else 0
    case.check(
        what,
        tile,
        lambda x, y: module.run(f"attention_forward_{tile}", (x, y), a, step, smem=4 * (2 * tile * (d + 1) + tile * (tile + 1) + 3 * tile)),
        lambda: module.run("attention_dots", 2, a),
        lambda x, y: module.run(
            f"attention_backward_q_{tile}", (x, y), a, step, smem=4 * (4 * tile * (d + 1) + 2 * tile * (tile + 1) + near)
        ),
        lambda x, y: module.run(f"attention_backward_kv_{tile}", (x, y), a, step, smem=4 * (4 * tile * (d + 1) + 2 * tile * (tile + 1))),
        lambda: module.run("attention_bias_sum", (-(-(a.max_queries + a.max_keys - 1) // 32), a.heads), a),
    )


def cases(kind, d):
    yield "plain", AttentionCase(kind, [70, 1, 33], [40, 50, 32], 2, 2, d)
    yield "causal, grouped", AttentionCase(kind, [70, 3, 64], [70, 3, 64], 4, 2, d, causal=1)
    yield "window", AttentionCase(kind, [150, 20], [150, 20], 2, 1, d, causal=1, window=37)
    yield "bias", AttentionCase(kind, [70, 9], [40, 90], 2, 2, d, bias=True, scale=1.0 if d < 32 else None)
    yield "causal bias, dropout", AttentionCase(kind, [70, 66], [70, 66], 2, 2, d, causal=1, bias=True, rate=0.2)
    yield "window without keys", AttentionCase(kind, [90], [20], 1, 1, d, causal=1, window=8)


def test_attention():
    for kind, d, tile in [("float", 20, 32), ("bf16", 64, 32), ("float", 130, 16), ("f16", 16, 16)]:
        for what, case in cases(kind, d):
            plain(case, f"{what} ({kind}, head {d}, tile {tile})", tile)


def tensor_cores(case, what, any_=True, splits=1):
    """`any_`: the kernels that take a bias and dropout; `splits`: parts of the gradient of keys and values."""
    module, other = Module(f"attention_mma_{'any_' if any_ else ''}{case.d}.cu", case.kind), Module("attention.cu", case.kind)
    a, step, d = case.a, case.step, case.d
    line, near = 1024 if any_ else 0, 4 * (64 * 72 + a.max_keys + 64) if a.dbias_partial else 0
    # Causal kernels have a slot more a document.
    slots = lambda x: x + (len(case.queries) if a.causal else 0)
    partial = store(np.full((splits, 2, case.krows, case.kv_heads * d), np.nan), "float") if splits > 1 else None

    def back_kv(x, y):
        smem = 768 * d + 1024 + line + (1024 if any_ else 0)
        module.run("attention_backward_kv_mma", (y * splits, slots(x)), a, step, partial, splits, block=128, smem=smem)
        if splits > 1:
            module.run("attention_kv_sum", 2, a, partial, splits)

    case.check(
        what,
        64,
        lambda x, y: module.run("attention_forward_mma", (y, slots(x)), a, step, block=128, smem=640 * d + line),
        lambda: None,
        lambda x, y: module.run("attention_backward_q_mma", (y, slots(x)), a, step, block=128, smem=768 * d + 256 + line + near),
        back_kv,
        lambda: other.run("attention_bias_sum", (-(-(a.max_queries + a.max_keys - 1) // 32), a.heads), a),
    )


def test_split_groups_give_the_same_gradients():
    for kind, d in [("bf16", 64), ("f16", 128)]:
        for splits in (2, 3):
            case = AttentionCase(kind, [70, 130], [70, 130], 6, 2, d, causal=1)
            tensor_cores(case, f"{splits} parts", any_=False, splits=splits)


def test_a_decoding_step():
    heads, kv_heads, d, rows, beams, max_len, now = 4, 2, 20, 4, 2, 9, 6
    for kind in KINDS:
        for prompted, cached, biased, window in [(1, 1, 0, 0), (1, 0, 0, 0), (0, 1, 1, 0), (1, 1, 0, 8)]:
            module, width, kv = Module("cache.cu", kind), heads * d, 2 * kv_heads * d
            q, prompt = store(normal(rows, width + 8), kind), store(normal(12, kv), kind)
            cache, fresh = store(normal(rows, max_len, kv), kind), store(normal(rows, kv + 3), kind)
            origin = store(RNG.integers(0, rows, (rows, max_len)).astype(np.uint32), "")
            origin[:, now] = np.arange(rows)
            starts, out = store(np.array([3, 8, 15], np.uint32), ""), store(np.zeros((rows, width)), kind)
            position, count = store(np.array([now], np.uint32), ""), store(np.array([rows], np.uint32), "")
            module.run("cache_append", 1, fresh, kv + 3, cache, kv, kv, max_len, position, count)
            assert (cache[:, now] == fresh[:, :kv]).all()
            bias = store(normal(heads, 2 * max_len - 1), "float") if biased else None
            a = Cached()
            arrays = dict(q=q, prompt=prompt if prompted else None, starts=starts, cache=cache if cached else None, origin=origin,
                          position=position, bias=bias, out=out, rows=count)  # fmt: skip
            for name, array in arrays.items():
                setattr(a, name, 0 if array is None else array.ctypes.data)
            a.q_stride, a.prompt_stride, a.beams, a.max_len, a.heads, a.kv_heads, a.d = width + 8, kv, beams, max_len, heads, kv_heads, d
            a.scale, a.causal, a.window, a.max_queries, a.max_keys = 0.3, 1, window, max_len, max_len if biased else 30
            module.run("attend_step", (rows + 1, heads), a, block=128, smem=4 * 30)
            want = np.zeros((rows, width))
            for row in range(rows):
                begin, end = starts[row // beams] - starts[0], starts[row // beams + 1] - starts[0]
                old = read(prompt, kind)[begin:end] if prompted else np.zeros((0, kv))
                new = np.array([read(cache, kind)[origin[row, i], i] for i in range(now + 1)]) if cached else np.zeros((0, kv))
                past = np.concatenate([old, new]).astype(np.float64)
                skipped = max(len(past) - window, 0) if window else 0
                for h in range(heads):
                    of = h // 2 * d
                    s = past[:, of : of + d] @ read(q, kind)[row, h * d : h * d + d] * a.scale
                    if biased:
                        s = s + bias[h, max_len - 1 - (len(past) - 1) :][: len(past)]
                    p = np.exp(s[skipped:] - s.max())
                    want[row, h * d : h * d + d] = p / p.sum() @ past[skipped:, kv // 2 + of :][:, :d]
            close("decoding step", read(out, kind), want, kind)


def test_attention_on_tensor_cores():
    for kind, d in [("f16", 64), ("bf16", 64), ("f16", 128), ("bf16", 128)]:
        for what, case in cases(kind, d):
            tensor_cores(case, f"{what} ({kind}, head {d}, tensor cores)")


def test_attention_on_tensor_cores_without_bias_and_dropout():
    for kind, d in [("f16", 64), ("bf16", 64), ("f16", 128), ("bf16", 128)]:
        for what, case in cases(kind, d):
            if not case.a.bias and not case.a.threshold:
                tensor_cores(case, f"{what} ({kind}, head {d}, tensor cores, plain)", any_=False)


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not wanted or any(w in name for w in wanted)):
            test()
            print(name[5:].replace("_", " "), flush=True)
