"""A plain PyTorch trainer: a series is flattened, goes through convolutions and a BiLSTM, and three heads read it.

Written as people write theirs: one file, argparse, a loop, torch.save. What it owes to the tests:
- Which samples make an update depends on the seed and the effective batch (batch x accum) alone, so halving one and
  doubling the other, other workers, and a resume give the same updates up to rounding (not so with `--norm batch`,
  whose statistics are those of a micro-batch).
- A checkpoint appears whole or not at all.

It runs into memory in two ways that are common: `--warmup-steps N` trains on short windows first and on whole ones
after update N; `--cache-mib N` lets each process that loads data keep so much of the features that it made.
"""

import argparse
import os
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Series(Dataset):
    """Windows of a made-up market: a walk for each feature, drawn from the sample's own number."""

    def __init__(self, args):
        self.args, self.cache = args, {}

    def __getitem__(self, index: tuple[int, int]):
        sample, steps = index
        drawn = numpy.random.default_rng([self.args.seed, sample])
        moves = drawn.normal(size=(self.args.seq_steps, self.args.features)).astype(numpy.float32)
        walk = moves.cumsum(0) / numpy.float32(self.args.seq_steps**0.5)
        self.keep(sample, walk)
        change = float(moves[-steps // 4 :].mean()) * 10
        direction = 0 if change < -0.05 else 2 if change > 0.05 else 1
        return torch.from_numpy(walk[-steps:].copy()), direction, change

    def keep(self, sample: int, walk: numpy.ndarray) -> None:
        """Indicators of many spans, kept for the next epoch: what a feature store does in each process that has one."""
        entry = self.args.cache_entry_mib * 2**20
        if (len(self.cache) + 1) * entry <= self.args.cache_mib * 2**20:
            self.cache[sample] = numpy.stack([walk * (1 + span) for span in range(entry // walk.nbytes)])


class Order:
    """Batches of (sample, steps): update `u` takes the same samples, however it is cut into micro-batches."""

    def __init__(self, args, begin: int):
        self.args, self.begin = args, begin

    def __len__(self):
        return (self.args.steps - self.begin) * self.args.accum

    def __iter__(self):
        a = self.args
        effective = a.batch_size * a.accum
        for update in range(self.begin, a.steps):
            steps = a.seq_steps // 2 if update < a.warmup_steps else a.seq_steps
            drawn = numpy.random.default_rng([a.seed, update]).choice(a.samples, effective, replace=False)
            for micro in drawn.reshape(a.accum, a.batch_size):
                yield [(int(sample), steps) for sample in micro]


class CnnLstm(nn.Module):
    def __init__(self, channels: list[int], hidden: int, norm: str, dropout: float):
        super().__init__()
        blocks, before = [], 1
        for width, kernel in zip(channels, (3, 5, 7)):
            normed = nn.BatchNorm1d(width) if norm == "batch" else nn.GroupNorm(8, width)
            convolution = nn.Conv1d(before, width, kernel, padding=kernel // 2)
            blocks += [convolution, normed, nn.ReLU(), nn.Dropout(dropout), nn.MaxPool1d(4)]
            before = width
        self.blocks = nn.Sequential(*blocks)
        self.lstm = nn.LSTM(before, hidden, num_layers=2, bidirectional=True, batch_first=True, dropout=dropout)
        self.weigh = nn.Sequential(nn.Linear(2 * hidden, 128), nn.Tanh(), nn.Linear(128, 1))
        self.direction, self.confidence, self.change = (nn.Linear(2 * hidden, n) for n in (3, 1, 1))

    def forward(self, series):
        flat = series.flatten(1).unsqueeze(1)
        states, _ = self.lstm(self.blocks(flat).transpose(1, 2))
        seen = (torch.softmax(self.weigh(states), 1) * states).sum(1)
        return self.direction(seen), self.confidence(seen).squeeze(1), self.change(seen).squeeze(1)


def losses(model, batch):
    series, direction, change = batch
    guess, sure, value = model(series)
    right = (guess.argmax(1) == direction).float()
    return (
        F.cross_entropy(guess, direction)
        + F.binary_cross_entropy_with_logits(sure, right)
        + F.smooth_l1_loss(value, change.float())
    )


def save(path: Path, model, optimizer, step: int) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "rng": torch.get_rng_state()}
    half = path.with_suffix(".tmp")
    torch.save(state, half)
    os.replace(half, path)
    print(f"saved {path}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, default in {
        "batch-size": 32, "accum": 1, "num-workers": 0, "prefetch-factor": 2, "seq-steps": 60, "features": 112,
        "samples": 4096, "steps": 20, "save-every": 5, "warmup-steps": 0, "cache-mib": 0, "cache-entry-mib": 8, "hidden": 64, "seed": 42,
        "threads": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--channels", type=int, nargs=3, default=[64, 64, 64])
    parser.add_argument("--norm", choices=["group", "batch"], default="group")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    model = CnnLstm(args.channels, args.hidden, args.norm, args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    begin = 0
    if args.resume:
        state = torch.load(args.resume, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        begin = state["step"]
        print(f"resumed from {args.resume} at step {begin}", flush=True)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"training: {parameters} parameters, batch {args.batch_size} x {args.accum}, {args.num_workers} workers", flush=True)
    more = {"prefetch_factor": args.prefetch_factor} if args.num_workers else {}
    loader = DataLoader(Series(args), batch_sampler=Order(args, begin), num_workers=args.num_workers, **more)
    model.train()
    total = 0.0
    for number, batch in enumerate(loader, start=1):
        loss = losses(model, batch) / args.accum
        loss.backward()
        total += loss.item()
        if number % args.accum:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step = begin + number // args.accum
        print(f"step {step}/{args.steps} loss {total:.6f}", flush=True)
        total = 0.0
        if step % args.save_every == 0 or step == args.steps:
            save(args.out / f"step-{step:06}.pt", model, optimizer, step)
    print(f"training finished at step {args.steps}", flush=True)


if __name__ == "__main__":
    main()
