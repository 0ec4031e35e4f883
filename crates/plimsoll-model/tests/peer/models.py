"""The other side of tests/peer.rs: transformers makes small T5 folders, and judges what Plimsoll made of them.

    models.py make DIR      DIR/<case>/source and DIR/<case>/facts.json for every case
    models.py judge DIR     DIR/<case>/rewritten must compute what DIR/<case>/source computes; DIR/<case>/narrow must be
                            it in bf16; DIR/<case>/random, drawn by Plimsoll, must load whole and be spread as transformers would have drawn it
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

SIZES = dict(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4)
GATED = dict(feed_forward_proj="gated-gelu")
# name: (family, config keys, how it is saved)
CASES = {
    "v1.0": ("t5", {}, {}),
    "v1.1-tied": ("t5", {**GATED, "tie_word_embeddings": False}, {}),
    "v1.1-old-config": ("t5", {**GATED, "tie_word_embeddings": False}, {"old_config": True}),
    "v1.1-own-head": ("t5", {**GATED, "tie_word_embeddings": False}, {"own_head": True, "old_config": True}),
    "v1.0-own-head": ("t5", {}, {"own_head": True}),
    "v1.0-old-names": ("t5", {}, {"old_names": True}),
    "mt5": ("mt5", {}, {}),
    "sharded": ("t5", GATED, {"shards": "20KB"}),
    "bf16": ("t5", {}, {"dtype": torch.bfloat16}),
    "f16-sharded": ("t5", {**GATED, "tie_word_embeddings": False}, {"dtype": torch.float16, "shards": "20KB"}),
}
CLASSES = {"t5": (T5Config, T5ForConditionalGeneration), "mt5": (MT5Config, MT5ForConditionalGeneration)}


def load(family, folder):
    model, info = CLASSES[family][1].from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    return model.eval(), info


def logits(model):
    source = torch.arange(2 * 7).reshape(2, 7) % 90 + 2
    target = torch.arange(2 * 5).reshape(2, 5) % 90 + 3
    with torch.no_grad():
        return model(input_ids=source, labels=target).logits


def make(root):
    for seed, (name, (family, keys, how)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        config_class, model_class = CLASSES[family]
        model = model_class(config_class(**SIZES, decoder_start_token_id=0, **keys))
        folder = root / name / "source"
        model.to(how.get("dtype", torch.float32)).save_pretrained(folder, max_shard_size=how.get("shards", "5GB"))
        (folder / "tokenizer.json").write_text("{}")
        weights = folder / "model.safetensors"
        if how.get("own_head") or how.get("old_names"):
            tensors = load_file(weights)
            if how.get("own_head"):
                tensors["lm_head.weight"] = torch.randn(SIZES["vocab_size"], SIZES["d_model"])
            else:
                table = tensors.pop("shared.weight")
                tensors["encoder.embed_tokens.weight"] = table
                tensors["decoder.embed_tokens.weight"] = table.clone()
            save_file(tensors, weights, {"format": "pt"})
        if how.get("shards"):
            assert not weights.exists() and len(list(folder.glob("*.safetensors"))) > 2
        if how.get("old_config"):
            path = folder / "config.json"
            config = json.loads(path.read_text())
            del config["scale_decoder_outputs"]
            config["tie_word_embeddings"] = False
            path.write_text(json.dumps(config))
        model, _ = load(family, folder)
        facts = {
            "tied": model.lm_head.weight.data_ptr() == model.shared.weight.data_ptr(),
            "scale_head": getattr(model.config, "scale_decoder_outputs", False),
        }
        (root / name / "facts.json").write_text(json.dumps(facts))


def judge(root):
    for name, (family, _, _) in CASES.items():
        source, _ = load(family, root / name / "source")
        for made in ["rewritten", "narrow", "random"]:
            model, info = load(family, root / name / made)
            for kind in ["missing_keys", "unexpected_keys", "mismatched_keys"]:
                assert not info[kind], (name, made, kind, info[kind])
            if made == "rewritten":
                theirs, ours = source.state_dict(), model.state_dict()
                assert theirs.keys() == ours.keys(), name
                for key in theirs:
                    assert torch.equal(theirs[key], ours[key]), (name, key)
                assert torch.equal(logits(source), logits(model)), name
                assert model.config.decoder_start_token_id == source.config.decoder_start_token_id
            elif made == "narrow":
                for key, value in source.state_dict().items():
                    assert torch.equal(value.to(torch.bfloat16).float(), model.state_dict()[key]), (name, key)
            else:
                fresh = dict(CLASSES[family][1](source.config).named_parameters())
                for key, value in model.named_parameters():
                    n = value.numel()
                    if "layer_norm" in key:
                        assert torch.equal(value, torch.ones_like(value)), (name, key)
                    elif n >= 1000 and key in fresh:
                        ratio = (value.std() / fresh[key].std()).item()
                        assert abs(ratio - 1) < 6 / math.sqrt(n), (name, key, ratio)
                logits(model)
        print("same:", name)


{"make": make, "judge": judge}[sys.argv[1]](Path(sys.argv[2]))
