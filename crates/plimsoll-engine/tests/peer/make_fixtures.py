"""Writes the committed fixtures of the engine's parity tests: `make_fixtures.py FOLDER`, normally ../fixtures.

Each case is a folder: `config.json` and `model.safetensors` in the Hugging Face layout, and `case.safetensors`:

    input_ids, attention_mask, labels     int32 [rows, length]; labels are -100 where nothing is to be learned
    loss, logits, grad.<name>             of that batch
    generate.greedy, generate.beam        int32 ids, start token first: 12 new tokens, 4 beams, length penalty 1 *
    train.input_ids, ...                  int32 [batches, rows, length]: update u trains on batch u mod batches *
    losses.<run>, grad_norms.<run>, after.<run>.<name>    20 updates, see RUNS *

    * in the cases that CASES gives runs

For each run the same updates are also made in fp64; the largest distance between the two is printed and bounded: it
is the rounding that an engine in fp32 cannot be asked to beat.
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import T5Config, T5ForConditionalGeneration

import t5

UPDATES = 20
MANUAL = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
RELATIVE = {"lr": None, "scale_parameter": True, "relative_step": True}
# run -> (optimizer, options, norm to clip to, micro-batches)
RUNS = {
    "adamw": ("adamw", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}, None, 1),
    "adamw_clip_accumulate": ("adamw", {"lr": 1e-3, "weight_decay": 0.01}, 1.0, 2),
    "adafactor": ("adafactor", MANUAL, None, 1),
    "adafactor_relative": ("adafactor", RELATIVE, None, 1),
    "adafactor_relative_warmup": ("adafactor", RELATIVE | {"warmup_init": True}, None, 1),
    "adafactor_beta1_decay": ("adafactor", MANUAL | {"beta1": 0.9, "weight_decay": 0.01}, None, 1),
    "adafactor_clip_half": ("adafactor", MANUAL | {"clip_threshold": 0.5}, None, 1),
    "sgd_nesterov": ("sgd", {"lr": 1e-3, "momentum": 0.9, "nesterov": True}, None, 1),
}
BOTH = ("adamw", "adafactor")
RAGGED = {"source": (16, 5, 11, 16, 3, 9), "target": (4, 12, 7, 9, 1, 12)}
FULL = {"source": (14,) * 4, "target": (10,) * 4}
LONG = {"source": (70, 45), "target": (40, 33)}
# case -> (feed-forward, scaled head, head of its own, encoder and decoder blocks, lengths, runs)
CASES = {
    "v10_tied_padded": ("relu", True, False, (2, 2), RAGGED, tuple(RUNS)),
    "v10_tied_unpadded": ("relu", True, False, (2, 1), FULL, ()),
    "v11_untied_padded": ("gated-gelu", False, True, (2, 2), RAGGED, BOTH),
    "v11_tied_unscaled": ("gated-gelu", False, False, (2, 2), RAGGED, ()),
    "v10_tied_long": ("relu", True, False, (1, 2), LONG, ()),
}
VOCAB, HOLES = 97, "v11_untied_padded"


def build(feed_forward, scaled, own_head, blocks):
    """A tiny T5 whose every part matters: norms away from one, attention away from uniform."""
    config = T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, num_heads=3, d_ff=48, num_layers=blocks[0], num_decoder_layers=blocks[1],
        relative_attention_num_buckets=8, relative_attention_max_distance=20, dropout_rate=0.0,
        feed_forward_proj=feed_forward, tie_word_embeddings=scaled, decoder_start_token_id=0,
    )
    assert config.scale_decoder_outputs == scaled
    model = T5ForConditionalGeneration(config)
    if own_head:  # after creation: an untied config would also untie the two stacks' embeddings
        model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, 32) * 0.4)
    with torch.no_grad():
        model.lm_head.weight[1].mul_(1.7)  # so that some generated rows end and others do not
        for name, weight in model.named_parameters():
            if "layer_norm" in name:
                weight.add_(torch.randn_like(weight) * 0.3)
            elif "relative_attention_bias" in name or name.endswith(".q.weight"):
                weight.mul_(3.0)
    return model.eval()


def save(model, own_head, folder):
    """The folder as the published T5 checkpoints are laid out: each tensor once, and an untied head said in the config."""
    os.makedirs(folder, exist_ok=True)
    config = json.loads(model.config.to_json_string(use_diff=False))
    keep = (
        "architectures model_type vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads "
        "relative_attention_num_buckets relative_attention_max_distance dropout_rate layer_norm_epsilon "
        "initializer_factor feed_forward_proj is_encoder_decoder pad_token_id eos_token_id decoder_start_token_id "
        "tie_word_embeddings scale_decoder_outputs"
    ).split()
    config = {key: config[key] for key in keep if key in config}
    config["architectures"] = ["T5ForConditionalGeneration"]
    if own_head or model.config.scale_decoder_outputs:
        config.pop("scale_decoder_outputs")
        config["tie_word_embeddings"] = not own_head
    with open(os.path.join(folder, "config.json"), "w") as file:
        file.write(json.dumps(config, indent=2, sort_keys=True) + "\n")
    weights = {name: weight.detach().clone() for name, weight in t5.named_weights(model).items()}
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def batch(lengths, holes):
    """Random tokens that end with 1, right-padded with 0 (mask 0) and -100; `holes` also ignores two targets inside."""
    width = {side: max(counts) for side, counts in lengths.items()}
    rows = len(lengths["source"])
    ids = torch.zeros(rows, width["source"], dtype=torch.int32)
    labels = torch.full((rows, width["target"]), -100, dtype=torch.int32)
    for row, (source, target) in enumerate(zip(lengths["source"], lengths["target"])):
        for tensor, length in ((ids, source), (labels, target)):
            tensor[row, :length] = torch.randint(2, VOCAB, (length,), dtype=torch.int32)
            tensor[row, length - 1] = 1
    mask = (torch.arange(width["source"])[None] < torch.tensor(lengths["source"])[:, None]).to(torch.int32)
    if holes:
        labels[1, 3] = -100
        labels[3, 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def run(folder, batches, name, dtype):
    kind, options, clip_norm, micro_batches = RUNS[name]
    model = t5.load(folder, dtype)
    losses, norms = t5.train(model, batches, UPDATES, t5.optimizer(model, kind, options), clip_norm, micro_batches)
    return losses, norms, {key: weight.detach().clone() for key, weight in t5.named_weights(model).items()}


def distance(ours, exact):
    """The largest norm-wise relative distance over the tensors, and its tensor."""
    return max((float((ours[k].double() - exact[k]).norm() / exact[k].norm()), k) for k in exact)


def write(case, folder):
    feed_forward, scaled, own_head, blocks, lengths, runs = CASES[case]
    torch.manual_seed(20 + list(CASES).index(case))
    save(build(feed_forward, scaled, own_head, blocks), own_head, folder)
    model = t5.load(folder)
    assert model.config.scale_decoder_outputs == scaled

    holes = case == HOLES
    one, out = batch(lengths, holes), {}
    batches = [batch(lengths, holes) for _ in range(4)] if runs else []
    out |= one | {f"train.{key}": torch.stack([b[key] for b in batches]) for key in one if batches}
    out["logits"] = t5.forward(model, one).logits.detach()
    out["loss"] = torch.tensor([t5.backward(model, one)])
    for name, weight in t5.named_weights(model).items():
        assert float(weight.grad.norm()) > 1e-4, f"{case}: the gradient of {name} is degenerate"
        out[f"grad.{name}"] = weight.grad.clone()
    print(f"{case}: loss {float(out['loss']):.6f}", file=sys.stderr)
    # Not for every case: transformers cannot generate with more decoder than encoder blocks (its cache has too few).
    for kind, beams in (("greedy", 1), ("beam", 4)) if runs else ():
        ids = t5.generate(model, one["input_ids"], one["attention_mask"], 12, beams)
        out[f"generate.{kind}"] = ids.to(torch.int32)
        print(f"  {kind}: {int((ids == 1).any(1).sum())} of {len(ids)} rows ended", file=sys.stderr)

    for name in runs:
        losses, norms, after = run(folder, batches, name, torch.float32)
        _, _, exact = run(folder, batches, name, torch.float64)
        worst = distance(after, exact)
        print(f"  {name}: loss {losses[0]:.4f} to {losses[-1]:.4f}, fp32 to fp64 {worst[0]:.1e} {worst[1]}", file=sys.stderr)
        assert worst[0] < 2e-5, f"{case}: {name} is too sensitive to rounding to be a fixture"
        out[f"losses.{name}"], out[f"grad_norms.{name}"] = torch.tensor(losses), torch.tensor(norms)
        out |= {f"after.{name}.{key}": weight for key, weight in after.items()}
    save_file({key: value.contiguous() for key, value in out.items()}, os.path.join(folder, "case.safetensors"))


def main():
    for case in CASES:
        write(case, os.path.join(sys.argv[1], case))


main()
