"""Hugging Face's Trainer on batches of plimsoll.DataLoader, resumed exactly.

    python examples/hf_trainer.py --data rows.jsonl --tokenizer model/ --output out --steps 20

A small GPT-2 with random weights, so that nothing is downloaded. Started again with the same line, it goes on from the last
checkpoint of `out` with the very batches that a run without a break would have had; `--stop-at 10` makes such a break. What
is said at the end, the losses and a sum of the weights, is the same either way.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

import plimsoll
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

STATE = "loader.json"


class LoaderTrainer(Trainer):
    """A Trainer whose batches come from `loader` as they are: neither collated nor dealt out again."""

    def __init__(self, *args, loader, **kwargs):
        super().__init__(*args, **kwargs)
        self.loader = loader

    def get_train_dataloader(self):
        return self.loader


class KeepPlace(TrainerCallback):
    """Puts the loader's place beside each checkpoint."""

    def __init__(self, loader):
        self.loader = loader

    def on_save(self, args, state, control, **kwargs):
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        beside = folder / (STATE + ".new")
        beside.write_text(json.dumps(self.loader.state_dict()))
        os.replace(beside, folder / STATE)


class StopAt(TrainerCallback):
    """A break at a step, as if somebody had stopped the run."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_training_stop = True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--tokenizer", required=True, help="a folder with tokenizer.json")
    parser.add_argument("--kind", default="text", choices=["text", "chat"])
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--max-len", type=int, default=64)
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--stop-at", type=int)
    args = parser.parse_args()

    set_seed(0)
    # One endless `for`: the number of steps ends it, and to the Trainer it is all epoch 0.
    loader = plimsoll.DataLoader(
        args.data, tokenizer=args.tokenizer, kind=args.kind, max_len=args.max_len, batch_size=4, packed=args.packed,
        epochs=None,
    )
    vocab = 1 + max(json.loads((Path(args.tokenizer) / "tokenizer.json").read_text())["model"]["vocab"].values())
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=vocab, n_positions=args.max_len, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None,
    ))
    callbacks = [KeepPlace(loader)]
    if args.stop_at:
        callbacks.append(StopAt(args.stop_at))
    trainer = LoaderTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.output, max_steps=args.steps, save_steps=args.save_every, logging_steps=1,
            gradient_accumulation_steps=2, learning_rate=1e-3, use_cpu=True, report_to=[], disable_tqdm=True,
            # The loader is where it should be: no batch needs to be skipped.
            ignore_data_skip=True,
        ),
        loader=loader,
        callbacks=callbacks,
    )
    last = get_last_checkpoint(args.output) if os.path.isdir(args.output) else None
    if last is not None:
        loader.load_state_dict(json.loads((Path(last) / STATE).read_text()))
    trainer.train(resume_from_checkpoint=last)
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(json.dumps({"steps": trainer.state.global_step, "losses": losses, "weights": digest.hexdigest()}))


if __name__ == "__main__":
    main()
