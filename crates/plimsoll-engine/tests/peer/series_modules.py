"""The modules of the example, with the loss that they are trained by, and the builds that have names."""

import os
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../examples/series"))
from cnn_lstm import Model  # noqa: E402, F401

IGNORE = -1


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
