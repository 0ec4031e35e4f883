#!/usr/bin/env python3
"""PyTorch + transformers on a card, on the shapes of `cargo bench -p plimsoll-engine --bench card`.

    python3 bench/card_torch.py {full|lora|t5} {eager|compile} [--steps N]

Qwen2.5-0.5B: bf16 weights, fused AdamW, batch 8 x 1024; `lora` puts adapters of rank 16 on all linears. T5-small:
f32 weights, bf16 autocast, Adafactor, batch 32 x (256 + 256). Weights and tokens are random. Prints tokens a second (median
of the steps after the first ten), and what the driver counts for the process.
"""
import argparse
import statistics
import time

import torch
import transformers


class Lora(torch.nn.Module):
    """A frozen linear with an adapter beside it."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        like = dict(device=base.weight.device, dtype=base.weight.dtype)
        self.down = torch.nn.Parameter(torch.randn(rank, base.in_features, **like) * 0.02)
        self.up = torch.nn.Parameter(torch.zeros(base.out_features, rank, **like))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.down.T) @ self.up.T * self.scale


def qwen(lora):
    config = transformers.Qwen2Config(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, max_position_embeddings=32768, rope_theta=1e6, tie_word_embeddings=True, use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    model.train()
    if lora:
        model.requires_grad_(False)
        for block in model.model.layers:
            for part in (block.self_attn, block.mlp):
                for name, child in list(part.named_children()):
                    if isinstance(child, torch.nn.Linear):
                        setattr(part, name, Lora(child, 16, 32.0))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def batch():
        ids = torch.randint(2, config.vocab_size, (8, 1024), device="cuda")
        return dict(input_ids=ids, labels=ids)

    return model, optimizer, batch, 8 * 1024, False


def t5():
    config = transformers.T5Config(
        vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0,
        use_cache=False)
    with torch.device("cuda"):
        model = transformers.T5ForConditionalGeneration(config)
    model.train()
    optimizer = transformers.Adafactor(model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False)

    def batch():
        draw = lambda: torch.randint(2, config.vocab_size, (32, 256), device="cuda")
        return dict(input_ids=draw(), labels=draw())

    return model, optimizer, batch, 32 * 512, True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=["full", "lora", "t5"])
    parser.add_argument("mode", choices=["eager", "compile"])
    parser.add_argument("--steps", type=int, default=40)
    said = parser.parse_args()
    torch.manual_seed(1)
    model, optimizer, batch, tokens, autocast = t5() if said.shape == "t5" else qwen(said.shape == "lora")
    run = torch.compile(model) if said.mode == "compile" else model
    seconds = []
    for _ in range(said.steps):
        inputs = batch()
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = run(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    left, total = torch.cuda.mem_get_info()
    median = statistics.median(seconds[10:])
    print(f"torch {torch.__version__} {said.shape} {said.mode}: {tokens / median / 1e3:.1f} k tok/s ({median * 1e3:.2f} ms), "
          f"{(total - left) / 2**30:.2f} GiB by the driver, {torch.cuda.max_memory_allocated() / 2**30:.2f} allocated, "
          f"loss {float(loss.detach()):.3f}", flush=True)


main()
