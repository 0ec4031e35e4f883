"""The other side of tests/peer_model.rs: transformers makes models, tokenizer and data, and judges what became of them.

    peer.py make DIR     DIR/v1.0, DIR/v1.1, DIR/pairs.jsonl, DIR/pairs.parquet, DIR/held-out.jsonl, DIR/prompts.txt
    peer.py judge DIR    DIR/judged.json: for each run DIR/VERSION-FORMAT the loss on held-out.jsonl and the answers
"""

import json
import random
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

SIZES = dict(d_model=48, d_kv=16, d_ff=96, num_layers=2, num_decoder_layers=2, num_heads=3)
VERSIONS = {"v1.0": {}, "v1.1": dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)}
SPECIAL = ["<pad>", "</s>", "<unk>"]


def pairs(seed, count):
    draw = random.Random(seed)
    colours, things = ["red", "green", "blue", "black"], ["boat", "house", "tree", "café", "bird"]
    rows = []
    for _ in range(count):
        thing, colour, n = draw.choice(things), draw.choice(colours), draw.randint(2, 40)
        rows.append((f"There are {n} {thing}s, all {colour}. Which colour has a {thing}?", f"A {thing} is {colour}."))
    return rows


def tokenizer_of(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def make(root):
    rows, held_out = pairs(1, 120), pairs(2, 30)
    as_objects = [{"id": str(i), "question": q, "answer": a} for i, (q, a) in enumerate(rows)]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in as_objects))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(as_objects), root / "pairs.parquet", row_group_size=50)
    lines = [json.dumps({"question": q, "answer": a}, ensure_ascii=False) + "\n" for q, a in held_out]
    (root / "held-out.jsonl").write_text("".join(lines))
    (root / "prompts.txt").write_text("".join(q + "\n" for q, _ in held_out[:20]))
    tokenizer = tokenizer_of([text for row in rows for text in row])
    for seed, (version, keys) in enumerate(VERSIONS.items()):
        torch.manual_seed(seed)
        config = T5Config(vocab_size=len(tokenizer) + 10, decoder_start_token_id=0, dropout_rate=0.1, **SIZES, **keys)
        T5ForConditionalGeneration(config).save_pretrained(root / version)
        tokenizer.save_pretrained(root / version)


def loss_of(model, tokenizer, rows):
    source = tokenizer([row["question"] for row in rows], padding=True, return_tensors="pt")
    target = tokenizer([row["answer"] for row in rows], padding=True, return_tensors="pt")
    labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
    with torch.no_grad():
        return model(input_ids=source.input_ids, attention_mask=source.attention_mask, labels=labels).loss.item()


def answers(model, tokenizer, prompts, beams):
    source = tokenizer(prompts, padding=True, return_tensors="pt")
    how = dict(max_new_tokens=16, do_sample=False, num_beams=beams, length_penalty=1.0, early_stopping=False)
    how = how if beams > 1 else dict(max_new_tokens=16, do_sample=False, num_beams=1)
    ids = model.generate(input_ids=source.input_ids, attention_mask=source.attention_mask, **how)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def judge(root):
    rows = [json.loads(line) for line in (root / "held-out.jsonl").read_text().splitlines()]
    prompts = (root / "prompts.txt").read_text().splitlines()
    judged = {}
    for version in VERSIONS:
        before = T5ForConditionalGeneration.from_pretrained(root / version, dtype=torch.float32).eval()
        for form in ["jsonl", "parquet"]:
            folder = root / f"{version}-{form}" / "model"
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model, info = T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
            assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
            model.eval()
            judged[f"{version}-{form}"] = {
                "loss": loss_of(model, tokenizer, rows),
                "loss_before": loss_of(before, tokenizer, rows),
                "greedy": answers(model, tokenizer, prompts, 1),
                "beams": answers(model, tokenizer, prompts, 4),
            }
    (root / "judged.json").write_text(json.dumps(judged, indent=1))


{"make": make, "judge": judge}[sys.argv[1]](Path(sys.argv[2]))
