//! Which descriptions of a `cnn-lstm` are models: every number possible, every part there.
//!
//! Invariant: a spec that passes can be planned and run: no size is zero, no step is pooled away, no sum of sizes overflows, each
//! name is one that a PyTorch module can have. Pure; keys are told as dotted paths (`lstm.hidden`, `conv.2.kernel`).

use std::fmt::Display;

use super::series::{HeadSpec, SeriesAttention, SeriesLoss, SeriesSpec};

/// A key of a description that has a value no model can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key `{key}` must be {expected}, found `{found}`")]
pub struct SpecError {
    /// Where, as a dotted path; places in lists count from 0.
    pub key: String,
    /// What it must be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

/// Channels, states, hidden layers and answers.
const MOST_WIDTH: usize = 1 << 16;
/// Features, or steps, of a window; and learned positions.
const MOST_STEPS: usize = 1 << 20;
/// Numbers of a window: 64 MiB of a sample in f32.
const MOST_INPUTS: usize = 1 << 24;
/// Steps that a convolution looks at.
const MOST_KERNEL: usize = 4095;
/// Blocks of convolutions, layers of an LSTM: each has a number of its own in the random words of dropout.
const MOST_BLOCKS: usize = 64;
/// Hidden layers of a head; the same holds.
const MOST_HIDDEN: usize = 32;
/// Numbers that one sample leaves on its way: 64 GiB in f32, far above any model and far below what overflows.
const MOST_NUMBERS: u128 = 1 << 34;
/// Above this, drawing mixtures as the engine does would seldom succeed (one draw of 70 does at 4).
const MOST_ALPHA: f32 = 4.0;

const NAME: &str = "a name of at most 64 letters, digits and `_` that begins with a letter";
/// Parts that every `cnn-lstm` has.
const PARTS: [&str; 3] = ["cnn_blocks", "lstm", "attention"];
/// What `torch.nn.Module` calls its own: no part of a module can have such a name.
#[rustfmt::skip]
const TAKEN: [&str; 54] = [
    "T_destination", "add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "compile", "cpu", "cuda",
    "double", "dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer", "get_extra_state", "get_parameter",
    "get_submodule", "half", "ipu", "load_state_dict", "modules", "mtia", "named_buffers", "named_children",
    "named_modules", "named_parameters", "parameters", "register_backward_hook", "register_buffer",
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook", "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook",
    "register_module", "register_parameter", "register_state_dict_post_hook", "register_state_dict_pre_hook",
    "requires_grad_", "set_extra_state", "set_submodule", "share_memory", "state_dict", "to", "to_empty",
    "train", "training", "type", "xpu", "zero_grad",
];

fn wrong(key: impl Into<String>, expected: impl Into<String>, found: impl Display) -> SpecError {
    SpecError { key: key.into(), expected: expected.into(), found: found.to_string() }
}

fn size(key: impl Into<String>, found: usize, least: usize, most: usize) -> Result<(), SpecError> {
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(wrong(key, format!("a whole number from {least} to {most}"), found)),
    }
}

fn dropout(key: impl Into<String>, found: f32) -> Result<(), SpecError> {
    share(key, found, "a number from 0 up to, not including, 1", (0.0..1.0).contains(&found))
}

fn share(key: impl Into<String>, found: f32, expected: &str, fits: bool) -> Result<(), SpecError> {
    if fits && found.is_finite() { Ok(()) } else { Err(wrong(key, expected, found)) }
}

impl SeriesSpec {
    /// Says whether this is a model; else which key is wrong, what was expected there and what was found.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_input()?;
        self.check_blocks()?;
        self.check_lstm()?;
        self.check_attention()?;
        self.check_heads()?;
        self.check_loss()?;
        let numbers = self.numbers_of_a_sample();
        if numbers > MOST_NUMBERS {
            let expected = format!("such that a sample leaves at most {MOST_NUMBERS} numbers in the model");
            return Err(wrong("window", expected, format!("{numbers} numbers")));
        }
        Ok(())
    }

    fn check_input(&self) -> Result<(), SpecError> {
        size("features", self.features, 1, MOST_STEPS)?;
        size("window", self.window, 1, MOST_STEPS)?;
        match self.features * self.window {
            inputs if inputs > MOST_INPUTS => {
                let expected = format!("at most {} with {} features", MOST_INPUTS / self.features, self.features);
                Err(wrong("window", expected, self.window))
            }
            _ => Ok(()),
        }
    }

    fn check_blocks(&self) -> Result<(), SpecError> {
        size("pool", self.pool, 1, MOST_STEPS)?;
        dropout("conv_dropout", self.conv_dropout)?;
        if self.conv.len() > MOST_BLOCKS {
            return Err(wrong("conv", format!("at most {MOST_BLOCKS} blocks"), self.conv.len()));
        }
        for (nth, block) in self.conv.iter().enumerate() {
            size(format!("conv.{nth}.channels"), block.channels, 1, MOST_WIDTH)?;
            if block.kernel.is_multiple_of(2) || block.kernel > MOST_KERNEL {
                let expected = format!("an odd number from 1 to {MOST_KERNEL}");
                return Err(wrong(format!("conv.{nth}.kernel"), expected, block.kernel));
            }
        }
        if self.lstm_steps() == 0 {
            let (blocks, steps) = (self.conv.len(), self.at_block(0).1);
            let expected = format!("small enough to leave a step of {steps} behind {blocks} blocks");
            return Err(wrong("pool", expected, self.pool));
        }
        Ok(())
    }

    fn check_lstm(&self) -> Result<(), SpecError> {
        size("lstm.hidden", self.lstm.hidden, 1, MOST_WIDTH)?;
        size("lstm.layers", self.lstm.layers, 1, MOST_BLOCKS)?;
        dropout("lstm.dropout", self.lstm.dropout)?;
        self.lstm.output_dropout.map_or(Ok(()), |p| dropout("lstm.output_dropout", p))
    }

    fn check_attention(&self) -> Result<(), SpecError> {
        match self.attention {
            SeriesAttention::None => Ok(()),
            SeriesAttention::Additive { units } => size("attention.units", units, 1, MOST_WIDTH),
            SeriesAttention::MultiHead { heads, dropout: p, positions, .. } => {
                let width = self.width();
                if heads == 0 || !width.is_multiple_of(heads) {
                    let expected = format!("a divisor of {width}, the width of the LSTM's output");
                    return Err(wrong("attention.heads", expected, heads));
                }
                dropout("attention.dropout", p)?;
                size("attention.positions", positions, 1, MOST_STEPS)
            }
        }
    }

    fn check_heads(&self) -> Result<(), SpecError> {
        let all = [("classes", &self.classes), ("confidence", &self.confidence), ("values", &self.values)];
        let heads: Vec<(&str, &HeadSpec)> = all.iter().filter_map(|(key, head)| Some((*key, head.as_ref()?))).collect();
        for (nth, (key, head)) in heads.iter().enumerate() {
            check_name(&format!("{key}.name"), &head.name)?;
            if let Some((other, _)) = heads[..nth].iter().find(|(_, other)| other.name == head.name) {
                let expected = format!("another name than that of `{other}`");
                return Err(wrong(format!("{key}.name"), expected, &head.name));
            }
            if head.hidden.len() > MOST_HIDDEN {
                let expected = format!("at most {MOST_HIDDEN} layers");
                return Err(wrong(format!("{key}.hidden"), expected, head.hidden.len()));
            }
            for (layer, hidden) in head.hidden.iter().enumerate() {
                size(format!("{key}.hidden.{layer}.width"), hidden.width, 1, MOST_WIDTH)?;
                dropout(format!("{key}.hidden.{layer}.dropout"), hidden.dropout)?;
            }
            let (least, most) = match *key {
                "classes" => (2, MOST_WIDTH),
                "confidence" => (1, 1),
                _ => (1, MOST_WIDTH),
            };
            size(format!("{key}.outputs"), head.outputs, least, most)?;
        }
        match (&self.classes, &self.confidence, &self.values) {
            (None, Some(_), _) => Err(wrong("classes", "given, since `confidence` is of a class", "nothing")),
            (None, None, None) => Err(wrong("classes", "given, or `values`", "nothing")),
            _ => Ok(()),
        }
    }

    fn check_loss(&self) -> Result<(), SpecError> {
        let SeriesLoss { label_smoothing, focal_gamma, class_weights, classes, confidence, values, mixup } = &self.loss;
        dropout("loss.label_smoothing", *label_smoothing)?;
        let counts = "a finite number of 0 or more";
        let factors =
            [("focal_gamma", focal_gamma), ("classes", classes), ("confidence", confidence), ("values", values)];
        for (key, factor) in factors {
            share(format!("loss.{key}"), *factor, counts, *factor >= 0.0)?;
        }
        let known = self.classes.as_ref().map_or(0, |head| head.outputs);
        if !class_weights.is_empty() && class_weights.len() != known {
            let expected = format!("one number for each of {known} classes");
            return Err(wrong("loss.class_weights", expected, class_weights.len()));
        }
        for (nth, weight) in class_weights.iter().enumerate() {
            share(format!("loss.class_weights.{nth}"), *weight, "a finite number above 0", *weight > 0.0)?;
        }
        if let Some(mixup) = mixup {
            let (alpha, probability) = (mixup.alpha, mixup.probability);
            let expected = format!("above 0 and at most {MOST_ALPHA}");
            share("loss.mixup.alpha", alpha, &expected, alpha > 0.0 && alpha <= MOST_ALPHA)?;
            share("loss.mixup.probability", probability, "from 0 to 1", (0.0..=1.0).contains(&probability))?;
        }
        Ok(())
    }

    /// Numbers that a sample leaves on its way through the model, roughly; every size is bounded before.
    fn numbers_of_a_sample(&self) -> u128 {
        let wide = |n: usize| n as u128;
        let block = |nth: usize| {
            let (inputs, steps) = self.at_block(nth);
            wide(steps) * wide(inputs + 3 * self.conv[nth].channels)
        };
        let blocks: u128 = (0..self.conv.len()).map(block).sum();
        let (steps, width) = (wide(self.lstm_steps()), wide(self.width()));
        // Gates, cells and outputs of each layer; then q, k and v, what they become, and units.
        let lstm = wide(self.lstm.layers) * steps * 6 * width;
        let units = if let SeriesAttention::Additive { units } = self.attention { wide(units) } else { 0 };
        blocks + lstm + steps * (8 * width + units)
    }
}

fn check_name(key: &str, name: &str) -> Result<(), SpecError> {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(letter) && name.len() <= 64;
    if !plain {
        return Err(wrong(key, NAME, name));
    }
    if PARTS.contains(&name) || TAKEN.contains(&name) {
        return Err(wrong(key, "a name that is not that of another part of the module", name));
    }
    Ok(())
}
