//! The models that the guides speak of, as their `config.json` has them, and which parts a guide freezes.
//!
//! Data alone: parameters, optimizer state, LoRA's weights and logits follow from [`crate::estimate`].

use serde::Deserialize;
use serde_json::Value;

use super::book::{CHATLM, QWEN};
use crate::estimate::{Shape, from_config};

/// A model of a guide.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name.
    pub name: String,
    config: Value,
    /// The parts that the guide's fine-tuning freezes.
    #[serde(default)]
    pub frozen: Vec<String>,
}

impl Model {
    /// Its tensors.
    pub fn shape(&self) -> Shape {
        from_config(&self.config).unwrap_or_else(|wrong| panic!("the embedded config of `{}`: {wrong}", self.name))
    }
}

/// The T5 of guides 001 and 003, with upstream's vocabulary.
pub fn chatlm() -> &'static Model {
    &CHATLM.model
}

/// The model that guide 002's presets are for.
pub fn qwen() -> &'static Model {
    &QWEN.model
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Trainable;

    #[test]
    fn the_embedded_models_have_the_sizes_that_upstream_names() {
        assert_eq!(qwen().shape().params(), 494_032_768);
        assert_eq!(chatlm().shape().params(), 187_692_288);
        assert_eq!(chatlm().shape().trainable(Trainable::Decoder), 94_396_032);
        assert_eq!(chatlm().frozen, ["shared embedding", "encoder"]);
    }
}
