"""A plain language model in PyTorch, for a card: GPT-2's shape, random weights, made-up tokens.

What it owes to the tests: an update depends on the effective batch (batch x accum) alone, up to rounding; checkpoints
appear whole; `--short-steps N` trains on an eighth of the length up to update N, so that the card fills up after a
checkpoint was written; `--card-mib N` lets the process have so much of the card and no more; at its end it prints what
PyTorch itself counted.
"""

import argparse
import math
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x):
        rows, length, width = x.shape
        split = lambda t: t.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = (split(t) for t in self.qkv(self.first(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed, self.place = nn.Embedding(a.vocab, a.hidden), nn.Embedding(a.length, a.hidden)
        self.blocks = nn.ModuleList(Block(a.hidden, a.heads, a.ffn) for _ in range(a.layers))
        self.norm, self.head = nn.LayerNorm(a.hidden), nn.Linear(a.hidden, a.vocab, bias=False)
        self.head.weight = self.embed.weight
        self.twice = a.checkpointing
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02) if weight.dim() > 1 else None

    def forward(self, tokens):
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.twice else block(x)
        return self.head(self.norm(x))


def arguments():
    p = argparse.ArgumentParser()
    for name, default in {"layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 50257, "length": 1024}.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--accum", type=int, default=1)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--save-every", type=int, default=2)
    p.add_argument("--short-steps", type=int, default=0)
    p.add_argument("--card-mib", type=int, default=0)
    p.add_argument("--precision", choices=["fp32", "bf16-mixed"], default="fp32")
    p.add_argument("--checkpointing", action="store_true")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--resume", type=Path)
    return p.parse_args()


def main():
    a = arguments()
    torch.manual_seed(1)
    device = torch.device("cuda")
    if a.card_mib:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(a.card_mib * 2**20 / total)
    model = Model(a).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    begin = 0
    if a.resume:
        state = torch.load(a.resume, map_location=device)
        model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
        del state
        print(f"resumed from {a.resume} at step {begin}", flush=True)
    a.out.mkdir(parents=True, exist_ok=True)
    effective = a.batch_size * a.accum
    for step in range(begin, a.steps):
        length = a.length // 8 if step < a.short_steps else a.length
        drawn = torch.Generator().manual_seed(1000 + step)
        tokens = torch.randint(a.vocab, (effective, length + 1), generator=drawn)
        total = 0.0
        for micro in tokens.chunk(a.accum):
            micro = micro.to(device)
            with torch.autocast("cuda", torch.bfloat16, enabled=a.precision == "bf16-mixed"):
                logits = model(micro[:, :-1])
                loss = F.cross_entropy(logits.float().flatten(0, 1), micro[:, 1:].flatten()) / a.accum
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step + 1}/{a.steps} loss {total:.6f}", flush=True)
        assert math.isfinite(total)
        if (step + 1) % a.save_every == 0:
            path = a.out / f"step-{step + 1:06}.pt"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, path.with_suffix(".tmp"))
            os.replace(path.with_suffix(".tmp"), path)
    mib = lambda n: n // 2**20
    free, total = torch.cuda.mem_get_info()
    print(f"card: allocated {mib(torch.cuda.max_memory_allocated())} reserved {mib(torch.cuda.max_memory_reserved())} used {mib(total - free)} MiB")
    print(f"training finished at step {a.steps}")


main()
