"""PyTorch's half of `cargo bench -p plimsoll-engine --bench series`: trains HybridCNNLSTM v1 or v2 on random windows, prints seconds and peak memory.

    series_torch.py --model v1|v2 --batch 16 [--features N --steps 5 --threads N --checkpoint --cpu-clock] [--card f32|tf32|bf16 [--compile]]

Prints one JSON object: `seconds` (median of the updates behind the first), `best`, `peak_rss_bytes` (VmHWM), and
`base_rss_bytes`, what torch itself and the module took before the first step. `--checkpoint` computes the blocks of
convolutions and the LSTM again in the backward pass (torch.utils.checkpoint). `--card` runs on a card, beside `--bench card`: in f32
with TF32 in no product or in all of them, or with autocast to bf16 (`--compile`: by torch.compile); windows are copied from pinned memory every
step, and `peak_card_bytes` is what the driver counts for everything, `allocated_card_bytes` what torch had allocated at most.
"""

import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "crates", "plimsoll-engine", "tests", "peer"))


def memory(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["v1", "v2"], required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--features", type=int)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--card", choices=["f32", "tf32", "bf16"])
    parser.add_argument("--compile", action="store_true", help="torch.compile of the module, on a card")
    parser.add_argument("--cpu-clock", action="store_true", help="seconds are the process's CPU time")
    args = parser.parse_args()
    clock = time.process_time if args.cpu_clock else time.perf_counter

    import torch
    from torch.utils.checkpoint import checkpoint

    import series_modules

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    spec = series_modules.hybrid(args.model)
    spec["features"] = args.features or spec["features"]
    model = series_modules.Model(spec)
    if args.checkpoint:
        def forward(x):
            x = x.reshape(x.shape[0], 1, -1)
            for block in model.cnn_blocks:
                x = checkpoint(block, x, use_reentrant=False)
            row = model.attention(checkpoint(lambda y: model.lstm(y)[0], x.transpose(1, 2), use_reentrant=False))
            return tuple(getattr(model, spec[part]["name"])(row) for part in ("classes", "confidence", "values"))
    else:
        forward = model
    if args.card:
        return on_card(args, torch, series_modules, spec, model, forward)
    optim = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    inputs = torch.randn(args.batch, spec["window"], spec["features"])
    classes, values = torch.arange(args.batch) % 3, torch.randn(args.batch, 1)
    base, times = memory("VmRSS:"), []
    for _ in range(args.steps + 1):
        began = clock()
        optim.zero_grad(set_to_none=True)
        loss = series_modules.loss_sum(spec, forward(inputs), classes, values) / args.batch
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        times.append(clock() - began)
    seconds = statistics.median(times[1:])
    print(json.dumps({"name": args.model, "seconds": seconds, "best": min(times[1:]),
                      "peak_rss_bytes": memory("VmHWM:"), "base_rss_bytes": base}))


def on_card(args, torch, series_modules, spec, model, forward):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.card == "tf32"
    model.to("cuda")
    if args.compile:
        forward = torch.compile(forward)
    optim = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
    inputs = torch.randn(args.batch, spec["window"], spec["features"]).pin_memory()
    classes, values = (torch.arange(args.batch) % 3).pin_memory(), torch.randn(args.batch, 1).pin_memory()
    times, losses = [], []
    for _ in range(args.steps + 5):
        began = time.perf_counter()
        optim.zero_grad(set_to_none=True)
        x, c, v = (t.to("cuda", non_blocking=True) for t in (inputs, classes, values))
        with torch.autocast("cuda", torch.bfloat16, enabled=args.card == "bf16"):
            answers = forward(x)
        loss = series_modules.loss_sum(spec, [a.float() for a in answers], c, v) / args.batch
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - began)
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({"name": args.model, "card": args.card, "batch": args.batch, "seconds": statistics.median(times[5:]),
                      "best": min(times[5:]), "losses": [losses[0], losses[-1]], "peak_card_bytes": total - free,
                      "allocated_card_bytes": torch.cuda.max_memory_allocated()}))


main()
