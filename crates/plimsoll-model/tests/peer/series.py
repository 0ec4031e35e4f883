"""Folders of `cnn-lstm` modules as PyTorch writes them, and the judgement of what was made of them.

    series.py make ROOT      a folder for each case: `source` (config.json, model.safetensors), `facts.json`
    series.py judge ROOT     loads `rewritten`, `narrow` and `random` of each case with `strict=True`
    series.py names FILE     what `torch.nn.Module` calls its own
"""

import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../plimsoll-engine/tests/peer"))
from series_modules import Model, hybrid  # noqa: E402


def head(name, hidden, outputs):
    return {"name": name, "hidden": [{"width": w, "dropout": 0.25} for w in hidden], "outputs": outputs}


def small(name, **changes):
    spec = hybrid(name) | {"features": 7, "window": 11}
    spec["conv"] = [{"channels": c, "kernel": k} for c, k in ((5, 3), (6, 5), (9, 7))]
    spec["lstm"] = spec["lstm"] | {"hidden": 10}
    spec["classes"], spec["confidence"] = head("direction_head", [8, 5], 3), head("confidence_head", [6], 1)
    spec["values"] = head("return_head", [5], 2)
    return spec | changes


def cases():
    lstm = {"hidden": 8, "layers": 1, "bidirectional": False, "dropout": 0.0, "layer_norm": False}
    return {
        "v1": small("v1"),
        "v2": small("v2"),
        "channels": small("v2", layout="channels", pool=1, window=9),
        "values_alone": {k: v for k, v in small("v1", attention={"kind": "none"}, norm="none").items()
                         if k not in ("classes", "confidence")},
        "lstm_alone": small("v1", conv=[], layout="channels", lstm=lstm, norm="none"),
    }


def inputs(spec):
    return torch.randn(4, spec["window"], spec["features"], generator=torch.Generator().manual_seed(9))


def answers(model, spec):
    model.eval()
    with torch.no_grad():
        return [answer for answer in model(inputs(spec)) if answer is not None]


def make(root):
    for seed, (name, spec) in enumerate(cases().items()):
        torch.manual_seed(seed)
        model = Model(spec)
        model.train()
        for _ in range(5):  # running statistics that are not those of a fresh model
            model(torch.randn(4, spec["window"], spec["features"]))
        source = os.path.join(root, name, "source")
        os.makedirs(source)
        save_file(model.state_dict(), os.path.join(source, "model.safetensors"))
        with open(os.path.join(source, "config.json"), "w") as file:
            json.dump({"model_type": "cnn-lstm", "torch_dtype": "float32"} | spec, file)
        with open(os.path.join(root, name, "facts.json"), "w") as file:
            json.dump({"parameters": sum(p.numel() for p in model.parameters()), "norms": len(spec["conv"]) if spec["norm"] == "batch" else 0}, file)


def loaded(folder):
    with open(os.path.join(folder, "config.json")) as file:
        spec = json.load(file)
    assert spec["model_type"] == "cnn-lstm"
    model, tensors = Model(spec), load_file(os.path.join(folder, "model.safetensors"))
    for name, own in model.state_dict().items():
        assert tensors[name].shape == own.shape, name
        if name.endswith("num_batches_tracked"):
            assert tensors[name].dtype == torch.int64, name
    model.load_state_dict(tensors, strict=True)
    return model, spec, tensors


def judge(root):
    for name in sorted(os.listdir(root)):
        of = lambda kind: loaded(os.path.join(root, name, kind))
        model, spec, theirs = of("source")
        expected = answers(model, spec)
        again, spec, ours = of("rewritten")
        for key, value in theirs.items():
            assert ours[key].dtype == value.dtype and torch.equal(ours[key], value), f"{name}: {key}"
        for a, b in zip(expected, answers(again, spec), strict=True):
            assert torch.equal(a, b), name
        _, _, narrow = of("narrow")
        for key, value in theirs.items():
            value = value if value.dtype == torch.int64 else value.bfloat16()
            assert narrow[key].dtype == value.dtype and torch.equal(narrow[key], value), f"{name}: {key}"
        for answer in answers(*of("random")[:2]):
            assert answer.isfinite().all(), name


if sys.argv[1] == "names":
    with open(sys.argv[2], "w") as file:
        json.dump([name for name in dir(torch.nn.Module()) if not name.startswith("_")], file)
else:
    {"make": make, "judge": judge}[sys.argv[1]](sys.argv[2])
