"""The other side of tests/peer.rs: transformers makes small decoders, and judges what Plimsoll made of them.

    decoders.py make DIR    DIR/<case>/source and DIR/<case>/facts.json for every case
    decoders.py defaults DIR  DIR/<family>.json: what a config that says nothing but its family means
    decoders.py judge DIR   DIR/<case>/rewritten must compute what DIR/<case>/source computes; DIR/<case>/narrow must be
                            it in bf16; DIR/<case>/random, drawn by Plimsoll, must load whole and be spread as
                            transformers would have drawn it
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

GPT2 = dict(model_type="gpt2", vocab_size=96, n_embd=32, n_layer=3, n_head=4, n_positions=40, bos_token_id=1, eos_token_id=2)
LLAMA = dict(
    model_type="llama", vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
)
MISTRAL = {**LLAMA, "model_type": "mistral"}
QWEN2 = {**LLAMA, "model_type": "qwen2", "bos_token_id": None}
QWEN3 = {**QWEN2, "model_type": "qwen3", "head_dim": 16}
ROPE3 = dict(
    rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
# name: (config keys, how it is saved)
CASES = {
    "gpt2": (GPT2, {}),
    "gpt2-inner": ({**GPT2, "n_inner": 40, "activation_function": "gelu_pytorch_tanh"}, {}),
    "gpt2-first-files": (GPT2, {"no_prefix": True, "buffers": True}),
    "gpt2-own-head": (GPT2, {"head": "other"}),
    "gpt2-untied": ({**GPT2, "tie_word_embeddings": False}, {}),
    "llama": (LLAMA, {}),
    "llama-tied": ({**LLAMA, "tie_word_embeddings": True, "eos_token_id": [2, 5], "pad_token_id": 0}, {}),
    "llama-equal-head": ({**LLAMA, "tie_word_embeddings": True}, {"head": "equal"}),
    "llama-untied-equal-head": (LLAMA, {"head": "equal"}),
    "llama-head-only": ({**LLAMA, "tie_word_embeddings": True}, {"head": "only"}),
    "llama-biases": ({**LLAMA, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}, {}),
    "llama-3-rope": ({**LLAMA, "rope_parameters": ROPE3}, {}),
    "llama-4-config": (
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0}},
        {"old_config": True, "no_prefix": True, "buffers": True},
    ),
    "llama-head-width": ({**LLAMA, "head_dim": 12}, {"dtype": torch.bfloat16, "shards": "20KB"}),
    "mistral": ({**MISTRAL, "sliding_window": 4}, {}),
    "mistral-no-window": ({**MISTRAL, "sliding_window": None, "head_dim": 16}, {"dtype": torch.float16}),
    "qwen2": ({**QWEN2, "tie_word_embeddings": True}, {}),
    "qwen2-windows": ({**QWEN2, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}, {}),
    "qwen2-sharded": (QWEN2, {"shards": "20KB"}),
    "qwen3": ({**QWEN3, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}, {}),
    "qwen3-biases": ({**QWEN3, "attention_bias": True, "tie_word_embeddings": True}, {}),
    "qwen3-layer-types": (
        {
            **QWEN3, "use_sliding_window": True, "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        {},
    ),
    "qwen3-bf16": (QWEN3, {"dtype": torch.bfloat16}),
}


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    return model.eval(), info


def logits(model):
    tokens = torch.arange(2 * 19).reshape(2, 19) * 7 % 90 + 3
    with torch.no_grad():
        return model(input_ids=tokens).logits


def tensors_of(folder):
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update(load_file(file))
    return found


def windows_of(model):
    config = model.config
    if config.model_type in ("gpt2", "llama"):
        return [None] * config.num_hidden_layers
    if config.model_type == "mistral":
        return [config.sliding_window] * config.num_hidden_layers
    return [layer.self_attn.sliding_window for layer in model.model.layers]


def facts_of(model):
    config = model.config
    gpt2 = config.model_type == "gpt2"
    head = config.hidden_size // config.num_attention_heads if gpt2 else model.model.layers[0].self_attn.head_dim
    inner = (config.n_inner or 4 * config.n_embd) if gpt2 else config.intermediate_size
    eos = config.eos_token_id
    spec = {
        "vocab": config.vocab_size,
        "width": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_attention_heads if gpt2 else config.num_key_value_heads,
        "head": head,
        "inner": inner,
        "positions": config.max_position_embeddings,
        "windows": windows_of(model),
        "tied": model.lm_head.weight is model.get_input_embeddings().weight,
        "bos": config.bos_token_id,
        "eos": eos if isinstance(eos, list) else [] if eos is None else [eos],
        "pad": config.pad_token_id,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    frequencies = None if gpt2 or model.device.type == "meta" else model.model.rotary_emb.inv_freq.tolist()
    return {"spec": spec, "frequencies": frequencies}


def change_files(folder, how, table):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if how.get("head") == "other":
        tensors["lm_head.weight"] = torch.randn_like(tensors[table])
    elif how.get("head") == "equal":
        tensors["lm_head.weight"] = tensors[table].clone()
    elif how.get("head") == "only":
        tensors["lm_head.weight"] = tensors.pop(table)
    if how.get("no_prefix"):
        tensors = {name.removeprefix("model.").removeprefix("transformer."): t for name, t in tensors.items()}
    if how.get("buffers"):
        if "wte.weight" in tensors:
            tensors["h.0.attn.bias"] = torch.tril(torch.ones(1, 1, 40, 40))
            tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
        else:
            tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, path, {"format": "pt"})


def old_config(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = {"type": rope["rope_type"], "factor": rope["factor"]}
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))


def make(root):
    for seed, (name, (keys, how)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        keys = dict(keys)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(keys.pop("model_type"), **keys))
        with torch.no_grad():
            # Fresh norms and biases are ones and zeros: two of them could be exchanged unseen.
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        folder = root / name / "source"
        model.to(how.get("dtype", torch.float32)).save_pretrained(folder, max_shard_size=how.get("shards", "5GB"))
        (folder / "tokenizer.json").write_text("{}")
        if how.get("shards"):
            assert len(list(folder.glob("*.safetensors"))) > 2
        elif {"head", "no_prefix", "buffers"} & how.keys():
            change_files(folder, how, "transformer.wte.weight" if "n_embd" in keys else "model.embed_tokens.weight")
        if how.get("old_config"):
            old_config(folder)
        model, info = load(folder)
        assert not info["missing_keys"], (name, info["missing_keys"])
        (root / name / "facts.json").write_text(json.dumps(facts_of(model)))


def defaults(root):
    for family in ["gpt2", "llama", "mistral", "qwen2", "qwen3"]:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family))
        config = model.config
        facts = facts_of(model)["spec"]
        facts["eps"] = config.layer_norm_epsilon if family == "gpt2" else config.rms_norm_eps
        facts["deviation"] = config.initializer_range
        facts["theta"] = None if family == "gpt2" else config.rope_parameters["rope_theta"]
        dropouts = ["embd_pdrop", "attn_pdrop", "resid_pdrop"] if family == "gpt2" else ["", "attention_dropout", ""]
        facts["dropouts"] = [getattr(config, key) if key else 0.0 for key in dropouts]
        (root / f"{family}.json").write_text(json.dumps(facts))


def judge(root):
    for name in CASES:
        source, _ = load(root / name / "source")
        for made in ["rewritten", "narrow", "random"]:
            model, info = load(root / name / made)
            for kind in ["missing_keys", "unexpected_keys", "mismatched_keys"]:
                assert not info[kind], (name, made, kind, info[kind])
            theirs, ours = source.state_dict(), model.state_dict()
            assert theirs.keys() == ours.keys(), name
            if made == "rewritten":
                for key in theirs:
                    assert torch.equal(theirs[key], ours[key]), (name, key)
                assert torch.equal(logits(source), logits(model)), name
                for key in ["bos_token_id", "eos_token_id", "pad_token_id"]:
                    assert getattr(model.config, key) == getattr(source.config, key), (name, key)
            elif made == "narrow":
                for key in theirs:
                    assert torch.equal(theirs[key].to(torch.bfloat16).float(), ours[key]), (name, key)
                with safe_open(root / name / made / "model.safetensors", "pt") as file:
                    kinds = {file.get_slice(key).get_dtype() for key in file.keys()}
                assert kinds == {"BF16"}, (name, kinds)
                config = AutoConfig.from_pretrained(root / name / made)
                assert config.dtype == torch.bfloat16, (name, config.dtype)
            else:
                fresh = dict(type(model)(model.config).named_parameters())
                for key, value in model.named_parameters():
                    n = value.numel()
                    if "norm" in key or "ln_" in key or key.endswith("bias"):
                        assert torch.equal(value.unique(), fresh[key].unique()), (name, key)
                    else:
                        # A padding token's row is zero in a fresh model of transformers, and is not compared.
                        rows = torch.arange(value.shape[0])
                        if "embed_tokens" in key and source.config.pad_token_id is not None:
                            rows = rows[rows != source.config.pad_token_id]
                        ratio = (value[rows].std() / fresh[key][rows].std()).item()
                        assert abs(ratio - 1) < 6 / math.sqrt(n), (name, key, ratio)
                logits(model)
        print("same:", name)


{"make": make, "defaults": defaults, "judge": judge}[sys.argv[1]](Path(sys.argv[2]))
