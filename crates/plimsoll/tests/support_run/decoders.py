"""The other side of tests/decoders.rs: transformers and PEFT answer with what Plimsoll trained.

    decoders.py DIR    DIR/judged.json: greedy answers to DIR/prompts.json of DIR/full/model, of the adapter
                       DIR/run/model over its base, and of DIR/merged
"""

import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def answers(model, folder, prompts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = []
    for prompt in prompts:
        turns = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
        said.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    return said


root = Path(sys.argv[1])
prompts = json.loads((root / "prompts.json").read_text())
adapter = root / "run" / "model"
base = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
judged = {
    "full": answers(load(root / "full" / "model"), root / "full" / "model", prompts),
    "run": answers(PeftModel.from_pretrained(load(base), adapter).eval(), adapter, prompts),
    "merged": answers(load(root / "merged"), root / "merged", prompts),
}
(root / "judged.json").write_text(json.dumps(judged, indent=1))
