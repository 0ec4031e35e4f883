"""What every peer script here shares: how a T5 folder is read, and how transformers and torch train it.

transformers 5 forces `tie_word_embeddings` to true in `T5Config` and keeps the old meaning of the key (scale the
decoder's output, or not) in `scale_decoder_outputs`. A head of its own survives loading only because the checkpoint
holds a `lm_head.weight` that differs from `shared.weight`; `load` checks that it did.

All numbers are fp32 on one thread, with dropout off (`eval`), so that a run repeats to the bit.
"""

import math
import os

import torch
from safetensors import safe_open
from transformers import Adafactor, T5ForConditionalGeneration
from transformers.utils import logging

logging.set_verbosity_error()
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


def load(folder, dtype=torch.float32):
    """The model of a folder, with dropout off, tied or untied as its weights file says."""
    model = T5ForConditionalGeneration.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as weights:
        own_head = "lm_head.weight" in weights.keys() and not torch.equal(
            weights.get_tensor("lm_head.weight"), weights.get_tensor("shared.weight")
        )
    assert own_head == (model.lm_head.weight is not model.shared.weight), "transformers changed the tie of the head"
    return model.eval()


def named_weights(model):
    """Each stored tensor once, by its name in the file: a tied head and the stacks' embeddings are `shared.weight`."""
    return dict(model.named_parameters())


def forward(model, batch):
    """The model's answer to `{input_ids, attention_mask, labels}`."""
    return model(
        input_ids=batch["input_ids"].long(),
        attention_mask=batch["attention_mask"].long(),
        labels=batch["labels"].long(),
        use_cache=False,
    )


def optimizer(model, name, options):
    """`adamw`, `adafactor` or `sgd`, with the options by their Hugging Face or torch names."""
    makers = {"adamw": torch.optim.AdamW, "adafactor": Adafactor, "sgd": torch.optim.SGD}
    return makers[name](model.parameters(), **options)


def target_tokens(batch):
    return int((batch["labels"] != -100).sum())


def backward(model, batch, micro_batches=1):
    """Leaves the gradient of the batch's mean loss per target token in the model; returns that loss."""
    rows = batch["input_ids"].shape[0]
    assert rows % micro_batches == 0, f"{rows} rows do not split into {micro_batches}"
    per_micro, total, loss = rows // micro_batches, target_tokens(batch), 0.0
    model.zero_grad(set_to_none=True)
    for start in range(0, rows, per_micro):
        micro = {name: tensor[start : start + per_micro] for name, tensor in batch.items()}
        part = forward(model, micro).loss * (target_tokens(micro) / total)
        part.backward()
        loss += float(part.detach())
    return loss


def train(model, batches, updates, optim, clip_norm=None, micro_batches=1):
    """Update `u` trains on batch `u mod len(batches)`. Returns the losses, and the gradient norms before clipping."""
    losses, norms = [], []
    for update in range(updates):
        losses.append(backward(model, batches[update % len(batches)], micro_batches))
        limit = math.inf if clip_norm is None else clip_norm
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit)))
        optim.step()
    return losses, norms


def unstack(tensors):
    """`{input_ids, ...}` of shape [rows, length] or [batches, rows, length] as a list of batches."""
    names = ("input_ids", "attention_mask", "labels")
    if tensors["input_ids"].dim() == 2:
        return [{name: tensors[name] for name in names}]
    return [{name: tensors[name][index] for name in names} for index in range(tensors["input_ids"].shape[0])]


def generate(model, input_ids, attention_mask, max_new_tokens, num_beams=1, length_penalty=1.0, early_stopping=False):
    """Generated ids, the start token first, padded with 0 after the end."""
    beams = {} if num_beams == 1 else {"length_penalty": length_penalty, "early_stopping": early_stopping}
    with torch.no_grad():
        ids = model.generate(
            input_ids=input_ids.long(),
            attention_mask=attention_mask.long(),
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            do_sample=False,
            **beams,
        )
    # transformers' beam search fills up with the end token where the padding token is 0
    after_end = (ids == model.config.eos_token_id).cumsum(1) - (ids == model.config.eos_token_id).long() > 0
    return ids.masked_fill(after_end, model.config.pad_token_id)
