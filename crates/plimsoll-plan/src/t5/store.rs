//! What outlives a step: weights, gradients where they accumulate, optimizer state.

use crate::op::ParamShape;
use crate::spec::{Param, T5Spec, t5_params};
use crate::tape::{Id, ParamPlace, Role, Store};
use crate::train::{OptimizerSpec, eight_bit_words};

/// A parameter as the optimizers see it.
pub(crate) fn matrix(param: &Param) -> ParamShape {
    match param.shape.as_slice() {
        [rows, cols] => ParamShape { rows: *rows, cols: *cols },
        _ => ParamShape { rows: 1, cols: param.elements() },
    }
}

/// Sizes of the state tensors that an optimizer keeps for one parameter, in its own order.
pub fn optimizer_state(optimizer: &OptimizerSpec, param: &Param) -> Vec<(&'static str, usize)> {
    let n = param.elements();
    match optimizer {
        OptimizerSpec::AdamW { .. } => vec![("exp_avg", n), ("exp_avg_sq", n)],
        OptimizerSpec::AdamW8bit { .. } => {
            vec![("exp_avg", eight_bit_words(n)), ("exp_avg_sq", eight_bit_words(n))]
        }
        OptimizerSpec::Lion { .. } => vec![("exp_avg", n)],
        OptimizerSpec::Sgd { momentum, .. } => {
            if *momentum == 0.0 {
                vec![]
            } else {
                vec![("momentum_buffer", n)]
            }
        }
        OptimizerSpec::Adafactor { beta1, .. } => {
            let mut state = match param.shape.as_slice() {
                [rows, cols] => vec![("exp_avg_sq_row", *rows), ("exp_avg_sq_col", *cols)],
                _ => vec![("exp_avg_sq", n)],
            };
            if beta1.is_some() {
                state.push(("exp_avg", n));
            }
            state
        }
    }
}

/// Which tensor a parameter shares with its neighbours: one matrix product reads q, k and v, or k and v of the
/// cross-attention, or both gated inputs at once.
fn group(name: &str) -> Option<String> {
    let swap = |from: &str, to: &str| name.strip_suffix(from).map(|stem| format!("{stem}{to}"));
    if name.contains("SelfAttention") {
        for part in [".q.weight", ".k.weight", ".v.weight"] {
            if let Some(joined) = swap(part, ".qkv") {
                return Some(joined);
            }
        }
    }
    if name.contains("EncDecAttention") {
        for part in [".k.weight", ".v.weight"] {
            if let Some(joined) = swap(part, ".kv") {
                return Some(joined);
            }
        }
    }
    swap(".wi_0.weight", ".wi").or_else(|| swap(".wi_1.weight", ".wi"))
}

/// Declares every persistent tensor. With `keep_gradients` each weight tensor has a gradient that lives as long.
pub fn store(spec: &T5Spec, optimizer: Option<&OptimizerSpec>, keep_gradients: bool) -> Store {
    let mut store = Store::default();
    let mut last: Option<(String, Id)> = None;
    for param in t5_params(spec) {
        let words = param.elements();
        let joined = group(&param.name);
        let (weight, offset) = match (&joined, &last) {
            (Some(name), Some((open, id))) if name == open => {
                let tensor = &mut store.tensors[id.0 as usize];
                tensor.words += words;
                (*id, tensor.words - words)
            }
            _ => (store.add(joined.clone().unwrap_or_else(|| param.name.clone()), words, Role::Weight), 0),
        };
        last = joined.map(|name| (name, weight));
        store.params.push(ParamPlace { param, weight, offset, state: Vec::new() });
    }
    let weights = store.tensors.len();
    store.gradients = vec![None; weights];
    if keep_gradients {
        for weight in 0..weights {
            let name = format!("{}.grad", store.tensors[weight].name);
            let words = store.tensors[weight].words;
            store.gradients[weight] = Some(store.add(name, words, Role::Gradient));
        }
    }
    if let Some(optimizer) = optimizer {
        for at in 0..store.params.len() {
            let param = store.params[at].param.clone();
            for (kind, words) in optimizer_state(optimizer, &param) {
                let id = store.add(format!("{}.{kind}", param.name), words, Role::Optimizer);
                store.params[at].state.push(id);
            }
        }
    }
    store
}
