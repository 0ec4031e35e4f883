"""A DeepSpeed script: ZeRO by a config file, a small transformer, its own checkpoints.

    DS_ACCELERATOR=cpu deepspeed --num_accelerators 2 ds_zero.py --deepspeed_config ds.json --out OUT

Batch, accumulation, stage and offload are in the config file, as DeepSpeed wants it. Which samples make an update depends
on the effective batch alone. `--short-steps N` trains on an eighth of the length up to update N, then on all of it.
"""

import argparse
from pathlib import Path

import deepspeed
import torch
from torch import nn
from torch.nn import functional as F


class Chains(nn.Module):
    """Predicts the next token of chains that count upwards."""

    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocabulary, args.hidden)
        nn.init.normal_(self.embed.weight, std=0.02)
        layer = lambda: nn.TransformerEncoderLayer(
            args.hidden, 4, 4 * args.hidden, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.ModuleList(layer() for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.hidden)

    def forward(self, ids):
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        state = self.embed(ids)
        for layer in self.layers:
            state = layer(state, src_mask=mask, is_causal=True)
        logits = self.norm(state) @ self.embed.weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def chains(args, first: int, count: int, length: int) -> torch.Tensor:
    rows = torch.arange(first, first + count).unsqueeze(1)
    return (torch.arange(length) * (1 + rows % 7) + rows * 31) % args.vocabulary


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, default in {
        "steps": 20, "save-every": 5, "short-steps": 0, "length": 512, "hidden": 128, "layers": 4, "vocabulary": 8192,
        "seed": 42, "threads": 1, "local_rank": -1,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="the folder of an earlier run's checkpoints")
    return deepspeed.add_config_arguments(parser).parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    deepspeed.init_distributed()
    model = Chains(args)
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    micro, accum = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    say = lambda text: print(text, flush=True) if rank == 0 else None
    if args.resume:
        path, _ = engine.load_checkpoint(str(args.resume))
        if path is None:
            raise SystemExit(f"no checkpoint in `{args.resume}`")
        say(f"resumed from {path} at step {engine.global_steps}")
    say(f"training: world {world}, ZeRO stage {engine.zero_optimization_stage()}, micro batch {micro} x {accum}")
    while engine.global_steps < args.steps:
        update = engine.global_steps
        length = args.length // 8 if update < args.short_steps else args.length
        total = 0.0
        for part in range(accum):
            first = ((update * world + rank) * accum + part) * micro
            loss = engine(chains(args, first, micro, length))
            engine.backward(loss)
            engine.step()
            total += loss.item() / accum
        say(f"step {engine.global_steps}/{args.steps} loss {total:.6f}")
        if engine.global_steps % args.save_every == 0 or engine.global_steps == args.steps:
            engine.save_checkpoint(str(args.out), tag=f"global_step{engine.global_steps}")
    say(f"training finished at step {engine.global_steps}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
