//! The names that files have for a model's tensors, beside those of `ModelSpec::params`.
//!
//! Pure: text in, text out. Files written without the model's head have no prefix (`h.0.ln_1.weight`), old T5 files
//! have three names for one table, adapters have PEFT's prefix, and some files hold buffers that nobody trains.

/// T5's embedding table.
pub(crate) const SHARED: &str = "shared.weight";
/// The head, where it is written down; otherwise the embedding table serves.
pub(crate) const HEAD: &str = "lm_head.weight";
/// Other names of T5's table in files of older writers.
pub(crate) const T5_TABLES: [&str; 2] = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
/// Written by the first T5 checkpoints, read by nobody: cross attention has no position bias.
const UNREAD: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
/// What PEFT puts before the name of a module.
const ADAPTER: &str = "base_model.model.";

/// The name of a decoder's tensor in a file that was written without its head.
pub(crate) fn without_prefix(name: &str) -> Option<&str> {
    name.strip_prefix("model.").or_else(|| name.strip_prefix("transformer."))
}

/// The name of a factor in an adapter's file.
pub(crate) fn in_adapter(name: &str) -> Option<String> {
    name.contains(".lora_").then(|| format!("{ADAPTER}{name}"))
}

/// The name of a factor, from its name in an adapter's file.
pub(crate) fn from_adapter(name: &str) -> Option<&str> {
    name.strip_prefix(ADAPTER)
}

/// Tensors that may be the embedding table under another name.
pub(crate) fn other_tables(name: &str) -> &'static [&'static str] {
    match name {
        SHARED => &[T5_TABLES[0], T5_TABLES[1], HEAD],
        _ => &[],
    }
}

/// Constants that some writers saved with the weights: GPT-2's causal masks, rotary wave lengths, an unused bias of T5.
pub(crate) fn is_buffer(name: &str) -> bool {
    let mask = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    (mask && in_block(name, "h.")) || name.ends_with(".rotary_emb.inv_freq") || name == UNREAD
}

/// The number of batches that a norm of PyTorch has seen: the one whole number of a model, I64 in its files.
pub(crate) fn is_count(name: &str) -> bool {
    name.ends_with(".num_batches_tracked")
}

/// `h.3.attn.bias`, but not `h.3.1.attn.bias`: nothing else may hide behind the name of a buffer.
fn in_block(name: &str, stem: &str) -> bool {
    let name = name.strip_prefix("transformer.").unwrap_or(name);
    let block = name.strip_prefix(stem).and_then(|rest| rest.split_once('.'));
    block.is_some_and(|(number, rest)| number.parse::<u32>().is_ok() && rest.starts_with("attn."))
}

/// Whether a left-over tensor is a part of a model that somebody trained.
pub(crate) fn is_trained(name: &str) -> bool {
    const PARTS: [&str; 13] = [
        "encoder.",
        "decoder.",
        "shared.",
        "lm_head.",
        "model.",
        "transformer.",
        "layers.",
        "embed_tokens.",
        "norm.",
        "h.",
        "wte.",
        "wpe.",
        "ln_f.",
    ];
    PARTS.iter().any(|part| name.starts_with(part)) && (name.ends_with(".weight") || name.ends_with(".bias"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_told_from_trained_biases() {
        for name in
            ["h.0.attn.bias", "transformer.h.11.attn.masked_bias", "model.layers.0.self_attn.rotary_emb.inv_freq"]
        {
            assert!(is_buffer(name), "{name}");
        }
        for name in ["h.0.attn.c_attn.bias", "h.x.attn.bias", "model.layers.0.attn.bias", "h.0.1.attn.bias"] {
            assert!(!is_buffer(name), "{name}");
        }
    }
}
