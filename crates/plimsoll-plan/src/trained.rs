//! Which parameters are trained, which are only read, and how each is stored.
//!
//! Names are Hugging Face's. A pattern is a parameter's name, a module's, or either with `*` for any run of characters:
//! `encoder` and `encoder.*` are the same module, `*.layer_norm` is every such module.

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::spec::{DecoderFamily, Init, ModelSpec, Param, is_running};

/// What is trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainSpec {
    /// Every parameter.
    #[default]
    All,
    /// Every parameter but those that a pattern names.
    Freeze(Vec<String>),
    /// Low-rank factors beside frozen weights (Hu et al. 2021), as PEFT has them.
    Lora(LoraSpec),
}

/// LoRA's numbers; names and meanings are PEFT's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraSpec {
    /// Rank.
    pub r: usize,
    /// Numerator of the scale.
    pub alpha: f32,
    /// Dropout of a factor's input.
    pub dropout: f32,
    /// Scale `alpha / sqrt(r)` instead of `alpha / r` (Kalajdzievski 2023).
    pub rslora: bool,
    /// Last parts of the names of the modules that get factors (`q_proj`), or longer tails of them.
    pub targets: Vec<String>,
}

impl LoraSpec {
    /// What the product of both factors is multiplied by.
    pub fn scale(&self) -> f32 {
        let r = self.r as f32;
        if self.rslora { self.alpha / r.sqrt() } else { self.alpha / r }
    }

    /// Whether a module gets factors.
    pub fn targets(&self, module: &str) -> bool {
        self.targets
            .iter()
            .any(|t| module == t || module.strip_suffix(t.as_str()).is_some_and(|stem| stem.ends_with('.')))
    }
}

/// The modules that PEFT targets where nobody says which.
pub fn default_targets(spec: &ModelSpec) -> Vec<String> {
    let names: &[&str] = match spec {
        ModelSpec::T5(_) => &["q", "v"],
        ModelSpec::Decoder(d) if d.family == DecoderFamily::Gpt2 => &["c_attn"],
        ModelSpec::Decoder(_) | ModelSpec::Series(_) => &["q_proj", "v_proj"],
    };
    names.iter().map(|name| name.to_string()).collect()
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// Matrices that are only read: the file's own dtype, or wider. Vectors are always f32.
    pub frozen: Dtype,
    /// Matrices of blocks that are only read, where they are quantised (the table and the head never are).
    pub quantised: Option<Dtype>,
    /// Matrices that are trained: f32, or bf16 with stochastic rounding.
    pub trained: Dtype,
}

/// A parameter with what becomes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Name, shape, initialisation.
    pub param: Param,
    /// It gets gradients and updates.
    pub trained: bool,
    /// How it is stored.
    pub dtype: Dtype,
    /// It is a factor of LoRA, not part of the model's own files.
    pub adapter: bool,
}

/// Names of both factors of a module.
pub fn factor_names(module: &str) -> [String; 2] {
    [format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight")]
}

/// Every parameter that a run holds: the model's, in its order, then LoRA's factors.
pub fn stored(spec: &ModelSpec, train: &TrainSpec, storage: &Storage) -> Vec<Stored> {
    let frozen = |name: &str| match train {
        TrainSpec::All => false,
        TrainSpec::Freeze(patterns) => patterns.iter().any(|p| matches(p, name)),
        TrainSpec::Lora(_) => true,
    };
    let mut list: Vec<Stored> = spec
        .params()
        .into_iter()
        .map(|param| {
            let unused = spec.series().is_some_and(|spec| spec.is_unused(&param.name));
            let trained = !frozen(&param.name) && !is_running(&param.name) && !unused;
            let dtype = match param.shape.len() {
                // Models of series are small, and their kernels read plain numbers.
                _ if spec.series().is_some() => Dtype::F32,
                1 => Dtype::F32,
                _ if is_small(&param.name) => Dtype::F32,
                _ if trained => storage.trained,
                _ => storage.quantised.filter(|_| is_linear(&param.name)).unwrap_or(storage.frozen),
            };
            Stored { param, trained, dtype, adapter: false }
        })
        .collect();
    if let TrainSpec::Lora(lora) = train {
        let mut factors = Vec::new();
        for held in &list {
            let Some(module) = held.param.name.strip_suffix(".weight").filter(|_| is_linear(&held.param.name)) else {
                continue;
            };
            if !lora.targets(module) {
                continue;
            }
            let in_out = spec.decoder().is_some_and(|d| d.weights_are_in_out());
            let [rows, cols] = held.param.shape[..] else { continue };
            let (inputs, outputs) = if in_out { (rows, cols) } else { (cols, rows) };
            let [a, b] = factor_names(module);
            // torch's `kaiming_uniform_(a = sqrt(5))` is uniform within 1 / sqrt(inputs).
            let first = Init::Uniform((inputs as f32).powf(-0.5));
            for (name, shape, init) in [(a, vec![lora.r, inputs], first), (b, vec![outputs, lora.r], Init::Zeros)] {
                let param = Param { name, shape, init };
                factors.push(Stored { param, trained: true, dtype: Dtype::F32, adapter: true });
            }
        }
        list.extend(factors);
    }
    list
}

/// A matrix of a block that is read by a product: what can be quantised and have factors.
pub fn is_linear(name: &str) -> bool {
    let block = ["model.layers.", "transformer.h.", "encoder.block.", "decoder.block."];
    name.ends_with(".weight")
        && block.iter().any(|stem| name.starts_with(stem))
        && !name.contains("norm")
        && !name.contains(".ln_")
        && !is_small(name)
}

/// Tables that are read element by element and are small: always f32.
pub(crate) fn is_small(name: &str) -> bool {
    name.contains("relative_attention_bias") || name == "transformer.wpe.weight"
}

/// Whether a pattern names a parameter, or a module that it belongs to.
pub fn matches(pattern: &str, name: &str) -> bool {
    let pattern = pattern.strip_suffix(".*").unwrap_or(pattern);
    let ends = name.char_indices().filter(|(_, c)| *c == '.').map(|(at, _)| at).chain([name.len()]);
    ends.into_iter().any(|end| like(pattern.as_bytes(), &name.as_bytes()[..end]))
}

fn like(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|skip| like(rest, &name[skip..])),
        Some((c, rest)) => name.split_first().is_some_and(|(n, more)| n == c && like(rest, more)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::T5Spec;

    #[test]
    fn patterns_name_parameters_and_modules() {
        assert!(matches("encoder.*", "encoder.block.0.layer.0.SelfAttention.q.weight"));
        assert!(matches("encoder", "encoder.final_layer_norm.weight"));
        assert!(!matches("encoder", "encoders.weight"));
        assert!(matches("shared", "shared.weight"));
        assert!(matches("*.layer_norm", "encoder.block.0.layer.0.layer_norm.weight"));
        assert!(!matches("layer_norm", "encoder.block.0.layer.0.layer_norm.weight"));
    }

    #[test]
    fn the_guides_freeze_leaves_the_decoder_to_train() {
        let spec = ModelSpec::T5(T5Spec::small());
        let train = TrainSpec::Freeze(vec!["encoder.*".into(), "shared".into()]);
        let list = stored(&spec, &train, &Storage::default());
        assert!(list.iter().all(|s| s.trained == s.param.name.starts_with("decoder.")));
    }

    #[test]
    fn factors_have_the_shapes_of_their_module() {
        let spec = ModelSpec::T5(T5Spec::small());
        let lora = LoraSpec { r: 8, alpha: 16.0, dropout: 0.0, rslora: false, targets: default_targets(&spec) };
        let list =
            stored(&spec, &TrainSpec::Lora(lora), &Storage { quantised: Some(Dtype::Nf4), ..Storage::default() });
        let factors: Vec<_> = list.iter().filter(|s| s.adapter).collect();
        // q and v of 6 encoder and twice 6 decoder attentions, two factors each.
        assert_eq!(factors.len(), 18 * 2 * 2);
        assert_eq!(factors[0].param.name, "encoder.block.0.layer.0.SelfAttention.q.lora_A.weight");
        assert_eq!(factors[0].param.shape, [8, 512]);
        assert!(list.iter().filter(|s| !s.adapter).all(|s| !s.trained));
        let nf4 = list.iter().filter(|s| s.dtype == Dtype::Nf4).count();
        assert_eq!(nf4, 6 * 6 + 6 * 10);
    }
}
