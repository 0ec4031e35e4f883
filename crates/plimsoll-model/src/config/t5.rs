//! T5 and MT5, read into a `T5Spec` and written back.

use plimsoll_plan::spec::{FeedForward, ModelSpec, T5Spec};
use serde_json::{Value, json};

use super::keys::{MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, PROBABILITY};
use super::{Config, Keys, shortest};
use crate::ModelError;

/// The spec, and the factor on everything that is drawn at random.
pub(super) fn read(keys: &Keys<'_>, mt5: bool) -> Result<(ModelSpec, f32), ModelError> {
    if keys.flag("is_encoder_decoder")? == Some(false) {
        return Err(keys.wrong("is_encoder_decoder", "`true`", "false"));
    }
    let by_family = |t5: usize, other: usize| if mt5 { other } else { t5 };

    let vocab = keys.size("vocab_size", None, by_family(32128, 250_112), MAX_VOCAB)?;
    let encoder_layers = keys.size("num_layers", Some("num_hidden_layers"), by_family(6, 8), MAX_LAYERS)?;
    let pad_id = keys.token("pad_token_id", 0, vocab)?;
    let tie = keys.flag("tie_word_embeddings")?;
    // MT5 never scales in transformers 5. T5 does unless told otherwise: by its own key, which transformers 5 writes,
    // or, in older configs, by `tie_word_embeddings = false`.
    let scale_head = !mt5 && keys.flag("scale_decoder_outputs")?.unwrap_or(tie != Some(false));
    let spec = T5Spec {
        vocab,
        d_model: keys.size("d_model", Some("hidden_size"), 512, MAX_WIDTH)?,
        d_kv: keys.size("d_kv", Some("head_dim"), 64, MAX_HEADS)?,
        d_ff: keys.size("d_ff", None, by_family(2048, 1024), MAX_WIDTH)?,
        encoder_layers,
        decoder_layers: keys.size("num_decoder_layers", None, encoder_layers, MAX_LAYERS)?,
        heads: keys.size("num_heads", Some("num_attention_heads"), by_family(8, 6), MAX_HEADS)?,
        buckets: keys.size("relative_attention_num_buckets", None, 32, MAX_HEADS)?,
        max_distance: keys.size("relative_attention_max_distance", None, 128, MAX_VOCAB)?,
        dropout: keys.number("dropout_rate", 0.1, PROBABILITY, |p| (0.0..1.0).contains(&p))?,
        norm_eps: keys.number("layer_norm_epsilon", 1e-6, "a number between 0 and 1", |e| 0.0 < e && e < 1.0)?,
        feed_forward: feed_forward(keys, mt5)?,
        tied: tie != Some(false),
        scale_head,
        pad_id,
        eos_id: keys.token("eos_token_id", 1, vocab)?,
        start_id: match keys.map.get("decoder_start_token_id") {
            Some(Value::Null) | None => pad_id,
            Some(_) => keys.token("decoder_start_token_id", pad_id, vocab)?,
        },
    };
    buckets_make_sense(keys, &spec)?;
    let init_factor = keys.number("initializer_factor", 1.0, "a number above 0", |f| f > 0.0)?;
    Ok((spec.into(), init_factor))
}

fn feed_forward(keys: &Keys<'_>, mt5: bool) -> Result<FeedForward, ModelError> {
    let default = if mt5 { "gated-gelu" } else { "relu" };
    let (kind, act, gated) = match keys.text("feed_forward_proj")?.unwrap_or(default) {
        "relu" => (FeedForward::Relu, "relu", false),
        "gated-gelu" => (FeedForward::GatedGelu, "gelu_new", true),
        other => return Err(keys.wrong("feed_forward_proj", "`relu` or `gated-gelu`", other)),
    };
    // transformers lets these two overrule `feed_forward_proj`.
    if let Some(found) = keys.text("dense_act_fn")?.filter(|found| *found != act) {
        return Err(keys.wrong("dense_act_fn", &format!("`{act}`, as `feed_forward_proj` has it"), found));
    }
    if let Some(found) = keys.flag("is_gated_act")?.filter(|found| *found != gated) {
        return Err(keys.wrong(
            "is_gated_act",
            &format!("`{gated}`, as `feed_forward_proj` has it"),
            &found.to_string(),
        ));
    }
    Ok(kind)
}

/// The encoder halves the buckets for the two directions, and half of what is left counts single positions; the rest
/// grows as the logarithm of distance over that count, which must be above one.
fn buckets_make_sense(keys: &Keys<'_>, spec: &T5Spec) -> Result<(), ModelError> {
    if spec.buckets < 4 {
        let key = "relative_attention_num_buckets";
        return Err(keys.wrong(key, "at least 4", &spec.buckets.to_string()));
    }
    if spec.max_distance <= spec.buckets / 2 {
        let expected = format!("above half of the {} buckets", spec.buckets);
        return Err(keys.wrong("relative_attention_max_distance", &expected, &spec.max_distance.to_string()));
    }
    Ok(())
}

/// Writes what the spec makes true.
///
/// transformers 4 scales the head if and only if the embeddings are tied, transformers 5 has a key of its own for it;
/// `tie_word_embeddings = scale_head` makes both compute the same, as long as an unscaled model brings its head.
pub(super) fn write(config: &mut Config, class: &str, spec: &T5Spec) {
    let (feed_forward, act, gated) = match spec.feed_forward {
        FeedForward::Relu => ("relu", "relu", false),
        FeedForward::GatedGelu => ("gated-gelu", "gelu_new", true),
    };
    for (key, value) in [
        ("is_encoder_decoder", json!(true)),
        ("vocab_size", json!(spec.vocab)),
        ("d_model", json!(spec.d_model)),
        ("d_kv", json!(spec.d_kv)),
        ("d_ff", json!(spec.d_ff)),
        ("num_layers", json!(spec.encoder_layers)),
        ("num_decoder_layers", json!(spec.decoder_layers)),
        ("num_heads", json!(spec.heads)),
        ("relative_attention_num_buckets", json!(spec.buckets)),
        ("relative_attention_max_distance", json!(spec.max_distance)),
        ("dropout_rate", shortest(spec.dropout)),
        ("layer_norm_epsilon", shortest(spec.norm_eps)),
        ("feed_forward_proj", json!(feed_forward)),
        ("dense_act_fn", json!(act)),
        ("is_gated_act", json!(gated)),
        ("tie_word_embeddings", json!(spec.scale_head)),
        ("scale_decoder_outputs", json!(spec.scale_head)),
        ("pad_token_id", json!(spec.pad_id)),
        ("eos_token_id", json!(spec.eos_id)),
        ("decoder_start_token_id", json!(spec.start_id)),
    ] {
        config.put(key, value);
    }
    config.class(class);
}

/// The generation_config.json of a model whose source had none.
pub(super) fn generation(spec: &T5Spec) -> Value {
    json!({
        "_from_model_config": true,
        "decoder_start_token_id": spec.start_id,
        "eos_token_id": spec.eos_id,
        "pad_token_id": spec.pad_id,
    })
}
