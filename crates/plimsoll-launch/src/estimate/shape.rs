//! A model as a list of tensors: from it follow parameters, the largest layer, what LoRA adds and what Adafactor keeps.
//!
//! Invariant: no count is written down anywhere else; `params` is always the sum of the list. It knows nothing of
//! batches.

use plimsoll_machine::Bytes;
use serde::Serialize;

use super::EstimateError;
use super::cnn_lstm::CnnLstm;
use super::layout;

/// Which formulas a model's activations follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// GPT-2: learned positions, layer norms, one product for q, k, v.
    Gpt2,
    /// BERT and RoBERTa with a masked language head.
    Bert,
    /// T5 with a plain feed-forward part.
    T5,
    /// T5 1.1 and mT5: gated.
    GatedT5,
    /// Llama, Mistral, Qwen2: RMS norms, rotary positions, gated.
    Llama,
    /// Qwen3: norms on q and k too.
    Qwen3,
    /// HybridCNNLSTM.
    CnnLstm(CnnLstm),
    /// VITS as Piper trains it.
    Vits,
}

/// Which part of an encoder-decoder a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Embeddings and heads.
    Shared,
    /// The encoder.
    Encoder,
    /// The decoder; all layers of a model with one stack.
    Decoder,
}

/// Tensors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tensor {
    /// The module that holds it, `q` or `embedding`; tensors of one module stand together.
    pub module: &'static str,
    /// Its dimensions: outputs, inputs.
    pub dims: Vec<u64>,
    /// How many there are.
    pub times: u64,
    /// Where.
    pub side: Side,
}

impl Tensor {
    /// Elements of one of them.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Elements of all of them.
    pub fn total(&self) -> u64 {
        self.elements() * self.times
    }
}

/// The numbers of a transformer. All zero where the family is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dims {
    /// Layers of the encoder.
    pub encoder_layers: u64,
    /// Layers of the decoder, or of the only stack.
    pub decoder_layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Heads of k and v.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Width of the feed-forward part.
    pub ffn: u64,
    /// Tokens of the vocabulary.
    pub vocab: u64,
    /// Whether the head is the embedding.
    pub tied: bool,
}

/// A model without a config, described by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByHand {
    /// All parameters, where known; what the dims do not explain is carried as `rest`.
    pub params: Option<u64>,
    /// Its numbers.
    pub dims: Dims,
    /// Whether the feed-forward part has three matrices.
    pub gated: bool,
}

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trainable {
    /// Every parameter.
    All,
    /// The decoder alone: embedding and encoder are frozen.
    Decoder,
    /// Matrices of LoRA, on so many kinds of modules.
    Lora {
        /// Their rank.
        rank: u64,
        /// 2: q and v; 4: q, k, v, o; 7: gate, up, down too.
        modules: u64,
    },
}

/// A model's tensors and numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Which formulas hold.
    pub family: Family,
    /// Its numbers.
    pub dims: Dims,
    /// Its parameters.
    pub tensors: Vec<Tensor>,
}

/// What LoRA may adapt, in the order in which people add to it.
const ADAPTED: [&str; 7] = ["q", "k", "v", "o", "gate", "up", "down"];

impl Shape {
    /// A transformer described by hand.
    pub fn by_hand(hand: ByHand) -> Result<Shape, EstimateError> {
        let dims = hand.dims;
        let two_stacks = dims.encoder_layers > 0 && dims.decoder_layers > 0;
        let (family, mut tensors) = match (two_stacks, hand.gated) {
            (true, false) => (Family::T5, layout::t5(&dims, false, 32)),
            (true, true) => (Family::GatedT5, layout::t5(&dims, true, 32)),
            (false, true) => (Family::Llama, layout::llama(&dims, layout::Biases::None, false)),
            (false, false) => (Family::Gpt2, layout::gpt2(&dims, 0)),
        };
        let computed: u64 = tensors.iter().map(Tensor::total).sum();
        if let Some(given) = hand.params {
            let rest = given.checked_sub(computed).ok_or(EstimateError::TooFewParams { given, computed })?;
            if rest > 0 {
                tensors.push(Tensor { module: "rest", dims: vec![rest], times: 1, side: Side::Shared });
            }
        }
        Ok(Shape { family, dims, tensors })
    }

    /// All parameters.
    pub fn params(&self) -> u64 {
        self.tensors.iter().map(Tensor::total).sum()
    }

    /// Parameters that are trained.
    pub fn trainable(&self, trainable: Trainable) -> u64 {
        match trainable {
            Trainable::All => self.params(),
            Trainable::Decoder => self.side(Side::Decoder),
            Trainable::Lora { rank, modules } => self.lora(rank, modules),
        }
    }

    /// Parameters of one side.
    pub fn side(&self, side: Side) -> u64 {
        self.tensors.iter().filter(|tensor| tensor.side == side).map(Tensor::total).sum()
    }

    /// Parameters that LoRA adds: `rank` times inputs and outputs of each adapted matrix.
    pub fn lora(&self, rank: u64, modules: u64) -> u64 {
        let kinds: Vec<&str> = match modules {
            2 => vec!["q", "v"],
            n => ADAPTED.iter().take(n.min(7) as usize).copied().collect(),
        };
        let adapted = |module: &str| match module {
            "qkv" => modules > 0,
            "cross_q" | "cross_k" | "cross_v" | "cross_o" => kinds.contains(&&module[6..]),
            module => kinds.contains(&module),
        };
        let matrices = self.tensors.iter().filter(|tensor| tensor.dims.len() == 2 && adapted(tensor.module));
        matrices.map(|tensor| rank * tensor.dims.iter().sum::<u64>() * tensor.times).sum()
    }

    /// Parameters of the module that has most: what ZeRO-3 gathers at once.
    pub fn largest_layer(&self) -> u64 {
        let mut largest = 0;
        let mut at = 0;
        while at < self.tensors.len() {
            let first = &self.tensors[at];
            let same = |tensor: &&Tensor| tensor.module == first.module && tensor.side == first.side;
            let run: Vec<&Tensor> = self.tensors[at..].iter().take_while(same).collect();
            largest = largest.max(run.iter().map(|tensor| tensor.elements()).sum());
            at += run.len();
        }
        largest
    }

    /// Elements of matrices that products read: what autocast casts.
    pub fn matrices(&self) -> u64 {
        let matrices = self.tensors.iter().filter(|t| t.dims.len() > 1 && !t.module.ends_with("embedding"));
        matrices.map(Tensor::total).sum()
    }

    /// Floats of Adafactor's factored second moment, without a first: rows and columns of a matrix, all of a vector.
    pub fn factored(&self, trainable: Trainable) -> u64 {
        if let Trainable::Lora { .. } = trainable {
            // A of r x in, B of out x r: their rows and columns are counted by the adapters' own sums plus the ranks.
            return self.lora_factored(trainable);
        }
        let kept = self.tensors.iter().filter(|t| trainable == Trainable::All || t.side == Side::Decoder);
        kept.map(|tensor| tensor.times * factored(&tensor.dims)).sum()
    }

    fn lora_factored(&self, trainable: Trainable) -> u64 {
        let Trainable::Lora { rank, modules } = trainable else { return 0 };
        // For each pair: (r + in) + (out + r); `lora` of rank 1 is the sum of in and out.
        let pairs = self.lora_pairs(modules);
        self.lora(1, modules) + 2 * rank * pairs
    }

    /// How many matrices LoRA adapts.
    pub fn lora_pairs(&self, modules: u64) -> u64 {
        let alone = |tensor: &Tensor| Shape { tensors: vec![tensor.clone()], ..self.bare() }.lora(1, modules) > 0;
        self.tensors.iter().filter(|tensor| alone(tensor)).map(|tensor| tensor.times).sum()
    }

    fn bare(&self) -> Shape {
        Shape { family: self.family, dims: self.dims, tensors: Vec::new() }
    }

    /// Bytes of all weights at so many a weight.
    pub fn bytes(&self, each: u64) -> Bytes {
        Bytes(self.params().saturating_mul(each))
    }
}

fn factored(dims: &[u64]) -> u64 {
    match dims {
        [rows, columns] => rows + columns,
        // Factored over the last two dimensions, for each of the others.
        [outer @ .., rows, columns] => outer.iter().product::<u64>() * (rows + columns),
        dims => dims.iter().product(),
    }
}
