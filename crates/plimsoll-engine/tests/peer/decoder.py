"""Loss, gradients, weights after some updates and generated ids of many small models, in one process.

    decoder.py CASES.json

Each case has a `folder` with `weights.safetensors` (names as in the model, LoRA's factors as MODULE.lora_A.weight), a
`config`, and `batches`: lists of texts, `tokens` with `labels` (-100 where nothing is learned), for T5 `source` and
`labels`. Optional: `trained` (the names that are; else all), `lora` (PEFT's options), `updates` with `optimizer`, `options`
and `clip_norm`; `generate`, a list of options with `prompts`. The folder gets `out.safetensors`: `loss` and
`grad.NAME` of the first batch, `losses`, `grad_norms`, `after.NAME`, and `generated.I` (-1 behind the end).
"""

import json
import math
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

import t5

try:
    import peft
except ImportError:  # only LoRA needs it
    peft = None

DEVICE = os.environ.get("PLIMSOLL_PEER_DEVICE", "cpu")


def build(case):
    options = dict(case["config"])
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").float().eval()
    weights = load_file(os.path.join(case["folder"], "weights.safetensors"))
    factors = {name: weights.pop(name) for name in list(weights) if ".lora_" in name}
    own = dict(model.named_parameters())
    assert own.keys() == weights.keys(), sorted(own.keys() ^ weights.keys())
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(weights[name])
    if "trained" in case:
        for name, weight in own.items():
            weight.requires_grad_(name in case["trained"])
    if "lora" in case:
        model = peft.get_peft_model(model, peft.LoraConfig(**case["lora"])).eval()
        added = {plain(name): weight for name, weight in model.named_parameters() if weight.requires_grad}
        assert added.keys() == factors.keys(), sorted(added.keys() ^ factors.keys())
        with torch.no_grad():
            for name, weight in added.items():
                weight.copy_(factors[name])
    return model.to(DEVICE)


def plain(name):
    return name.removeprefix("base_model.model.").replace(".default.", ".").replace(".base_layer.", ".")


def trained(model):
    return {plain(name): weight for name, weight in model.named_parameters() if weight.requires_grad}


def padded(rows, fill, left=False):
    most = max(map(len, rows))
    lines = [[fill] * (most - len(row)) + row if left else row + [fill] * (most - len(row)) for row in rows]
    return torch.tensor(lines, device=DEVICE)


def inputs(texts):
    key = "source" if "source" in texts[0] else "tokens"
    rows = [text[key] for text in texts]
    return {
        "input_ids": padded(rows, 0),
        "attention_mask": padded([[1] * len(row) for row in rows], 0),
        "labels": padded([text["labels"] for text in texts], -100),
    }


def backward(model, batch):
    model.zero_grad(set_to_none=True)
    loss = model(**inputs(batch), use_cache=False).loss
    loss.backward()
    return float(loss.detach())


def generated(model, options):
    prompts = options.pop("prompts")
    ids, mask = padded(prompts, 0, left=True), padded([[1] * len(p) for p in prompts], 0, left=True)
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)[:, ids.shape[1] :]
    ends = torch.isin(out, torch.tensor(options["eos_token_id"], device=DEVICE)).long()
    return out.masked_fill(ends.cumsum(1) - ends > 0, -1)


def run(case):
    model, out = build(case), {}
    batches = case.get("batches")
    if batches:
        out["loss"] = torch.tensor([backward(model, batches[0])])
        out |= {f"grad.{name}": weight.grad.clone() for name, weight in trained(model).items()}
    if case.get("updates"):
        optim = t5.optimizer(model, case["optimizer"], case["options"])
        losses, norms = [], []
        for update in range(case["updates"]):
            losses.append(backward(model, batches[update % len(batches)]))
            limit = case.get("clip_norm") or math.inf
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit)))
            optim.step()
        out["losses"], out["grad_norms"] = torch.tensor(losses), torch.tensor(norms)
        out |= {f"after.{name}": weight.detach().clone() for name, weight in trained(model).items()}
    for nth, options in enumerate(case.get("generate", [])):
        out[f"generated.{nth}"] = generated(model, options).to(torch.int32)
    save_file({name: value.cpu().contiguous() for name, value in out.items()}, os.path.join(case["folder"], "out.safetensors"))


with open(sys.argv[1]) as file:
    for case in json.load(file):
        run(case)
