#!/usr/bin/env python3
"""Runs the kernels of series on the CPU and compares them with numpy in double precision. Needs g++ and numpy, no card.

Usage: test_series.py [name ...]
"""

import math
import sys

import numpy as np
from emulate import Answer, Attention, Drop, Lstm, LstmBack, Module, Pool, Running, Terms, read, store
from test_ops import KINDS, NONE, RNG, a_step, close, factors, normal

FIRST = 6  # index of the first sample
PLACE, RATE = 21, 0.3
THRESHOLD, SCALE = int(RATE * 2**32), np.float32(1 / (1 - np.float32(RATE)))


def number(*values):
    return store(np.array(values, np.uint32), "")


def given(struct, **fields):
    for name, value in fields.items():
        setattr(struct, name, value.ctypes.data if isinstance(value, np.ndarray) else 0 if value is None else value)
    return struct


def a_drop(first, steps):
    return Drop(first.ctypes.data, 0, PLACE, THRESHOLD, SCALE, steps)


def drops(step, samples, steps, width):
    rows = [factors(step, FIRST + s, PLACE, t, width, THRESHOLD, SCALE) for s in range(samples) for t in range(steps)]
    return np.array(rows).reshape(samples, steps, width)


def erf(x):
    return np.vectorize(math.erf)(x)


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_slope(x):
    return 0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_windows_are_mixed():
    for kind in KINDS:
        for width in (12, 7):
            module, windows = Module("windows.cu", kind), store(normal(5, width), "float")
            for shift, share in [(0, 1.0), (2, 0.7)]:
                facts = store(np.array([np.float32(share).view(np.uint32), shift, FIRST], np.uint32), "")
                out = store(np.zeros((5, width)), kind)
                module.run("windows_input", 2, windows, facts, out, width, number(5))
                want = share * windows + (1 - share) * np.roll(windows, -shift, axis=0)
                close("windows", read(out, kind), want, kind)


def test_convolution():
    for kind in KINDS:
        for samples, steps, inputs, outputs, kernel in [(2, 11, 3, 4, 5), (3, 8, 8, 4, 3), (2, 9, 1, 6, 7), (2, 5, 4, 3, 1)]:
            module = Module("conv.cu", kind)
            x, weight = store(normal(samples, steps, inputs), kind), store(normal(outputs, inputs, kernel), kind)
            dy = store(normal(samples, steps, outputs), kind)
            wide = [np.asarray(read(v, kind), np.float64) for v in (x, weight, dy)]
            half = kernel // 2
            padded = np.pad(wide[0], ((0, 0), (half, half), (0, 0)))
            want = sum(padded[:, j : j + steps] @ wide[1][:, :, j].T for j in range(kernel))
            rows, first = samples * steps, 3
            gathered = np.zeros((rows, inputs * kernel))
            for begin, limit in [(0, first), (first, rows - first)]:
                part = store(np.zeros((limit, inputs * kernel)), kind)
                module.run("conv_gather", 2, x, part, steps, inputs, kernel, 0, begin, limit)
                gathered[begin : begin + limit] = read(part, kind)
            got = gathered @ wide[1].reshape(outputs, -1).T
            close("convolution", got, want.reshape(rows, -1), tolerance=1e-9)
            turned, around = store(np.zeros((outputs * kernel, inputs)), kind), store(np.zeros((rows, outputs * kernel)), kind)
            module.run("conv_turn", 2, weight, turned, inputs, outputs, kernel)
            module.run("conv_gather", 2, dy, around, steps, outputs, kernel, 1, 0, rows)
            got = np.asarray(read(around, kind), np.float64) @ read(turned, kind)
            dx = np.zeros_like(padded)
            for j in range(kernel):
                dx[:, j : j + steps] += wide[2] @ wide[1][:, :, j]
            close("its input's gradient", got, dx[:, half : half + steps].reshape(rows, -1), tolerance=1e-9)


def test_batch_norm_statistics():
    for kind in KINDS:
        for rows, width in [(37, 70), (300, 9), (1, 3)]:
            module, chunks = Module("batch_norm.cu", kind), 3
            x = store(normal(rows, width) + 100.0, kind)
            wide = np.asarray(read(x, kind), np.float64)
            partial, stats = store(np.zeros((chunks, 2, width), np.float64), ""), store(np.zeros((2, width)), "float")
            now = [store(v, "float") for v in (normal(width), RNG.random(width) + 0.5, np.array([3.0]))]
            after = [store(v, "float") for v in (normal(width), RNG.random(width) + 0.5, np.array([5.0]))]
            for first in (1, 0):
                before = [np.array(v) for v in (now if first else after)]
                running = Running(*[v.ctypes.data for v in now + after])
                step = a_step(first_micro=first)
                module.run("batch_stats_partial", (-(-width // 64), chunks), x, partial, width, number(rows))
                module.run("batch_stats_finish", -(-width // 32), partial, chunks, width, 1e-5, 0.1, stats, running, number(rows), step)
                mean, variance = wide.mean(0), wide.var(0)
                close("means", stats[0], mean)
                close("inverse deviations", stats[1], 1 / np.sqrt(variance + np.float32(1e-5)), tolerance=1e-5)
                close("running means", after[0], 0.9 * before[0] + 0.1 * mean)
                close("running variances", after[1], 0.9 * before[1] + 0.1 * variance * rows / max(rows - 1, 1))
                assert after[2][0] == before[2][0] + 1
            module.run("running_stats", 1, now[0], now[1], stats, width, 1e-5)
            close("from running ones", stats, [now[0], 1 / np.sqrt(now[1].astype(np.float64) + 1e-5)])
            module.run("commit", 1, after[0], now[0], width, a_step(stopped=2))
            assert (now[0] != after[0]).any()
            module.run("commit", 1, after[0], now[0], width, a_step())
            assert (now[0] == after[0]).all()


def pool_case(kind, samples, steps, width, pool, activation, normed, skipped, dropped):
    module, step = Module("norm_pool.cu", kind), a_step(first_micro=0)
    pooled, chunks = steps // pool, 3
    arrays = {n: store(normal(samples, steps, width), kind) for n in ("x", "skip")}
    x, skip = (np.asarray(read(v, kind), np.float64) for v in arrays.values())
    stats = store(np.stack([normal(width), RNG.random(width) + 0.5]), "float") if normed else None
    weight, bias = (store(normal(width), "float") if normed else None for _ in range(2))
    first, facts = number(FIRST), number(samples)
    place = a_drop(first, steps) if dropped else NONE
    kept = drops(step, samples, steps, width) if dropped else np.ones((samples, steps, width))
    hat = (x - stats[0]) * stats[1] if normed else x
    z = hat * weight + bias if normed else x
    bent = (gelu(z) if activation else np.maximum(z, 0)) * kept
    best = bent[:, : pooled * pool].reshape(samples, pooled, pool, width)
    out, which = store(np.zeros((samples, pooled, width)), kind), best.argmax(2)
    a = given(Pool(steps=steps, width=width, pool=pool, gelu=activation), x=arrays["x"], stats=stats, weight=weight, bias=bias)
    other = arrays["skip"] if skipped else None
    module.run("norm_pool_forward", 2, a, other, out, facts, place, step)
    windows = skip[:, : pooled * pool].reshape(samples, pooled, pool, width)
    want = best.max(2) + (windows.max(2) if skipped else 0)
    close("pooled", read(out, kind), want, kind)
    dout, dx = store(normal(samples, pooled, width), kind), store(normal(samples, steps, width), kind)
    dskip = store(normal(samples, steps, width), kind) if skipped else None
    partial, sums = store(np.zeros((chunks, 2, width), np.float64), ""), store(np.zeros((2, width)), "float")
    grads = [store(normal(width), "float") for _ in range(2)]
    before = [np.array(g, np.float64) for g in grads]
    module.run("norm_pool_backward", (-(-width // 64), chunks), a, other, dout, dx, dskip, partial, facts, place, step)
    gave, d, dsk = np.asarray(read(dout, kind), np.float64), np.zeros((samples, steps, width)), np.zeros((samples, steps, width))
    slope = (gelu_slope(z) if activation else (z > 0)) * kept
    at = np.indices((samples, pooled, width))
    d[at[0], at[1] * pool + which, at[2]] = gave
    d *= slope
    dsk[at[0], at[1] * pool + windows.argmax(2), at[2]] = gave
    if skipped:
        close("gradient of what is skipped", read(dskip, kind), dsk, kind)
    if normed:
        module.run("norm_pool_sums", -(-width // 32), partial, chunks, width, sums, grads[0], 1, grads[1], 0, number(samples * steps), step)
        close("gradient of the weight", grads[0], before[0] + (d * hat).sum((0, 1)), tolerance=1e-5)
        close("gradient of the bias", grads[1], d.sum((0, 1)), tolerance=1e-5)
        module.run("norm_pool_through", 2, a, dx, sums, number(samples * steps))
        d = weight * stats[1] * (d - d.mean((0, 1)) - hat * (d * hat).mean((0, 1)))
    close("gradient of the pooled", read(dx, kind), d, kind, None if kind != "float" else 5e-6)


def test_pooling():
    for kind in KINDS:
        for shape in [(2, 11, 70, 2), (3, 9, 5, 3), (2, 6, 64, 1)]:
            for activation, normed, skipped, dropped in [(0, 1, 0, 1), (1, 1, 1, 1), (1, 0, 1, 0), (0, 0, 0, 0), (1, 1, 0, 0)]:
                pool_case(kind, *shape, activation, normed, skipped, dropped)


def test_exact_gelu():
    for kind in KINDS:
        for width in (64, 9):
            module, step, first = Module("gelu_erf.cu", kind), a_step(), number(FIRST)
            h, out = store(2 * normal(3, width), kind), store(np.zeros((3, width)), kind)
            kept, wide = drops(step, 3, 1, width)[:, 0], np.asarray(read(h, kind), np.float64)
            module.run("gelu_erf_forward", 2, h, out, width, number(3), a_drop(first, 1), step)
            close("gelu", read(out, kind), gelu(wide) * kept, kind)
            dh = store(normal(3, width), kind)
            before = np.asarray(read(dh, kind), np.float64)
            module.run("gelu_erf_backward", 2, dh, h, width, number(3), a_drop(first, 1), step)
            close("its gradient", read(dh, kind), before * gelu_slope(wide) * kept, kind)


def test_summary_and_positions():
    for kind in KINDS:
        for samples, steps, width in [(3, 13, 40), (2, 5, 7)]:
            x, out = store(normal(samples, steps, width), kind), store(np.zeros((samples, width)), kind)
            wide = np.asarray(read(x, kind), np.float64)
            module, rows = Module("summary.cu", kind), number(samples * steps)
            for mean in (0, 1):
                module.run("summary_forward", (samples, -(-width // 32)), x, out, steps, width, mean)
                close("summary", read(out, kind), wide[:, -1] + mean * wide.mean(1), kind)
                dx = store(normal(samples, steps, width), kind)
                module.run("summary_backward", 2, out, dx, steps, width, mean, rows)
                want = np.repeat(read(out, kind)[:, None] * mean / steps, steps, 1)
                want[:, -1] += read(out, kind)
                close("its gradient", read(dx, kind), want, kind)
            module, table = Module("positions.cu", kind), store(normal(steps + 3, width), "float")
            placed = store(np.zeros((samples, steps, width)), kind)
            module.run("positions_forward", 2, x, table, placed, steps, width, rows)
            close("positions", read(placed, kind), wide + table[:steps], kind)
            for write in (0, 2):
                grad = store(normal(steps + 3, width), "float")
                want = np.array(grad, np.float64) * (write == 2)
                want[:steps] += wide.sum(0)
                module.run("positions_backward", 2, x, grad, steps, width, grad.size, write, number(samples), a_step())
                close("their gradient", grad, want)


def test_additive_attention():
    for kind in KINDS:
        for samples, steps, width, units in [(3, 37, 40, 8), (2, 9, 7, 70), (2, 300, 33, 5)]:
            module, chunks = Module("additive_pool.cu", kind), 3
            x, u = store(normal(samples, steps, width), kind), store(normal(samples, steps, units), kind)
            weight, bias = store(normal(units), kind), store(normal(1), "float")
            weights, out = store(np.zeros((samples, steps)), "float"), store(np.zeros((samples, width)), kind)
            wide, rows = np.asarray(read(x, kind), np.float64), number(samples * steps)
            bent = np.tanh(np.asarray(read(u, kind), np.float64))
            tiles = -(-samples * steps // 8)
            module.run("additive_pool_scores", tiles, u, weight, bias, weights, units, rows)
            close("bent", read(u, kind), bent, kind)
            bent = np.asarray(read(u, kind), np.float64)
            scores = bent @ read(weight, kind) + bias[0]
            share = np.exp(scores - scores.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            module.run("additive_pool_softmax", samples, weights, steps)
            close("weights", weights, share, tolerance=5e-6)
            module.run("additive_pool_sum", (samples, -(-width // 32)), x, weights, out, steps, width)
            close("sum", read(out, kind), (share[..., None] * wide).sum(1), kind)
            dout, dx = store(normal(samples, width), kind), store(np.zeros((samples, steps, width)), kind)
            dots, sums, partial = (store(np.zeros(n), "float") for n in ((samples, steps), samples, (chunks, units)))
            gave = np.asarray(read(dout, kind), np.float64)
            module.run("additive_pool_dots", tiles, dout, x, weights, dx, dots, steps, width, rows)
            close("gradient of the steps", read(dx, kind), share[..., None] * gave[:, None], kind)
            module.run("additive_pool_shares", samples, dots, weights, sums, steps)
            along = (wide * gave[:, None]).sum(2)
            score = share * (along - (share * along).sum(1, keepdims=True))
            close("gradient of the scores", dots, score, tolerance=2e-5)
            assert np.abs(sums - score.sum(1)).max() < 1e-5
            module.run("additive_pool_units", (-(-units // 64), chunks), u, dots, weight, partial, units, rows)
            close("gradient of the weight", partial.sum(0), (score[..., None] * bent).sum((0, 1)), tolerance=5e-5)
            close("gradient of the units", read(u, kind), score[..., None] * read(weight, kind) * (1 - bent**2), kind, tolerance=2e-5 if kind == "float" else None)


def series_loss(logits, sure, values, classes, wanted, weights, smooth, gamma, of, pairs):
    """Losses and gradients by their definition; `pairs`: partner and share of each sample, itself first."""
    losses, grads = np.zeros(len(classes)), [np.zeros_like(v) for v in (logits, sure, values)]
    for s in range(len(classes)):
        for other, share in pairs[s]:
            label = classes[other]
            if label >= 0:
                p = np.exp(logits[s] - logits[s].max())
                p /= p.sum()
                target = np.full(len(p), smooth / len(p))
                target[label] += 1 - smooth
                target *= weights
                entropy, q = -(target * np.log(p)).sum(), p[label]
                focus, slope = (1 - q) ** gamma, -gamma * (1 - q) ** (gamma - 1) if gamma else 0.0
                losses[s] += share * of[0] * focus * entropy
                grads[0][s] += share * of[0] * (focus * (target.sum() * p - target) + entropy * slope * q * (np.eye(len(p))[label] - p))
                c = sigmoid(sure[s, 0])
                apart = c - (logits[s].argmax() == label)
                losses[s] += share * of[1] * apart**2
                grads[1][s, 0] += share * of[1] * 2 * apart * c * (1 - c)
            known = ~np.isnan(wanted[other])
            apart = np.where(known, values[s] - np.nan_to_num(wanted[other]), 0.0)
            near = np.abs(apart) < 1
            each = np.where(near, 0.5 * apart**2, np.abs(apart) - 0.5) * known
            losses[s] += share * of[2] * each.sum() / len(known)
            grads[2][s] += share * of[2] / len(known) * np.where(near, apart, np.sign(apart)) * known
    return losses, grads


def test_the_loss_of_series():
    for kind in KINDS:
        for shift, gamma in [(0, 0.0), (2, 1.5)]:
            module, samples, share = Module("series_loss.cu", kind), 7, np.float32(0.7)
            answers = [store(1.5 * normal(samples, n), kind) for n in (3, 1, 2)]
            grads = [store(normal(*a.shape), kind) for a in answers]
            classes = RNG.integers(0, 3, samples)
            classes[2] = -1
            wanted = store(normal(samples, 2), "float")
            wanted[3, 1] = np.nan
            weights, losses = store(np.array([0.5, 2.0]), "float"), store(np.zeros(samples), "float")
            facts = store(np.array([share.view(np.uint32), shift, FIRST], np.uint32), "")
            terms = Terms(0.1, gamma, 1.25, 0.5, 0.3, 2)
            heads = [given(Answer(outputs=a.shape[1]), out=a, grad=g) for a, g in zip(answers, grads)]
            given_classes = store(classes.astype(np.int32).view(np.uint32), "")
            step = a_step(loss_scale=4.0)
            module.run("series_loss", 1, *heads, terms, given_classes, wanted, facts, weights, losses, number(samples), step)
            itself = lambda s: [(s, float(share)), ((s + shift) % samples, 1 - float(share))] if shift else [(s, 1.0)]
            wide = [np.asarray(read(a, kind), np.float64) for a in answers]
            want, exact = series_loss(*wide, classes, wanted.astype(np.float64), [0.5, 2.0, 1.0], float(np.float32(0.1)), gamma,
                                      [1.25, 0.5, float(np.float32(0.3))], [itself(s) for s in range(samples)])  # fmt: skip
            close("losses", losses, want)
            for got, g in zip(grads, exact):
                close("gradients", read(got, kind), 4.0 * g, kind)


def lstm(x_share, weight, bias, reverse):
    """Gates, cells and outputs of all steps; `x_share` has the inputs' share."""
    samples, steps, wide = x_share.shape
    hidden = wide // 4
    gates, cells, out = np.zeros_like(x_share), np.zeros((samples, steps, hidden)), np.zeros((samples, steps, hidden))
    h, c = np.zeros((samples, hidden)), np.zeros((samples, hidden))
    for t in reversed(range(steps)) if reverse else range(steps):
        i, f, g, o = np.split(x_share[:, t] + h @ weight.T + bias, 4, 1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        gates[:, t], cells[:, t], out[:, t] = np.concatenate([i, f, g, o], 1), c, h
    return gates, cells, out


def lstm_back(gates, cells, weight, dout, reverse):
    """Gradients of the gates' sums."""
    samples, steps, hidden = cells.shape
    d, dh, dc = np.zeros_like(gates), np.zeros((samples, hidden)), np.zeros((samples, hidden))
    for t in range(steps) if reverse else reversed(range(steps)):
        i, f, g, o = np.split(gates[:, t], 4, 1)
        before = t + 1 if reverse else t - 1
        earlier = cells[:, before] if 0 <= before < steps else np.zeros((samples, hidden))
        dh = dh + dout[:, t]
        bent = np.tanh(cells[:, t])
        dc = dc + dh * o * (1 - bent**2)
        d[:, t] = np.concatenate([dc * g * i * (1 - i), dc * earlier * f * (1 - f), dc * i * (1 - g**2), dh * bent * o * (1 - o)], 1)
        dc, dh = dc * f, d[:, t] @ weight
    return d


WALKED = {16: 128, 32: 256, 64: 512}


def walked(kind, hidden, group, reverse, cuts, rows, samples=5, steps=9):
    """Forward and backward in stretches; `rows` None: a step at a time."""
    module = Module("lstm.cu" if rows is None else "lstm_walk.cu", kind)
    stride, slices = 2 * hidden + 3, -(-hidden // 16)
    weight, (one, other) = store(normal(4 * hidden, hidden) / math.sqrt(hidden), kind), [store(0.2 * normal(4 * hidden), "float") for _ in range(2)]
    share, dout = store(normal(samples, steps, 4 * hidden), kind), store(normal(samples, steps, stride), kind)
    wide = [np.asarray(read(v, kind), np.float64) for v in (share, weight, dout)]
    want, cells_want, out_want = lstm(wide[0], wide[1], one + other, reverse)
    d_want = lstm_back(want, cells_want, wide[1], wide[2][..., 3 : 3 + hidden], reverse)
    out = store(np.zeros((samples, steps, stride)), kind)
    stretches = list(zip([0] + cuts, cuts + [steps]))
    walk = [(steps - b, steps - a) for a, b in stretches] if reverse else stretches
    start, held, itemsize = None, [], share.itemsize
    for at, (a, b) in enumerate(walk):
        gates = store(read(share, kind)[:, a:b], kind)
        cells, end = (store(np.zeros(s), "float") for s in ((samples, b - a, hidden), (samples, hidden)))
        counters = number(*[0] * 32 * samples)
        l = given(Lstm(stride=stride, samples=samples, steps=steps, from_=a, count=b - a, hidden=hidden, reverse=reverse, begins=at == 0,
                       group=group), gates=gates, weight=weight, input_bias=one, state_bias=other, cells=cells, start=start, end=end,
                  counters=counters)  # fmt: skip
        l.out = out.ctypes.data + 3 * itemsize
        if rows is None:
            for nth in range(b - a):
                t = b - 1 - nth if reverse else a + nth
                before = t + 1 if reverse else t - 1
                if at or nth:
                    more = read(out, kind)[:, before, 3 : 3 + hidden] @ read(weight, kind).T
                    gates[:, t - a] = store(read(gates, kind)[:, t - a] + more, kind)
                module.run("lstm_step", 2, l, nth)
        else:
            smem = 4 * (16 * 8 * rows + 8 * 16 * 64)
            l.groups = -(-samples // group)
            module.run(f"lstm_walk_{rows}", (slices, l.groups), l, Lstm(), smem=smem)
        close("gates", read(gates, kind), want[:, a:b], kind, 5e-6 if kind == "float" else 2e-2)
        close("cells", cells, cells_want[:, a:b], kind, 5e-6 if kind == "float" else 3e-2)
        held.append((a, b, gates, cells, start))
        start = end
    close("outputs", read(out, kind)[..., 3 : 3 + hidden], out_want, kind, 5e-6 if kind == "float" else 3e-2)
    assert (read(out, kind)[..., :3] == 0).all() and (read(out, kind)[..., 3 + hidden :] == 0).all()
    carry = store(np.full((samples, 2 * hidden), np.nan), "float")
    for at, (a, b, gates, cells, start) in reversed(list(enumerate(held))):
        shares, counters = store(np.full((2, slices, samples, hidden), np.nan), "float"), number(*[0] * 32 * samples)
        l = given(LstmBack(stride=stride, samples=samples, steps=steps, from_=a, count=b - a, hidden=hidden, reverse=reverse,
                           begins=at == 0, last=at + 1 == len(held), group=group), gates=gates, weight=weight, cells=cells, start=start,
                  carry=carry, shares=shares, counters=counters)  # fmt: skip
        l.dout = dout.ctypes.data + 3 * itemsize
        if rows is None:
            for nth in reversed(range(b - a)):
                module.run("lstm_step_back", 2, l, nth)
                if at or nth:
                    t = b - 1 - nth if reverse else a + nth
                    carry[:, :hidden] = read(gates, kind)[:, t - a] @ read(weight, kind)
        else:
            l.groups = -(-samples // group)
            module.run(f"lstm_walk_back_{rows}", (slices, l.groups), l, LstmBack(), smem=4 * 16 * 80)
        close("gradients of gates", read(gates, kind), d_want[:, a:b], kind, 2e-5 if kind == "float" else 8e-2)


def test_an_lstm_a_step_at_a_time():
    for kind in KINDS:
        for reverse in (0, 1):
            walked(kind, 10, 1, reverse, [], None)
            walked(kind, 8, 1, reverse, [2, 6], None)


def test_an_lstm_in_one_launch():
    for kind in KINDS:
        for hidden, group, rows in [(10, 2, 16), (16, 5, 16), (40, 3, 16), (132, 2, 32)]:
            for reverse in (0, 1):
                walked(kind, hidden, group, reverse, [], rows)
                walked(kind, hidden, group, reverse, [2, 6], rows)


def test_many_samples_are_walked_in_passes():
    walked("float", 24, 20, 0, [3], 16, samples=37, steps=5)
    walked("float", 260, 3, 1, [], 64, samples=3, steps=3)


def test_both_directions_in_one_launch_are_each_alone():
    module, hidden, samples, steps, kind = Module("lstm_walk.cu"), 40, 5, 6, "float"
    smem, slices = 4 * (16 * 8 * 16 + 8 * 16 * 64), 3

    def both(groups):
        rng, made, back = np.random.default_rng(3), [], []
        out, dout = store(np.zeros((samples, steps, 2 * hidden)), kind), store(rng.standard_normal((samples, steps, 2 * hidden)), kind)
        for reverse in (0, 1):
            draw = lambda *shape: store(0.3 * rng.standard_normal(shape), kind)
            arrays = dict(gates=draw(samples, steps, 4 * hidden), weight=draw(4 * hidden, hidden), input_bias=draw(4 * hidden),
                          state_bias=draw(4 * hidden), cells=draw(samples, steps, hidden), counters=number(*[0] * 32 * samples))  # fmt: skip
            shape = dict(stride=2 * hidden, samples=samples, steps=steps, from_=0, count=steps, hidden=hidden, reverse=reverse, begins=1,
                         group=2, groups=3)  # fmt: skip
            made.append((given(Lstm(**shape, out=out.ctypes.data + 4 * hidden * reverse), **arrays), arrays))
            more = dict(carry=draw(samples, 2 * hidden), shares=draw(2, slices, samples, hidden), counters=number(*[0] * 32 * samples))
            l = LstmBack(**shape, last=1, dout=dout.ctypes.data + 4 * hidden * reverse)
            back.append((given(l, gates=arrays["gates"], weight=arrays["weight"], cells=arrays["cells"], **more), more))
        for kernel, of, none in [("lstm_walk_16", made, Lstm()), ("lstm_walk_back_16", back, LstmBack())]:
            size = smem if kernel == "lstm_walk_16" else 4 * 16 * 80
            if groups == 2:
                module.run(kernel, (slices, 6), of[0][0], of[1][0], smem=size)
            else:
                for l, _ in of:
                    module.run(kernel, (slices, 3), l, none, smem=size)
        return [np.array(v) for v in [out] + [a["gates"] for _, a in made] + [a["cells"] for _, a in made]]

    for together, alone in zip(both(2), both(1)):
        assert (together == alone).all() and np.isfinite(together).all()


def test_scores_of_attention_between_products():
    module, step, samples, heads = Module("attention_scores.cu"), a_step(), 5, 3
    for steps, dropped in [(9, 1), (150, 1), (130, 0)]:
        first, many, head, d = 2, 3, 1, 4
        raw, dp = normal(many, steps, steps), normal(many, steps, steps)
        scores, slopes = store(raw, "float"), store(dp, "float")
        lse, dots = store(np.zeros((samples * steps, heads)), "float"), store(normal(samples * steps, heads), "float")
        sample, offset = store(np.arange(FIRST, FIRST + samples).astype(np.uint32), ""), number(*[0] * samples)
        a = Attention(heads=heads, kv_heads=heads, d=d, max_queries=steps, max_keys=steps, place=PLACE, drop_scale=SCALE)
        a.threshold = THRESHOLD if dropped else 0
        given(a, lse=lse, dots=dots, sample=sample, offset=offset)
        grid = -(-many * steps // 8)
        module.run("attention_scores_forward", grid, a, step, scores, first, many, head)
        rows = [(FIRST + first + s, head * steps + t) for s in range(many) for t in range(steps)]
        kept = np.array([factors(step, s, PLACE, r, steps, THRESHOLD, SCALE) if dropped else np.ones(steps) for s, r in rows])
        kept = kept.reshape(many, steps, steps)
        wide = store(raw, "float").astype(np.float64)
        exact = np.log(np.exp(wide).sum(2))
        p = np.exp(wide - exact[..., None])
        close("probabilities", scores, p * kept)
        close("their sums", lse.reshape(samples, steps, heads)[first : first + many, :, head], exact)
        scores = store(raw, "float")
        module.run("attention_scores_backward", grid, a, step, scores, slopes, first, many, head)
        close("probabilities again", scores, p * kept, tolerance=5e-6)
        dot = dots.reshape(samples, steps, heads)[first : first + many, :, head]
        close("gradients of scores", slopes, p * (dp * kept - dot[..., None]), tolerance=5e-6)


def test_rows_of_a_stretch_are_gathered():
    for kind in KINDS:
        for width in (8, 5):
            module, samples, steps, a, count = Module("lstm.cu", kind), 3, 7, 2, 4
            x = store(normal(samples, steps, width + 8), kind)
            for shift in (0, -1, 1, -3, 3):
                part = store(np.zeros((7, width)), kind)
                module.run("lstm_gather", 1, x, width + 8, part, width, steps, a, count, shift, 4, 7)
                padded = np.pad(read(x, kind), ((0, 0), (3, 3), (0, 0)))
                want = padded[:, 3 + a + shift : 3 + a + shift + count, :width].reshape(-1, width)[4:11]
                close("gathered", read(part, kind), want, tolerance=1e-9)


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not wanted or any(w in name for w in wanted)):
            test()
            print(name[5:].replace("_", " "), flush=True)
