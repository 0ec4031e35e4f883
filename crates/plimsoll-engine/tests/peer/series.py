"""Loss, gradients and weights after some updates of `cnn-lstm` modules, in one process.

    series.py CASES.json

Each case has a `folder` with `weights.safetensors` (the module's state dict) and `batches.safetensors` (`inputs.N`,
`classes.N`, `values.N`), a `spec` as the planner's JSON, `micro` (samples of a micro-batch), `updates`, `options` of AdamW,
`clip_norm`, `frozen`, names that the updates leave alone, and `mixes`: of each update the share and shift that it mixes samples by, or null. The folder gets `out.safetensors`: `parameters` (how many), `loss` and `grad.NAME` of the first batch, `exact.NAME` (the latter
in doubles),
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


def mixed(model, spec, batch, mix):
    """The loss of each sample mixed with the one that is `shift` behind it."""
    (inputs, classes, values), (share, shift) = batch, mix
    behind = lambda x: torch.roll(x, -shift, 0)
    answers = model(share * inputs + (1 - share) * behind(inputs))
    return share * loss_sum(spec, answers, classes, values) + (1 - share) * loss_sum(spec, answers, behind(classes), behind(values))


def step(model, spec, batch, micro, mix=None):
    inputs, classes, values = batch
    known = int(((classes != IGNORE) | (~values.isnan()).any(dim=1)).sum())
    total = 0.0
    for first in range(0, len(inputs), micro):
        part = slice(first, first + micro)
        own = [x[part] for x in batch]
        loss = (mixed(model, spec, own, mix) if mix else loss_sum(spec, model(own[0]), *own[1:])) / known
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
    mixes = case["mixes"]
    out["loss"] = torch.tensor([step(model, spec, batches[0], case["micro"], mixes[0])])
    out |= {f"grad.{n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    # The same in doubles, which says whose rounding a difference is.
    model.load_state_dict(fresh)
    model.zero_grad(set_to_none=True)
    step(model.double(), spec, [x.double() if x.is_floating_point() else x for x in batches[0]], case["micro"], mixes[0])
    out |= {f"exact.{n}": p.grad.clone().float() for n, p in model.named_parameters() if p.grad is not None}
    model.float().load_state_dict(fresh)
    for name, weight in model.named_parameters():
        weight.requires_grad_(name not in case["frozen"])
    optim = torch.optim.AdamW(model.parameters(), **case["options"])
    losses, norms = [], []
    for update in range(case["updates"]):
        model.zero_grad(set_to_none=True)
        losses.append(step(model, spec, batches[update % len(batches)], case["micro"], mixes[update]))
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
