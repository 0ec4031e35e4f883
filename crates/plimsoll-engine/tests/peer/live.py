"""Loss, logits, gradients, and weights after N updates, of a model folder under transformers.

    live.py --model DIR --batch IN.safetensors --out OUT.safetensors
            [--updates N --optimizer adamw|adafactor|sgd --options JSON --clip-norm X --micro-batches M] [--save DIR]

IN holds `input_ids`, `attention_mask`, `labels` (integers), [rows, length] or [batches, rows, length]. OUT gets, for the
first batch, `loss`, `logits`, `grad.<name>`; with --updates also `losses`, `grad_norms` and `after.<name>`. --save writes
the model (after the updates, if any) as transformers saves it.
"""

import argparse
import json

import torch
from safetensors.torch import load_file, save_file

import t5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--optimizer", choices=["adamw", "adafactor", "sgd"], default="adamw")
    parser.add_argument("--options", type=json.loads, default={"lr": 1e-3})
    parser.add_argument("--clip-norm", type=float)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--save")
    args = parser.parse_args()

    model = t5.load(args.model)
    batches = t5.unstack(load_file(args.batch))
    out = {"logits": t5.forward(model, batches[0]).logits.detach()}
    out["loss"] = torch.tensor([t5.backward(model, batches[0], args.micro_batches)])
    for name, weight in t5.named_weights(model).items():
        out[f"grad.{name}"] = weight.grad.clone()
    if args.updates:
        optim = t5.optimizer(model, args.optimizer, args.options)
        losses, norms = t5.train(model, batches, args.updates, optim, args.clip_norm, args.micro_batches)
        out["losses"], out["grad_norms"] = torch.tensor(losses), torch.tensor(norms)
        for name, weight in t5.named_weights(model).items():
            out[f"after.{name}"] = weight.detach().clone()
    save_file({name: tensor.contiguous() for name, tensor in out.items()}, args.out)
    if args.save:
        model.save_pretrained(args.save)


main()
