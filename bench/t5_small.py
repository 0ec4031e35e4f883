"""The PyTorch half of the benchmark: trains T5-small from random weights and reports speed and peak memory.

    t5_small.py --model DIR --data FILE.jsonl [--steps N --warmup W --batch 4 --dropout 0.1 --compile --threads T]

Prints one JSON object: `tokens_per_second` (median over the steps after the warm-up; source and target tokens, there is
no padding), `step_seconds`, `peak_rss_bytes` (sum of VmHWM over this process and its children, as Plimsoll reads its own),
`final_loss`. The model, the tokens and the optimizer are those of the Plimsoll half; only the weights' random draw differs.
"""

import argparse
import json
import os
import statistics
import time


def peak_rss_bytes():
    """VmHWM of this process and all its living descendants: torch.compile works in children."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    parents[int(entry)] = int(stat.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    family = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    total = 0
    for pid in family:
        try:
            with open(f"/proc/{pid}/status") as status:
                total += sum(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
        except OSError:
            pass
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()

    import torch
    from tokenizers import Tokenizer
    from transformers import Adafactor, T5Config, T5ForConditionalGeneration

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    tokenizer = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
    config = T5Config.from_pretrained(args.model)
    config.dropout_rate = args.dropout
    model = T5ForConditionalGeneration(config).train()
    optimizer = Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)
    forward = torch.compile(model) if args.compile else model

    with open(args.data) as lines:
        rows = [json.loads(line) for _, line in zip(range(args.batch * args.steps), lines)]
    sources = torch.tensor([tokenizer.encode(row["source"]).ids for row in rows])
    targets = torch.tensor([tokenizer.encode(row["target"]).ids for row in rows])
    tokens = args.batch * (sources.shape[1] + targets.shape[1])

    seconds, loss = [], None
    for start in range(0, args.batch * args.steps, args.batch):
        began = time.perf_counter()
        loss = forward(
            input_ids=sources[start : start + args.batch], labels=targets[start : start + args.batch], use_cache=False
        ).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()
        seconds.append(time.perf_counter() - began)
    timed = seconds[args.warmup :]
    report = {
        "tokens_per_second": tokens / statistics.median(timed),
        "step_seconds": [round(s, 4) for s in seconds],
        "peak_rss_bytes": peak_rss_bytes(),
        "final_loss": loss,
    }
    print(json.dumps(report))


main()
