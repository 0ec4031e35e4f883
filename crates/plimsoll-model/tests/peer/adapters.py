"""The other side of tests/peer.rs: PEFT makes adapters for small models, and judges what Plimsoll made of them.

    adapters.py make DIR    DIR/<case>/base, DIR/<case>/theirs and DIR/<case>/facts.json for every case
    adapters.py judge DIR   DIR/<case>/ours must compute what DIR/<case>/theirs computes; DIR/<case>/merged must be
                            PEFT's merge_and_unload
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

GPT2 = dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=40, bos_token_id=1, eos_token_id=2)
LLAMA = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, eos_token_id=2,
)
T5 = dict(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name: (family, config keys, LoRA's)
CASES = {
    "gpt2": ("gpt2", GPT2, dict(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True)),
    "gpt2-every": ("gpt2", GPT2, dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_proj", "mlp.c_fc"])),
    "llama": ("llama", LLAMA, dict(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)),
    "llama-all-linear": ("llama", LLAMA, dict(r=2, lora_alpha=3, target_modules="all-linear")),
    "mistral": ("mistral", LLAMA, dict(r=5, lora_alpha=8, target_modules=EVERY, use_rslora=True)),
    "qwen2": ("qwen2", {**LLAMA, "tie_word_embeddings": True}, dict(r=4, lora_alpha=4, target_modules=EVERY)),
    "qwen3": ("qwen3", {**LLAMA, "head_dim": 16}, dict(r=4, lora_alpha=8, init="gaussian", target_modules=EVERY)),
    "t5": ("t5", T5, dict(r=4, lora_alpha=8, target_modules=["q", "v", "wo"])),
}


def class_of(name):
    return AutoModelForSeq2SeqLM if CASES[name][0] == "t5" else AutoModelForCausalLM


def load(name, folder):
    model, info = class_of(name).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], (name, info)
    return model.eval()


def logits(model):
    tokens = torch.arange(2 * 11).reshape(2, 11) * 7 % 90 + 3
    with torch.no_grad():
        return model(input_ids=tokens, labels=tokens).logits


def make(root):
    for seed, (name, (family, keys, how)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        base = root / name / "base"
        class_of(name).from_config(AutoConfig.for_model(family, **keys)).save_pretrained(base)
        (base / "tokenizer.json").write_text("{}")
        how = dict(how)
        init = how.pop("init", True)
        task = "SEQ_2_SEQ_LM" if family == "t5" else "CAUSAL_LM"
        model = get_peft_model(load(name, base), LoraConfig(task_type=task, init_lora_weights=init, **how))
        with torch.no_grad():
            for key, value in model.named_parameters():
                if "lora_" in key:
                    value.copy_(0.3 * torch.randn_like(value))
        model.save_pretrained(root / name / "theirs")
        config = model.peft_config["default"]
        scale = config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r)
        facts = {"scale": scale, "targets": sorted(config.target_modules)}
        (root / name / "facts.json").write_text(json.dumps(facts))


def judge(root):
    for name in CASES:
        case = root / name
        plain = logits(load(name, case / "base"))
        theirs = PeftModel.from_pretrained(load(name, case / "base"), case / "theirs").eval()
        ours = PeftModel.from_pretrained(load(name, case / "base"), case / "ours").eval()
        expected = logits(theirs)
        assert not torch.allclose(plain, expected, atol=1e-3), name
        assert torch.equal(expected, logits(ours)), name
        # Alone: its config names the base.
        alone = class_of(name).from_pretrained(case / "ours").eval()
        assert torch.allclose(expected, logits(alone), atol=1e-6), name
        merged, unloaded = load(name, case / "merged").state_dict(), theirs.merge_and_unload().state_dict()
        assert merged.keys() == unloaded.keys(), name
        worst = max((merged[key] - unloaded[key]).abs().max().item() for key in merged)
        assert worst <= 1e-6, (name, worst)
        print("same:", name, worst)


{"make": make, "judge": judge}[sys.argv[1]](Path(sys.argv[2]))
