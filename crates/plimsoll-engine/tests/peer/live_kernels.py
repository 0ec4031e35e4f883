"""Ops of decoder models as PyTorch and transformers compute them, with their inputs: live_kernels.py OUT.safetensors"""

import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

torch.manual_seed(1)
out = {}


def leaf(name, *shape):
    out[name] = torch.randn(*shape)
    return out[name].clone().requires_grad_()


def gradients(prefix, result, **inputs):
    seed = torch.randn_like(result)
    out[f"{prefix}.out"], out[f"{prefix}.dout"] = result.detach(), seed
    for (name, _), grad in zip(inputs.items(), torch.autograd.grad(result, list(inputs.values()), seed)):
        out[f"{prefix}.d{name}"] = grad


# Rotary positions: 700 of them, heads of 64.
ropes = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
for name, parameters in ropes.items():
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, head_dim=64, rope_parameters=parameters)
    x = torch.randn(1, 2, 700, 64)
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(700)[None])
    out[f"rope.{name}.x"] = x[0].transpose(0, 1).reshape(700, 128)
    turned, _ = apply_rotary_pos_emb(x, x, cos, sin)
    out[f"rope.{name}.out"] = turned[0].transpose(0, 1).reshape(700, 128)

# Attention of 600 tokens: 6 heads on 2 of keys and values, 32 wide; causal, and with a window of 200.
for name, window in [("attention", 600), ("window", 200)]:
    q, k, v = (leaf(f"{name}.{part}", 600, heads * 32) for part, heads in [("q", 6), ("k", 2), ("v", 2)])
    heads = lambda t: t.view(600, -1, 32).transpose(0, 1)
    apart = torch.arange(600)[:, None] - torch.arange(600)[None]
    mask = (apart >= 0) & (apart < window)
    result = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), attn_mask=mask, enable_gqa=True)
    gradients(name, result.transpose(0, 1).reshape(600, 192), q=q, k=k, v=v)

x, weight, bias = leaf("layer_norm.x", 50, 72), leaf("layer_norm.weight", 72), leaf("layer_norm.bias", 72)
gradients("layer_norm", F.layer_norm(x, (72,), weight, bias, 1e-5), x=x, weight=weight, bias=bias)

norm, x = Qwen3RMSNorm(24, 1e-6), leaf("head_norm.x", 50, 72)
norm.weight.data = torch.randn(24)
out["head_norm.weight"] = norm.weight.detach().clone()
gradients("head_norm", norm(x.view(50, 3, 24)).reshape(50, 72), x=x, weight=norm.weight)

ab = leaf("gated_silu.ab", 30, 80)
gradients("gated_silu", F.silu(ab[:, :40]) * ab[:, 40:], ab=ab)

save_file({name: tensor.contiguous() for name, tensor in out.items()}, sys.argv[1])
