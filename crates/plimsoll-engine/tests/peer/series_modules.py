"""PyTorch modules of the `cnn-lstm` family, from the planner's JSON, with the names that its files have; and their loss."""

import torch
import torch.nn.functional as F
from torch import nn

IGNORE = -1


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


def loss_sum(spec, answers, classes, values):
    """The sum over samples of what is counted wrong; parts that are not known count nothing."""
    terms, (logits, sure, foretold) = spec["loss"], answers
    total = torch.zeros(())
    if logits is not None:
        known = classes != IGNORE
        logits, classes = logits[known], classes[known]
        weights = torch.tensor(terms["class_weights"], dtype=logits.dtype) if terms["class_weights"] else None
        entropy = F.cross_entropy(logits, classes, weights, reduction="none", label_smoothing=terms["label_smoothing"])
        if terms["focal_gamma"]:
            p = logits.softmax(-1).gather(1, classes[:, None])[:, 0]
            entropy = (1 - p) ** terms["focal_gamma"] * entropy
        total = total + terms["classes"] * entropy.sum()
        if sure is not None:
            right = (logits.argmax(-1) == classes).float()
            total = total + terms["confidence"] * ((sure[known, 0].sigmoid() - right) ** 2).sum()
    if foretold is not None:
        known = ~values.isnan()
        apart = F.smooth_l1_loss(foretold, torch.where(known, values, foretold.detach()), reduction="none")
        total = total + terms["values"] * (apart * known).sum() / foretold.shape[1]
    return total


def hybrid(name):
    """The specs of HybridCNNLSTM v1 (110 features) and v2 (112), as the planner writes them."""
    first = name == "v1"
    head = lambda name, hidden, outputs: {"name": name, "hidden": [{"width": w, "dropout": p} for w, p in hidden], "outputs": outputs}
    p = 0.3 if first else 0.4
    channels, hidden = ((64, 128, 256), 256) if first else ((32, 64, 128), 128)
    return {
        "features": 110 if first else 112, "window": 60, "layout": "flat", "residual": not first, "norm": "batch",
        "conv": [{"channels": c, "kernel": k} for c, k in zip(channels, (3, 5, 7))], "pool": 2, "conv_dropout": p,
        "activation": "relu" if first else "gelu",
        "lstm": {"hidden": hidden, "layers": 2, "bidirectional": True, "dropout": 0.2 if first else 0.3,
                 "layer_norm": not first} | ({} if first else {"output_dropout": 0.3}),
        "attention": {"kind": "additive", "units": 128} if first else
                     {"kind": "multi-head", "heads": 4, "dropout": 0.1, "layer_norm": True, "positions": 256},
        "classes": head("direction_head", [(128, p)] if first else [(128, p), (64, p / 2)], 3),
        "confidence": head("confidence_head", [(64, p)], 1), "values": head("return_head", [(64, p)], 1),
        "loss": {"label_smoothing": 0.0, "focal_gamma": 0.0, "class_weights": [], "classes": 1.0, "confidence": 0.5, "values": 0.3},
    }
