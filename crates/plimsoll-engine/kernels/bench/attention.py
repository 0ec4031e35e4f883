#!/usr/bin/env python3
"""Attention on a card: the tensor core kernels against attention.cu's and PyTorch's, and how long they take beside PyTorch's.

Needs a card, PyTorch and NVRTC. Usage: attention.py [label=file,arch,define,... ...]; without arguments the kernels as they are, by
`wgmma` and by `mma.sync`. With SAY=v every comparison is printed, with SAY=p PyTorch is not timed.
"""

import ctypes
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor

KERNELS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [KERNELS, os.path.join(KERNELS, "emulated")]
import check  # noqa: E402
from emulate import Attention, Step  # noqa: E402


def build(job):
    label, file, arch, defines = job
    options = [f"--gpu-architecture={arch}", "-DACT=bf16", "-default-device", "--ptxas-options=-v", *defines]
    log, image = check.compile_one(check.library(), os.path.join(KERNELS, file), options)
    used = {}
    for name, text in re.findall(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry|\Z)", log, re.S):
        registers, spill = re.search(r"Used (\d+) registers", text), re.search(r"(\d+) bytes spill stores", text)
        used[name] = (int(registers[1]) if registers else -1, int(spill[1]) if spill else 0)
    odd = [line for line in log.splitlines() if "error" in line or "warning" in line.lower() or "C75" in line]
    return label, image, used, odd if image else log.splitlines()[:30]


def start(jobs):
    with ProcessPoolExecutor(14) as pool:
        return list(pool.map(build, jobs))


class Card:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")

    def said(self, rc, what):
        if rc:
            raise RuntimeError(f"{what}: {rc}")

    def module(self, image):
        module = ctypes.c_void_p()
        self.said(self.cuda.cuModuleLoadData(ctypes.byref(module), image), "load")
        return module

    def function(self, module, name):
        function = ctypes.c_void_p()
        self.said(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name)
        return function

    def launch(self, function, grid, block, smem, *arguments):
        if smem > 48 << 10:
            self.said(self.cuda.cuFuncSetAttribute(function, 8, smem), f"shared memory {smem}")
        held = [a if isinstance(a, (ctypes._SimpleCData, ctypes.Structure)) else ctypes.c_void_p(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(h) for h in held])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.said(
            self.cuda.cuLaunchKernel(function, grid[0], grid[1], 1, block, 1, 1, smem, stream, pointers, None), "launch"
        )


class Case:
    """Inputs, outputs and arguments; queries, keys and values side by side in one tensor where they are as long."""

    def __init__(self, queries, keys, heads, kv_heads, d, causal=0, window=0, bias=False, rate=0.0, scale=None):
        self.queries, self.keys, self.heads, self.kv_heads, self.d, self.rate = queries, keys, heads, kv_heads, d, rate
        rows, krows, width, kwidth = sum(queries), sum(keys), heads * d, kv_heads * d
        self.rows, self.krows = rows, krows
        number = lambda *shape: torch.randn(*shape, device="cuda").to(torch.bfloat16)
        nothing = lambda *shape: torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16)
        if queries == keys:
            qkv, dqkv = number(rows, width + 2 * kwidth), nothing(rows, width + 2 * kwidth)
            self.q, self.k, self.v = qkv.split([width, kwidth, kwidth], 1)
            self.dq, self.dk, self.dv = dqkv.split([width, kwidth, kwidth], 1)
        else:
            self.q, self.k, self.v = number(rows, width), number(krows, kwidth), number(krows, kwidth)
            self.dq, self.dk, self.dv = nothing(rows, width), nothing(krows, kwidth), nothing(krows, kwidth)
        self.out, self.dout = nothing(rows, width), number(rows, width)
        single = lambda *shape: torch.full(shape, float("nan"), device="cuda")
        self.lse, self.dots = single(rows, heads), single(rows, heads)
        word = lambda x: torch.tensor(x, device="cuda", dtype=torch.int32)
        sums = lambda x: word([0, *torch.tensor(x).cumsum(0).tolist()])
        self.q_starts, self.k_starts, self.documents = sums(queries), sums(keys), word([len(queries)])
        self.sample, self.offset = word(list(range(len(queries)))), word([0] * len(queries))
        self.partial = single(max(heads // kv_heads, 1) * 2 * krows * kwidth)
        step = Step()
        step.seed, step.update = 12345, 3
        self.step = torch.frombuffer(bytearray(bytes(step)), dtype=torch.uint8).cuda()
        mq, mk = max(queries), max(keys)
        if bias:
            self.bias, self.dbias = torch.randn(heads, mq + mk - 1, device="cuda"), single(heads, mq + mk - 1)
            self.dbias_partial = single((rows // 16 + len(queries)) * heads * (mk + 64))
        self.a = a = Attention()
        for name, kind in Attention._fields_:
            if kind is ctypes.c_void_p and hasattr(self, name):
                setattr(a, name, getattr(self, name).data_ptr())
        for name in ("q", "k", "v", "dq", "dk", "dv"):
            setattr(a, name + "_stride", getattr(self, name).stride(0))
        a.heads, a.kv_heads, a.d, a.scale = heads, kv_heads, d, scale or d**-0.5
        a.causal, a.window, a.max_queries, a.max_keys = causal, window, mq, mk
        a.place, a.threshold, a.drop_scale = 6, int(rate * 2**32), 1 / (1 - rate)

    def clear(self):
        for name in ("out", "dq", "dk", "dv", "lse", "dots"):
            getattr(self, name).fill_(float("nan"))
        if self.a.bias:
            self.dbias.zero_()

    def results(self):
        names = ["out", "lse", "dq", "dk", "dv"] + (["dbias"] if self.a.bias else [])
        return {n: getattr(self, n).float().clone() for n in names}

    def short(self):
        """Whether there are queries that see nothing."""
        return bool(self.a.causal) and any(k < q for q, k in zip(self.queries, self.keys))

    def torch_results(self):
        """In float32 by PyTorch, without dropout."""
        q, k, v = (x.float().detach().requires_grad_() for x in (self.q, self.k, self.v))
        bias = self.bias.detach().requires_grad_() if self.a.bias else None
        out, q0, k0 = [], 0, 0
        for nq, nk in zip(self.queries, self.keys):
            of = lambda x, first, count, heads: x[first : first + count].view(count, heads, self.d).transpose(0, 1)
            i, j = torch.arange(nq, device="cuda")[:, None], torch.arange(nk, device="cuda")[None]
            mask = torch.zeros(self.heads, nq, nk, device="cuda")
            if bias is not None:
                mask = mask + bias[:, j - i + self.a.max_queries - 1]
            if self.a.causal:
                gone = (j > i) | ((j <= i - self.a.window) if self.a.window else False)
                mask = mask.masked_fill(gone, float("-inf"))
            repeat = self.heads // self.kv_heads
            many = lambda x: x.repeat_interleave(repeat, 0)
            o = torch.nn.functional.scaled_dot_product_attention(
                of(q, q0, nq, self.heads), many(of(k, k0, nk, self.kv_heads)), many(of(v, k0, nk, self.kv_heads)), mask, scale=self.a.scale
            )
            out.append(o.transpose(0, 1).reshape(nq, -1))
            q0, k0 = q0 + nq, k0 + nk
        out = torch.cat(out)
        out.backward(self.dout.float())
        found = {"out": out.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}
        return {**found, "dbias": bias.grad} if bias is not None else found


class Kernels:
    """The tensor core kernels of one module."""

    def __init__(self, card, image, any_, defines):
        self.card, self.module, self.any = card, card.module(image), any_
        of = lambda name, usual: next((int(x.split("=")[1]) for x in defines if x.startswith(f"-D{name}=")), usual)
        self.f, self.q, self.kv = of("ROWS_F", 64), of("ROWS_Q", 64), of("ROWS_KV", 64)
        names = {"fwd": "attention_forward_mma", "q": "attention_backward_q_mma", "kv": "attention_backward_kv_mma", "sum": "attention_kv_sum"}
        self.of = {k: card.function(self.module, n) for k, n in names.items()}

    def line(self, rows):
        return 8 * (rows + 64) if self.any else 0

    def slots(self, c, rows, tile):
        return rows // tile + len(c.queries) * (2 if c.a.causal else 1)

    def forward(self, c):
        grid = (c.heads, self.slots(c, c.rows, self.f))
        self.card.launch(self.of["fwd"], grid, 2 * self.f, 2 * c.d * (self.f + 256) + self.line(self.f), c.a, c.step.data_ptr())

    def backward_q(self, c):
        c.a.tile = self.q
        near = 4 * (self.q * 72 + c.a.max_keys + self.q) if c.a.dbias_partial else 0
        smem = 2 * c.d * (2 * self.q + 256) + 4 * self.q + self.line(self.q) + near
        self.card.launch(self.of["q"], (c.heads, self.slots(c, c.rows, self.q)), 2 * self.q, smem, c.a, c.step.data_ptr())

    def backward_kv(self, c, splits):
        smem = 2 * c.d * (2 * self.kv + 256) + 1024 + self.line(self.kv) + (16 * self.kv if self.any else 0)
        grid, partial = (c.kv_heads * splits, self.slots(c, c.krows, self.kv)), c.partial.data_ptr() if splits > 1 else 0
        self.card.launch(self.of["kv"], grid, 2 * self.kv, smem, c.a, c.step.data_ptr(), partial, ctypes.c_uint32(splits))
        if splits > 1:
            grid = min(-(-c.krows * c.kv_heads * c.d // 2048), 4096)
            self.card.launch(self.of["sum"], (grid, 1), 256, 0, c.a, partial, ctypes.c_uint32(splits))


class Plain:
    """attention.cu's, with tiles of 32."""

    def __init__(self, card, image):
        self.card, module = card, card.module(image)
        names = "attention_forward_32 attention_dots attention_backward_q_32 attention_backward_kv_32 attention_bias_sum".split()
        self.of = [card.function(module, n) for n in names]

    def all(self, c):
        c.a.tile, row, square, step = 32, 32 * (c.d + 1), 32 * 33, c.step.data_ptr()
        grid, kgrid = (c.rows // 32 + len(c.queries), c.heads), (c.krows // 32 + len(c.keys), c.kv_heads)
        near = c.a.max_keys + 32 if c.a.dbias_partial else 0
        self.card.launch(self.of[0], grid, 256, 4 * (2 * row + square + 96), c.a, step)
        self.card.launch(self.of[1], (-(-c.rows * c.heads // 8), 1), 256, 0, c.a)
        self.card.launch(self.of[2], grid, 256, 4 * (4 * row + 2 * square + near), c.a, step)
        self.card.launch(self.of[3], kgrid, 256, 4 * (4 * row + 2 * square), c.a, step)
        self.bias_sum(c)

    def bias_sum(self, c):
        if c.a.bias:
            self.card.launch(self.of[4], (-(-(c.a.max_queries + c.a.max_keys - 1) // 32), c.heads), 256, 0, c.a)


def apart(got, want):
    there = torch.isfinite(want)
    if not torch.equal(torch.isfinite(got), there):
        return float("inf")
    got, want = got[there], want[there]
    return float((got - want).norm() / want.norm().clamp_min(1e-30))


def test(kernels, plain, case, splits):
    """Each kernel gets what the plain ones left."""
    case.clear()
    plain.all(case)
    plain_results, kept = case.results(), (case.lse.clone(), case.out.clone())
    found = []
    for _ in range(2):
        case.clear()
        kernels.forward(case)
        ahead = case.lse.clone(), case.out.clone()
        case.lse.copy_(kept[0]), case.out.copy_(kept[1])
        kernels.backward_q(case)
        kernels.backward_kv(case, splits)
        plain.bias_sum(case)
        case.lse.copy_(ahead[0]), case.out.copy_(ahead[1])
        torch.cuda.synchronize()
        found.append(case.results())
    same = all(torch.equal(found[0][n].nan_to_num(), found[1][n].nan_to_num()) for n in found[0])
    far = {n: apart(found[0][n], plain_results[n]) for n in found[0]}
    far_torch = {n: apart(found[0][n], w) for n, w in case.torch_results().items()} if not case.rate and not case.short() else {}
    worst = max([x for n, x in far.items()] + list(far_torch.values()))
    text = " ".join(f"{n} {x:.1e}/{far_torch.get(n, float('nan')):.1e}" for n, x in far.items())
    return same and worst < 1.5e-2, f"{'same' if same else 'MOVES'} {text}"


def timed(run, sets, rounds=5):
    """Microseconds of `run(set)`, a captured graph's mean over all sets."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for s in sets:
            run(s)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for s in sets:
                run(s)
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / rounds / len(sets))
    return sorted(times)[3]


def peer(case, backend, bias=False):
    """Microseconds of PyTorch's forward and backward, keys and values already as many heads as queries."""
    from torch.nn.attention import sdpa_kernel

    b, s, sk = len(case.queries), case.queries[0], case.keys[0]
    make = lambda n: torch.randn(b, n, case.heads, case.d, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
    q, k, v, dout = make(s), make(sk), make(sk), make(s).detach()
    mask = torch.randn(1, case.heads, s, sk, device="cuda", dtype=torch.bfloat16).requires_grad_() if bias else None

    def forward(_):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout_p=case.rate, is_causal=bool(case.a.causal) and not bias)

    wanted = [q, k, v] + ([mask] if bias else [])
    with sdpa_kernel(backend):
        both = timed(lambda x: torch.autograd.grad(forward(x), wanted, dout), [0])
        with torch.no_grad():
            one = timed(forward, [0])
    return one, both - one


USUAL = ["w64=attention_mma_64.cu,sm_90a", "w128=attention_mma_128.cu,sm_90a", "any64=attention_mma_any_64.cu,sm_90a",
         "any128=attention_mma_any_128.cu,sm_90a", "m64=attention_mma_64.cu,sm_90", "m128=attention_mma_128.cu,sm_90",
         "many64=attention_mma_any_64.cu,sm_90", "many128=attention_mma_any_128.cu,sm_90"]  # fmt: skip


def main():
    jobs = [("plain", "attention.cu", "sm_90", [])]
    for given in sys.argv[1:] or USUAL:
        label, rest = given.split("=", 1)
        file, arch, *defines = rest.split(",")
        jobs.append((label, file, arch, ["-D" + d for d in defines]))
    built = start(jobs)
    global torch
    import torch

    torch.manual_seed(1)
    torch.zeros(1, device="cuda")
    card, of, plain = Card(), {}, None
    for (label, file, arch, defines), (_, image, used, odd) in zip(jobs, built):
        print(label, arch, *defines, {n.replace("attention_", ""): u for n, u in used.items() if "mma" in n}, *odd, sep=" | ", flush=True)
        if image is None:
            continue
        if label == "plain":
            plain = Plain(card, image)
        else:
            of[label] = (Kernels(card, image, "_any_" in file, defines), 64 if "64" in file else 128)

    def cases(d, any_):
        yield "lengths", Case([70, 1, 133], [40, 50, 200], 2, 2, d), 1
        yield "causal grouped packed", Case([300, 3, 64, 129], [300, 3, 64, 129], 6, 2, d, causal=1), 3
        yield "whole groups", Case([257, 512], [257, 512], 6, 2, d, causal=1), 1
        yield "window", Case([450, 20], [450, 20], 2, 1, d, causal=1, window=100), 2
        yield "few keys", Case([190], [20], 1, 1, d, causal=1, window=8), 1
        if any_:
            yield "bias", Case([170, 9], [140, 90], 2, 2, d, bias=True, scale=0.3), 1
            yield "causal bias dropout", Case([270, 66], [270, 66], 2, 2, d, causal=1, bias=True, rate=0.2), 1
            yield "dropout grouped", Case([270, 66], [270, 66], 4, 2, d, rate=0.2), 2

    good = {}
    for label, (kernels, d) in of.items():
        for what, case, splits in cases(d, kernels.any):
            try:
                fine, text = test(kernels, plain, case, splits)
            except RuntimeError as e:
                print(label, "broke:", e, flush=True)
                sys.exit(1)
            good[label] = good.get(label, True) and fine
            if not fine or "v" in os.environ.get("SAY", ""):
                print(label, what, "ok" if fine else "WRONG", text, flush=True)
        print(label, "all right" if good[label] else "WRONG", flush=True)

    peers = []

    def shape(what, make, wanted, splits_tried, flops, backends, bias=False):
        sets = [make() for _ in range(4)]
        print(f"== {what}: us (TFLOP/s)", flush=True)
        rate = lambda us, share: f"{us:7.1f} ({flops * share / us / 1e6:4.0f})"
        for label in [x for x in of if wanted(x)]:
            kernels = of[label][0]
            fwd = timed(kernels.forward, sets)
            q = timed(kernels.backward_q, sets)
            kv = {s: timed(lambda c: kernels.backward_kv(c, s), sets) for s in splits_tried}
            best = min(kv.values())
            text = " ".join(f"kv/{s} {us:6.1f}" for s, us in kv.items())
            print(f"{label:10} forward {rate(fwd, 1)} backward {rate(q + best, 2.5)}: q {q:6.1f} {text}", flush=True)
        peers.append((what, sets[0], rate, backends, bias))

    both = ["FLASH_ATTENTION", "CUDNN_ATTENTION"]
    kind = lambda d, any_: lambda label: of[label][1] == d and of[label][0].any == any_
    shape("8 x 1024 causal, 14 / 2 heads of 64", lambda: Case([1024] * 8, [1024] * 8, 14, 2, 64, causal=1), kind(64, False), [7, 4, 2, 1],
          2 * 8 * 14 * 1024 * 1024 * 64, both)  # fmt: skip
    shape("8 x 1024 causal, 16 / 8 heads of 128", lambda: Case([1024] * 8, [1024] * 8, 16, 8, 128, causal=1), kind(128, False), [2, 1],
          2 * 8 * 16 * 1024 * 1024 * 128, both)  # fmt: skip
    t5 = lambda rate: lambda: Case([256] * 32, [256] * 32, 8, 8, 64, bias=True, rate=rate, scale=1.0)
    flops = 4 * 32 * 8 * 256 * 256 * 64
    shape("32 x 256, 8 heads of 64, bias", t5(0.0), kind(64, True), [1], flops, ["EFFICIENT_ATTENTION"], True)
    shape("32 x 256, 8 heads of 64, bias, dropout", t5(0.1), kind(64, True), [1], flops, ["EFFICIENT_ATTENTION"], True)
    shape("32 x 256, 8 heads of 64", lambda: Case([256] * 32, [256] * 32, 8, 8, 64), kind(64, False), [1], flops, both)
    # Last: a capture that fails spoils the rest.
    from torch.nn.attention import SDPBackend

    for what, case, rate, backends, bias in peers if "p" not in os.environ.get("SAY", "") else []:
        print("== PyTorch,", what, flush=True)
        for name in backends:
            try:
                one, two = peer(case, getattr(SDPBackend, name), bias)
                print(f"{name:20} forward {rate(one, 1)} backward {rate(two, 2.5)}", flush=True)
            except Exception as e:
                print(name, str(e)[:200], flush=True)
    sys.exit(0 if all(good.values()) else 1)


if __name__ == "__main__":
    main()
