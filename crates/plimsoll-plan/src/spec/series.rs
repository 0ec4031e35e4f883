//! Convolutions, then an LSTM, then attention over its steps, then heads: `cnn-lstm`, a model of series.
//!
//! Names are those of PyTorch modules of the same build, so that a file of one loads into the other. Two builds are known
//! by name: [`SeriesSpec::hybrid_v1`] and [`SeriesSpec::hybrid_v2`], the HybridCNNLSTM models of a trading system.

use serde::{Deserialize, Serialize};

use super::{Init, Param};
use crate::series_batch::SeriesShape;

/// What a convolution sees of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputLayout {
    /// One channel: the features of all steps behind each other, `window * features` long.
    Flat,
    /// A channel for each feature, `window` long.
    #[default]
    Channels,
}

/// What is behind a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConvNorm {
    /// Nothing.
    None,
    /// Batch norm: statistics of the micro-batch while training, running ones otherwise.
    #[default]
    Batch,
}

/// The bend of convolutions and heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `max(x, 0)`.
    #[default]
    Relu,
    /// `x` times the normal distribution's share below it (`torch.nn.GELU`, the exact form).
    Gelu,
}

/// One block of convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvBlock {
    /// Channels that it makes.
    pub channels: usize,
    /// Steps that it looks at; odd, so that it makes as many steps as it gets.
    pub kernel: usize,
}

/// The LSTM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LstmSpec {
    /// Width of the state.
    pub hidden: usize,
    /// Layers.
    #[serde(default = "one")]
    pub layers: usize,
    /// A second LSTM from the end of each layer; outputs stand side by side.
    #[serde(default)]
    pub bidirectional: bool,
    /// Dropout between layers.
    #[serde(default)]
    pub dropout: f32,
    /// Layer norm behind the last layer. The LSTM is then a part of a module: its names begin with `lstm.lstm`.
    #[serde(default)]
    pub layer_norm: bool,
    /// Dropout behind that. Where it is given, even as 0, the LSTM is part of a module too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_dropout: Option<f32>,
}

/// How the steps of the LSTM become one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SeriesAttention {
    /// The last step.
    #[default]
    None,
    /// A sum of the steps by `softmax(w2 tanh(w1 x + b1) + b2)`.
    Additive {
        /// Width between the two.
        units: usize,
    },
    /// Self-attention of all steps, added to them; then their mean plus the last one.
    MultiHead {
        /// Heads; they divide the LSTM's width.
        heads: usize,
        /// Dropout of the weights, and of what attention adds.
        #[serde(default)]
        dropout: f32,
        /// Layer norm before it.
        #[serde(default = "yes")]
        layer_norm: bool,
        /// Learned positions, added where there are no more steps than these. Where there are more, the parameter is there
        /// and not used, as in the model that this is of.
        #[serde(default = "usual_positions")]
        positions: usize,
    },
}

/// A hidden layer of a head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadLayer {
    /// Width.
    pub width: usize,
    /// Dropout behind its activation.
    #[serde(default)]
    pub dropout: f32,
}

/// One head: hidden layers, then its outputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadSpec {
    /// Name of its module.
    pub name: String,
    /// Hidden layers.
    #[serde(default)]
    pub hidden: Vec<HeadLayer>,
    /// Numbers that it gives: classes, or values; one for a confidence.
    pub outputs: usize,
}

/// How wrong answers are counted. Each is a mean over samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SeriesLoss {
    /// Share of each label that is spread over all classes.
    pub label_smoothing: f32,
    /// Exponent of `(1 - p)` on the loss of a class that was given probability p (Lin et al. 2017); 0: none.
    pub focal_gamma: f32,
    /// Factor on the loss of each class; empty: 1. The mean is over samples, not over these.
    pub class_weights: Vec<f32>,
    /// Factor on the loss of classes.
    pub classes: f32,
    /// Factor on the squared error of the confidence: 1 where the most likely class was right, else 0.
    pub confidence: f32,
    /// Factor on the smooth absolute error of values (`torch.nn.SmoothL1Loss`).
    pub values: f32,
    /// Mixes samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixup: Option<Mixup>,
}

impl Default for SeriesLoss {
    fn default() -> SeriesLoss {
        SeriesLoss {
            label_smoothing: 0.0,
            focal_gamma: 0.0,
            class_weights: Vec::new(),
            classes: 1.0,
            confidence: 0.5,
            values: 0.3,
            mixup: None,
        }
    }
}

/// Each sample of a micro-batch becomes a mean of itself and another one, and so does its loss (Zhang et al. 2018). One
/// weight for the micro-batch, drawn anew in each; partners are a random number of samples apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixup {
    /// Both parameters of the Beta distribution that the weight is drawn from.
    pub alpha: f32,
    /// Share of micro-batches that are mixed.
    pub probability: f32,
}

/// A `cnn-lstm`, as its TOML states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesSpec {
    /// Numbers of a step.
    pub features: usize,
    /// Steps of a window.
    pub window: usize,
    /// What the first convolution sees.
    #[serde(default)]
    pub layout: InputLayout,
    /// Blocks of convolutions.
    #[serde(default)]
    pub conv: Vec<ConvBlock>,
    /// A block's input is added to its output, through a convolution of one step where channels differ.
    #[serde(default)]
    pub residual: bool,
    /// Norm behind each convolution.
    #[serde(default)]
    pub norm: ConvNorm,
    /// Activation of convolutions and heads.
    #[serde(default)]
    pub activation: Activation,
    /// Dropout of convolutions.
    #[serde(default)]
    pub conv_dropout: f32,
    /// Steps of which the largest is taken; 1: all stay.
    #[serde(default = "two")]
    pub pool: usize,
    /// The LSTM.
    pub lstm: LstmSpec,
    /// From steps to one row.
    #[serde(default)]
    pub attention: SeriesAttention,
    /// Which class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<HeadSpec>,
    /// How sure it is of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<HeadSpec>,
    /// Which values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<HeadSpec>,
    /// The loss.
    #[serde(default)]
    pub loss: SeriesLoss,
}

fn one() -> usize {
    1
}

fn two() -> usize {
    2
}

fn yes() -> bool {
    true
}

fn usual_positions() -> usize {
    256
}

/// Added to the variance by both kinds of norm (PyTorch's default).
pub const SERIES_EPS: f32 = 1e-5;
/// Share of a batch in running statistics (PyTorch's default).
pub const BATCH_MOMENTUM: f32 = 0.1;

impl SeriesSpec {
    /// HybridCNNLSTM: three plain blocks, additive attention.
    pub fn hybrid_v1(features: usize) -> SeriesSpec {
        SeriesSpec::plain(features, [64, 128, 256], 256)
    }

    /// The first build with other widths.
    pub fn plain(features: usize, channels: [usize; 3], hidden: usize) -> SeriesSpec {
        let conv = channels.into_iter().zip([3, 5, 7]).map(|(channels, kernel)| ConvBlock { channels, kernel });
        let head = |name: &str, width: usize, outputs: usize| {
            Some(HeadSpec { name: name.into(), hidden: vec![HeadLayer { width, dropout: 0.3 }], outputs })
        };
        SeriesSpec {
            features,
            window: 60,
            layout: InputLayout::Flat,
            conv: conv.collect(),
            residual: false,
            norm: ConvNorm::Batch,
            activation: Activation::Relu,
            conv_dropout: 0.3,
            pool: 2,
            lstm: LstmSpec {
                hidden,
                layers: 2,
                bidirectional: true,
                dropout: 0.2,
                layer_norm: false,
                output_dropout: None,
            },
            attention: SeriesAttention::Additive { units: 128 },
            classes: head("direction_head", 128, 3),
            confidence: head("confidence_head", 64, 1),
            values: head("return_head", 64, 1),
            loss: SeriesLoss::default(),
        }
    }

    /// HybridCNNLSTM v2: residual blocks, GELU, layer norm, self-attention of four heads.
    pub fn hybrid_v2(features: usize) -> SeriesSpec {
        let head = |name: &str, hidden: &[(usize, f32)], outputs: usize| {
            let hidden = hidden.iter().map(|(width, dropout)| HeadLayer { width: *width, dropout: *dropout }).collect();
            Some(HeadSpec { name: name.into(), hidden, outputs })
        };
        SeriesSpec {
            residual: true,
            activation: Activation::Gelu,
            conv_dropout: 0.4,
            lstm: LstmSpec {
                hidden: 128,
                layers: 2,
                bidirectional: true,
                dropout: 0.3,
                layer_norm: true,
                output_dropout: Some(0.3),
            },
            attention: SeriesAttention::MultiHead { heads: 4, dropout: 0.1, layer_norm: true, positions: 256 },
            classes: head("direction_head", &[(128, 0.4), (64, 0.2)], 3),
            confidence: head("confidence_head", &[(64, 0.4)], 1),
            values: head("return_head", &[(64, 0.4)], 1),
            ..SeriesSpec::plain(features, [32, 64, 128], 128)
        }
    }

    /// A micro-batch of so many samples.
    pub fn batch(&self, samples: usize) -> SeriesShape {
        let values = self.values.as_ref().map_or(0, |head| head.outputs);
        SeriesShape { samples, window: self.window, features: self.features, values }
    }

    /// Channels and steps that block `nth` gets; behind the last one, those of the LSTM.
    pub fn at_block(&self, nth: usize) -> (usize, usize) {
        let (first, steps) = match self.layout {
            InputLayout::Flat => (1, self.window * self.features),
            InputLayout::Channels => (self.features, self.window),
        };
        let channels = nth.checked_sub(1).map_or(first, |before| self.conv[before].channels);
        (channels, (0..nth).fold(steps, |steps, _| steps / self.pool.max(1)))
    }

    /// Steps that the LSTM walks.
    pub fn lstm_steps(&self) -> usize {
        self.at_block(self.conv.len()).1
    }

    /// Directions of the LSTM.
    pub fn directions(&self) -> usize {
        1 + usize::from(self.lstm.bidirectional)
    }

    /// Width of the LSTM's output.
    pub fn width(&self) -> usize {
        self.lstm.hidden * self.directions()
    }

    /// What the names of the LSTM's weights begin with.
    pub fn lstm_stem(&self) -> &'static str {
        if self.lstm.layer_norm || self.lstm.output_dropout.is_some() { "lstm.lstm" } else { "lstm" }
    }

    /// Learned positions, where they are used.
    pub fn positions(&self) -> Option<usize> {
        match self.attention {
            SeriesAttention::MultiHead { positions, .. } => (self.lstm_steps() <= positions).then_some(positions),
            _ => None,
        }
    }

    /// The heads that there are.
    pub fn heads(&self) -> impl Iterator<Item = &HeadSpec> {
        [&self.classes, &self.confidence, &self.values].into_iter().flatten()
    }

    /// A part of the model that no step reads.
    pub fn is_unused(&self, name: &str) -> bool {
        name == POSITIONS && self.positions().is_none()
    }

    /// The result depends on which samples are in a micro-batch together, not only on those of an update.
    pub fn batch_matters(&self) -> bool {
        (self.norm == ConvNorm::Batch && !self.conv.is_empty()) || self.loss.mixup.is_some()
    }

    /// Replaces every dropout probability.
    pub fn set_dropout(&mut self, rate: f32) {
        self.conv_dropout = rate;
        self.lstm.dropout = rate;
        self.lstm.output_dropout.iter_mut().for_each(|p| *p = rate);
        if let SeriesAttention::MultiHead { dropout, .. } = &mut self.attention {
            *dropout = rate;
        }
        let heads = [&mut self.classes, &mut self.confidence, &mut self.values];
        heads.into_iter().flatten().flat_map(|head| &mut head.hidden).for_each(|layer| layer.dropout = rate);
    }
}

/// The parameter of learned positions.
pub const POSITIONS: &str = "attention.pos_embedding";

/// Whether a name is that of a running statistic: part of the model, but not trained.
pub fn is_running(name: &str) -> bool {
    [".running_mean", ".running_var", ".num_batches_tracked"].iter().any(|end| name.ends_with(end))
}

/// Every parameter and running statistic. Those that one product reads together (q, k, v) stand next to each other.
pub fn series_params(spec: &SeriesSpec) -> Vec<Param> {
    let mut list = Vec::new();
    let mut add = |name: String, shape: &[usize], init: Init| list.push(Param { name, shape: shape.to_vec(), init });
    let root = |n: usize| (n as f32).powf(-0.5);
    for (nth, block) in spec.conv.iter().enumerate() {
        let ((inputs, _), stem) = (spec.at_block(nth), format!("cnn_blocks.{nth}"));
        let fan = (2.0 / (block.channels * block.kernel) as f32).sqrt();
        add(format!("{stem}.conv.weight"), &[block.channels, inputs, block.kernel], Init::Normal(fan));
        add(format!("{stem}.conv.bias"), &[block.channels], Init::Zeros);
        if spec.norm == ConvNorm::Batch {
            let norm = format!("{stem}.batch_norm");
            add(format!("{norm}.weight"), &[block.channels], Init::Ones);
            add(format!("{norm}.bias"), &[block.channels], Init::Zeros);
            add(format!("{norm}.running_mean"), &[block.channels], Init::Zeros);
            add(format!("{norm}.running_var"), &[block.channels], Init::Ones);
            add(format!("{norm}.num_batches_tracked"), &[], Init::Zeros);
        }
        if spec.residual && inputs != block.channels {
            let fan = (2.0 / block.channels as f32).sqrt();
            add(format!("{stem}.skip.0.weight"), &[block.channels, inputs, 1], Init::Normal(fan));
            add(format!("{stem}.skip.0.bias"), &[block.channels], Init::Zeros);
        }
    }
    let (hidden, width) = (spec.lstm.hidden, spec.width());
    for layer in 0..spec.lstm.layers {
        let inputs = if layer == 0 { spec.at_block(spec.conv.len()).0 } else { width };
        for direction in &["", "_reverse"][..spec.directions()] {
            let name = |kind: &str| format!("{}.{kind}_l{layer}{direction}", spec.lstm_stem());
            // `torch.nn.LSTM` draws all of them alike.
            let init = Init::Uniform(root(hidden));
            add(name("weight_ih"), &[4 * hidden, inputs], init);
            add(name("weight_hh"), &[4 * hidden, hidden], init);
            add(name("bias_ih"), &[4 * hidden], init);
            add(name("bias_hh"), &[4 * hidden], init);
        }
    }
    let norms = [
        ("lstm.layer_norm", spec.lstm.layer_norm),
        ("attention.layer_norm", matches!(spec.attention, SeriesAttention::MultiHead { layer_norm: true, .. })),
    ];
    for (stem, _) in norms.into_iter().filter(|(_, there)| *there) {
        add(format!("{stem}.weight"), &[width], Init::Ones);
        add(format!("{stem}.bias"), &[width], Init::Zeros);
    }
    if let SeriesAttention::Additive { units } = spec.attention {
        linear(&mut add, "attention.attention.0", units, width);
        linear(&mut add, "attention.attention.2", 1, units);
    }
    if let SeriesAttention::MultiHead { positions, .. } = spec.attention {
        let bound = glorot(width, width);
        for kind in ["q_proj", "k_proj", "v_proj"] {
            add(format!("attention.{kind}.weight"), &[width, width], Init::Uniform(bound));
        }
        for kind in ["q_proj", "k_proj", "v_proj"] {
            add(format!("attention.{kind}.bias"), &[width], Init::Zeros);
        }
        add("attention.out_proj.weight".into(), &[width, width], Init::Uniform(bound));
        add("attention.out_proj.bias".into(), &[width], Init::Zeros);
        add(POSITIONS.into(), &[1, positions, width], Init::Normal(0.02));
    }
    for head in spec.heads() {
        let mut inputs = width;
        for (at, outputs) in head.hidden.iter().map(|layer| layer.width).chain([head.outputs]).enumerate() {
            // An activation and a dropout stand between two of them.
            linear(&mut add, &format!("{}.{}", head.name, 3 * at), outputs, inputs);
            inputs = outputs;
        }
    }
    list
}

/// Glorot's bound.
fn glorot(outputs: usize, inputs: usize) -> f32 {
    (6.0 / (inputs + outputs) as f32).sqrt()
}

/// A linear layer.
fn linear(add: &mut impl FnMut(String, &[usize], Init), stem: &str, outputs: usize, inputs: usize) {
    add(format!("{stem}.weight"), &[outputs, inputs], Init::Uniform(glorot(outputs, inputs)));
    add(format!("{stem}.bias"), &[outputs], Init::Zeros);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(spec: &SeriesSpec) -> usize {
        series_params(spec).iter().filter(|p| !is_running(&p.name)).map(Param::elements).sum()
    }

    #[test]
    fn the_known_builds_have_their_number_of_parameters() {
        assert_eq!(count(&SeriesSpec::hybrid_v1(110)), 3_099_142);
        assert_eq!(count(&SeriesSpec::plain(110, [32, 64, 128], 128)), 827_142);
        assert_eq!(count(&SeriesSpec::hybrid_v2(112)), 1_142_405);
    }

    #[test]
    fn three_poolings_leave_an_eighth_of_the_steps() {
        assert_eq!(SeriesSpec::hybrid_v1(110).lstm_steps(), 825);
        assert_eq!(SeriesSpec::hybrid_v2(112).lstm_steps(), 840);
    }

    #[test]
    fn positions_that_no_step_reads_are_known() {
        let spec = SeriesSpec::hybrid_v2(112);
        assert!(spec.is_unused(POSITIONS) && !spec.is_unused("attention.q_proj.weight"));
        assert!(!SeriesSpec { window: 10, ..spec }.is_unused(POSITIONS));
    }
}
