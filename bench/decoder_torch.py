"""The PyTorch half of `bench/decoder`: trains a decoder and reports speed and peak memory, or times its products alone.

    decoder_torch.py --model DIR --data FILE.jsonl --length 256 --batch 4 [--steps N --warmup W --lora R
                     --optimizer adafactor|adamw --compile --threads T]
    decoder_torch.py --products 'ROWSxINPUTSxOUTPUTS:COUNT ...'

The first form prints one JSON object: `tokens_per_second` (median over the steps after the warm-up), `step_seconds`,
`step_cpu_seconds` (the same steps by the process's CPU time; with one thread it does not depend on what else runs),
`peak_rss_bytes` (sum of VmHWM over this process and its children, as Plimsoll reads its own), `final_loss`. The second
prints `seconds` and `flops` of the forward, input and weight products of those linears by `torch.mm`, the best of three
passes; a shape that ends in `f` has no weight product (a frozen weight).
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


def products(shapes, clock):
    """Seconds and operations of the products of the given linears."""
    import torch

    seconds = flops = 0.0
    for shape in shapes.split():
        dims, count = shape.split(":")
        frozen, dims = dims.endswith("f"), dims.rstrip("f")
        rows, inputs, outputs = (int(n) for n in dims.split("x"))
        x, dy, w = torch.randn(rows, inputs), torch.randn(rows, outputs), torch.randn(outputs, inputs)
        kinds = [lambda: torch.mm(x, w.t()), lambda: torch.mm(dy, w)] + [lambda: torch.mm(dy.t(), x)] * (not frozen)
        for product in kinds:
            best = float("inf")
            for _ in range(3):
                began = clock()
                product()
                best = min(best, clock() - began)
            seconds += best * int(count)
            flops += 2.0 * rows * inputs * outputs * int(count)
    return {"seconds": seconds, "flops": flops}


def train(args):
    import torch
    from tokenizers import Tokenizer
    from transformers import Adafactor, AutoModelForCausalLM

    torch.manual_seed(1)
    tokenizer = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).train()
    if args.lora:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=args.lora, lora_alpha=2 * args.lora, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, config)
    trained = [p for p in model.parameters() if p.requires_grad]
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    else:
        optimizer = Adafactor(trained, lr=1e-3, scale_parameter=False, relative_step=False)
    forward = torch.compile(model) if args.compile else model

    with open(args.data) as lines:
        rows = [json.loads(line) for _, line in zip(range(args.batch * args.steps), lines)]
    ids = torch.tensor([tokenizer.encode(row["text"]).ids[: args.length] for row in rows])

    seconds, cpu, loss = [], [], None
    for start in range(0, args.batch * args.steps, args.batch):
        batch = ids[start : start + args.batch]
        began, cpu_began = time.perf_counter(), time.process_time()
        loss = forward(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
    return {
        "tokens_per_second": args.batch * args.length / statistics.median(seconds[args.warmup :]),
        "step_seconds": [round(s, 4) for s in seconds],
        "step_cpu_seconds": [round(s, 4) for s in cpu],
        "peak_rss_bytes": peak_rss_bytes(),
        "final_loss": loss,
        "trained": sum(p.numel() for p in trained),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--data")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--lora", type=int, default=0)
    parser.add_argument("--optimizer", default="adafactor", choices=("adafactor", "adamw"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--products")
    parser.add_argument("--cpu-clock", action="store_true", help="time products by the process's CPU time")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()

    import torch

    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu_clock else time.perf_counter
    print(json.dumps(products(args.products, clock) if args.products else train(args)))


main()
