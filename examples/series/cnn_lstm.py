"""A model of series (`cnn-lstm`) as a PyTorch module: of any build that a description can say, with the names and layouts of its files.

    python examples/series/cnn_lstm.py RUN/model data.csv [--by COLUMN] [--time COLUMN]

answers for the last window of each series of a CSV: what will be `horizon` rows behind it. Needs torch, numpy and safetensors. Rows are taken
as they come in the file; values that are missing must have been filled.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import nn


def bend(spec):
    return nn.GELU() if spec["activation"] == "gelu" else nn.ReLU()


class Block(nn.Module):
    def __init__(self, spec, inputs, block):
        super().__init__()
        channels, kernel, pool = block["channels"], block["kernel"], spec["pool"]
        self.conv = nn.Conv1d(inputs, channels, kernel, padding=kernel // 2)
        self.batch_norm = nn.BatchNorm1d(channels) if spec["norm"] == "batch" else None
        self.activation, self.dropout, self.pool = bend(spec), nn.Dropout(spec["conv_dropout"]), nn.MaxPool1d(pool)
        self.skip = None
        if spec["residual"]:
            self.skip = nn.Sequential(nn.Conv1d(inputs, channels, 1), nn.MaxPool1d(pool)) if inputs != channels else nn.MaxPool1d(pool)

    def forward(self, x):
        y = self.conv(x)
        y = self.batch_norm(y) if self.batch_norm else y
        y = self.pool(self.dropout(self.activation(y)))
        return y if self.skip is None else y + self.skip(x)


class NormedLstm(nn.Module):
    def __init__(self, lstm, width, spec):
        super().__init__()
        self.lstm = lstm
        self.layer_norm = nn.LayerNorm(width) if spec["layer_norm"] else None
        self.dropout = nn.Dropout(spec.get("output_dropout") or 0.0)

    def forward(self, x):
        out, state = self.lstm(x)
        return self.dropout(self.layer_norm(out) if self.layer_norm else out), state


class Additive(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.attention = nn.Sequential(nn.Linear(width, units), nn.Tanh(), nn.Linear(units, 1))

    def forward(self, x):
        return (torch.softmax(self.attention(x), dim=1) * x).sum(dim=1)


class MultiHead(nn.Module):
    def __init__(self, width, spec):
        super().__init__()
        self.heads, self.most, self.p = spec["heads"], spec["positions"], spec["dropout"]
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(self.p)
        self.layer_norm = nn.LayerNorm(width) if spec["layer_norm"] else None
        self.pos_embedding = nn.Parameter(torch.zeros(1, self.most, width))

    def forward(self, x):
        b, t, c = x.shape
        if t <= self.most:
            x = x + self.pos_embedding[:, :t]
        n = self.layer_norm(x) if self.layer_norm else x
        split = lambda y: y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        q, k, v = split(self.q_proj(n)), split(self.k_proj(n)), split(self.v_proj(n))
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)
        out = x + self.dropout(self.out_proj(out.transpose(1, 2).reshape(b, t, c)))
        return out.mean(dim=1) + out[:, -1]


class Last(nn.Module):
    def forward(self, x):
        return x[:, -1]


def head(spec, width, of):
    layers = []
    for layer in of["hidden"]:
        layers += [nn.Linear(width, layer["width"]), bend(spec), nn.Dropout(layer["dropout"])]
        width = layer["width"]
    return nn.Sequential(*layers, nn.Linear(width, of["outputs"]))


class Model(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.spec = spec
        channels, blocks = (1 if spec["layout"] == "flat" else spec["features"]), []
        for block in spec["conv"]:
            blocks.append(Block(spec, channels, block))
            channels = block["channels"]
        if blocks:
            self.cnn_blocks = nn.ModuleList(blocks)
        of = spec["lstm"]
        lstm = nn.LSTM(channels, of["hidden"], of["layers"], batch_first=True, bidirectional=of["bidirectional"],
                       dropout=of["dropout"] if of["layers"] > 1 else 0.0)
        width = of["hidden"] * (2 if of["bidirectional"] else 1)
        wrapped = of["layer_norm"] or of.get("output_dropout") is not None
        self.lstm = NormedLstm(lstm, width, of) if wrapped else lstm
        kind = spec["attention"]["kind"]
        if kind == "additive":
            self.attention = Additive(width, spec["attention"]["units"])
        else:
            self.attention = MultiHead(width, spec["attention"]) if kind == "multi-head" else Last()
        for part in ("classes", "confidence", "values"):
            if spec.get(part):
                setattr(self, spec[part]["name"], head(spec, width, spec[part]))

    def forward(self, x):
        if self.spec["layout"] == "flat":
            x = x.reshape(x.shape[0], 1, -1)
        else:
            x = x.transpose(1, 2)
        for block in getattr(self, "cnn_blocks", []):
            x = block(x)
        row = self.attention(self.lstm(x.transpose(1, 2))[0])
        part = lambda name: getattr(self, self.spec[name]["name"])(row) if self.spec.get(name) else None
        return part("classes"), part("confidence"), part("values")


def load(folder):
    """The module of a model folder, ready to answer, and what its data are normalised by."""
    from safetensors.torch import load_file

    folder = Path(folder)
    model = Model(json.loads((folder / "config.json").read_text()))
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    return model.eval(), json.loads((folder / "normalisation.json").read_text())


def scales(of):
    """Means and deviations, which are written as texts so that no reader rounds them."""
    return [numpy.array([float(scale[key]) for scale in of]) for key in ("mean", "std")]


def normalised(rows, by, series=""):
    """Rows of features, in the order of `by["features"]`, as the model reads them."""
    mean, std = scales(next((one["scales"] for one in by["series"] if one["name"] == series), by["all"]))
    rows = numpy.asarray(rows, dtype="float64")
    return (rows if by["over"] == "none" else (rows - mean) / std).astype("float32")


def foretold(answers, by):
    """Values that the model answers, in the unit of the data: for a `change` or a `return`, that."""
    if not by["value_scales"]:
        return answers.double().numpy()
    mean, std = scales(by["value_scales"])
    return answers.double().numpy() * std + mean


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--by", help="the column that says which series a row is of")
    parser.add_argument("--time", help="a column that is told beside the answers")
    args = parser.parse_args()
    model, by = load(args.model)
    with open(args.data, newline="") as file:
        table = list(csv.DictReader(file))
    series = {}
    for row in table:
        series.setdefault(row[args.by].strip() if args.by else "", []).append(row)
    for name, rows in series.items():
        last = rows[-model.spec["window"]:]
        if len(last) < model.spec["window"]:
            print(f"{name}: {len(last)} rows, and a window has {model.spec['window']}")
            continue
        inputs = normalised([[float(row[column]) for column in by["features"]] for row in last], by, name)
        with torch.no_grad():
            classes, confidence, values = model(torch.from_numpy(inputs)[None])
        said = {"series": name} | ({args.time: last[-1][args.time]} if args.time else {})
        if classes is not None:
            said["class"], said["probabilities"] = int(classes.argmax()), [round(p, 4) for p in classes.softmax(-1)[0].tolist()]
        if confidence is not None:
            said["confidence"] = round(confidence.sigmoid().item(), 4)
        if values is not None:
            said["values"] = foretold(values, by)[0].tolist()
        print(json.dumps(said))


if __name__ == "__main__":
    main()
