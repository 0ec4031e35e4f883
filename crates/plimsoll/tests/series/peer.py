"""The other side of peer.rs: numpy makes windows of the same CSV as docs/series.md says, PyTorch trains on them and judges models.

    peer.py DIR    reads DIR/asked.json and DIR/market.csv, writes DIR/judged.json

`asked.json`: `features`, `window`, `horizon`, `flat`, `fraction`, `batch`, `steps`, `lr`, `clip`, and `runs`, a list of trained runs.
For each run PyTorch judges the model that it left, and trains one of the same build from the start.
"""

import csv
import json
import os
import sys
from pathlib import Path

import numpy
import torch
from safetensors.torch import load_file
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../plimsoll-engine/tests/peer"))
from series_modules import Model, loss_sum  # noqa: E402


def windows(root, asked):
    """Inputs, classes and values of training and validation."""
    with open(root / "market.csv") as file:
        rows = list(csv.DictReader(file))
    times = numpy.array([int(row["time"]) for row in rows])
    names = numpy.array([row["symbol"] for row in rows])
    table = numpy.array([[float(row[name]) for name in asked["features"]] for row in rows])
    close = numpy.array([float(row["close"]) for row in rows])
    cut = numpy.sort(times)[int(len(times) * (1 - asked["fraction"]) + 0.5)]
    before = times < cut
    table = ((table - table[before].mean(0)) / table[before].std(0)).astype("float32")
    window, horizon = asked["window"], asked["horizon"]
    parts = {True: ([], [], []), False: ([], [], [])}
    for name in sorted(set(names)):
        own = names == name
        t, x, price = times[own], table[own], close[own]
        for first in range(len(t) - window - horizon + 1):
            last = first + window - 1
            # All rows of a sample, with the one that is foretold, lie on one side of the cut.
            early = t[last + horizon] < cut
            if early or t[first] >= cut:
                change = (price[last + horizon] - price[last]) / price[last]
                inputs, classes, values = parts[early]
                inputs.append(x[first : last + 1])
                classes.append(0 if change < -asked["flat"] else 2 if change > asked["flat"] else 1)
                values.append(change)
    mean, std = numpy.mean(parts[True][2]), numpy.std(parts[True][2])
    made = []
    for inputs, classes, values in (parts[True], parts[False]):
        values = ((numpy.array(values) - mean) / std).astype("float32")
        made.append((torch.tensor(numpy.array(inputs)), torch.tensor(classes), torch.tensor(values)[:, None]))
    return made


def begin(module):
    """Weights as a new model of ours has them; what is not named here is PyTorch's own way for both."""
    if isinstance(module, nn.Conv1d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def stream(count):
    """Numbers of samples: one permutation behind the other, without end."""
    while True:
        yield from torch.randperm(count).tolist()


def train(spec, part, asked, seed):
    torch.manual_seed(seed)
    model = Model(spec)
    model.apply(begin)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked["lr"], weight_decay=0.0)
    inputs, classes, values = part
    numbers = stream(len(classes))
    for _ in range(asked["steps"]):
        batch = torch.tensor([next(numbers) for _ in range(asked["batch"])])
        loss = loss_sum(spec, model(inputs[batch]), classes[batch], values[batch]) / asked["batch"]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), asked["clip"])
        optimizer.step()
    return model


def judge(model, spec, part):
    inputs, classes, values = part
    model.eval()
    with torch.no_grad():
        answers = model(inputs)
        loss = loss_sum(spec, answers, classes, values).item() / len(classes)
    return {"loss": loss, "accuracy": (answers[0].argmax(-1) == classes).double().mean().item()}


def main():
    torch.set_num_threads(2)
    root = Path(sys.argv[1])
    asked = json.loads((root / "asked.json").read_text())
    training, validation = windows(root, asked)
    judged = {"training": len(training[1]), "validation": len(validation[1]), "ours": [], "theirs": []}
    for seed, run in enumerate(asked["runs"]):
        spec = json.loads((root / run / "model/config.json").read_text())
        model = Model(spec)
        model.load_state_dict(load_file(root / run / "model/model.safetensors"), strict=True)
        judged["ours"].append(judge(model, spec, validation))
        judged["theirs"].append(judge(train(spec, training, asked, seed), spec, validation))
    (root / "judged.json").write_text(json.dumps(judged))


main()
