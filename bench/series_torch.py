"""PyTorch's half of `cargo bench -p plimsoll-engine --bench series`: trains HybridCNNLSTM v1 or v2 on random windows, prints seconds and peak memory.

    series_torch.py --model v1|v2 --batch 16 [--steps 5 --threads N --checkpoint]

Prints one JSON object: `seconds` (median of the updates behind the first), `best`, `peak_rss_bytes` (VmHWM), and
`base_rss_bytes`, what torch itself and the module took before the first step. `--checkpoint` computes the blocks of
convolutions and the LSTM again in the backward pass (torch.utils.checkpoint).
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
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--checkpoint", action="store_true")
    args = parser.parse_args()

    import torch
    from torch.utils.checkpoint import checkpoint

    import series_modules

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    spec = series_modules.hybrid(args.model)
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
    optim = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    inputs = torch.randn(args.batch, spec["window"], spec["features"])
    classes, values = torch.arange(args.batch) % 3, torch.randn(args.batch, 1)
    base, times = memory("VmRSS:"), []
    for _ in range(args.steps + 1):
        began = time.perf_counter()
        optim.zero_grad(set_to_none=True)
        loss = series_modules.loss_sum(spec, forward(inputs), classes, values) / args.batch
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times[1:])
    print(json.dumps({"name": args.model, "seconds": seconds, "best": min(times[1:]),
                      "peak_rss_bytes": memory("VmHWM:"), "base_rss_bytes": base}))


main()
