"""Loss, gradients and weights after some updates of `cnn-lstm` modules, in one process.

    series.py CASES.json

Each case has a `folder` with `weights.safetensors` (the module's state dict) and `batches.safetensors` (`inputs.N`,
`classes.N`, `values.N`), a `spec` as the planner's JSON, `micro` (samples of a micro-batch), `updates`, `options` of AdamW,
`clip_norm`, and `frozen`, names that the updates leave alone. The folder gets `out.safetensors`: `parameters` (how many), `loss` and `grad.NAME` of the first batch,
`losses`, `grad_norms`, `after.NAME` of every entry of the state dict, and `eval`, the loss of the first batch at the end.
"""

import json
import math
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from series_modules import IGNORE, Model, hybrid, loss_sum


def step(model, spec, batch, micro):
    inputs, classes, values = batch
    known = int(((classes != IGNORE) | (~values.isnan()).any(dim=1)).sum())
    total = 0.0
    for first in range(0, len(inputs), micro):
        part = slice(first, first + micro)
        loss = loss_sum(spec, model(inputs[part]), classes[part], values[part]) / known
        if model.training:
            loss.backward()
        total += float(loss.detach())
    return total


def run(case):
    folder, spec = case["folder"], case["spec"]
    model, out = Model(spec), {}
    weights = load_file(os.path.join(folder, "weights.safetensors"))
    state = model.state_dict()
    assert state.keys() == weights.keys(), sorted(state.keys() ^ weights.keys())
    model.load_state_dict({name: weights[name].to(state[name].dtype).reshape(state[name].shape) for name in state})
    out["parameters"] = torch.tensor([sum(p.numel() for p in model.parameters())], dtype=torch.int32)
    tensors, batches = load_file(os.path.join(folder, "batches.safetensors")), []
    while f"inputs.{len(batches)}" in tensors:
        nth = len(batches)
        batches.append((tensors[f"inputs.{nth}"], tensors[f"classes.{nth}"].long(), tensors[f"values.{nth}"]))
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    out["loss"] = torch.tensor([step(model, spec, batches[0], case["micro"])])
    out |= {f"grad.{n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.load_state_dict(fresh)
    for name, weight in model.named_parameters():
        weight.requires_grad_(name not in case["frozen"])
    optim = torch.optim.AdamW(model.parameters(), **case["options"])
    losses, norms = [], []
    for update in range(case["updates"]):
        model.zero_grad(set_to_none=True)
        losses.append(step(model, spec, batches[update % len(batches)], case["micro"]))
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), case["clip_norm"] or math.inf)))
        optim.step()
    out["losses"], out["grad_norms"] = torch.tensor(losses), torch.tensor(norms)
    out |= {f"after.{n}": v.detach().clone().float().reshape(-1) for n, v in model.state_dict().items()}
    model.eval()
    with torch.no_grad():
        out["eval"] = torch.tensor([step(model, spec, batches[0], len(batches[0][0]))])
    save_file({name: value.contiguous() for name, value in out.items()}, os.path.join(folder, "out.safetensors"))


torch.set_num_threads(1)
for name, parameters in (("v1", 3_099_142), ("v2", 1_142_405)):
    count = sum(p.numel() for p in Model(hybrid(name)).parameters())
    assert count == parameters, f"{name} has {count} parameters"
with open(sys.argv[1]) as file:
    for case in json.load(file):
        run(case)
