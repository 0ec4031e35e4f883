//! What outlives a step: weights, gradients where they accumulate, optimizer state.

use std::collections::HashMap;

use crate::dtype::Dtype;
use crate::spec::{ModelSpec, Param, is_running};
use crate::tape::{Id, ParamPlace, Role, Store};
use crate::train::{OptimizerSpec, eight_bit_words};
use crate::trained::{Storage, Stored, TrainSpec, stored};

/// Sizes of the state tensors that an optimizer keeps for one parameter, in its own order.
pub fn optimizer_state(optimizer: &OptimizerSpec, param: &Param) -> Vec<(&'static str, usize)> {
    let n = param.elements();
    match optimizer {
        OptimizerSpec::AdamW { .. } => vec![("exp_avg", n), ("exp_avg_sq", n)],
        OptimizerSpec::AdamW16bit { .. } => vec![("exp_avg", n.div_ceil(2)), ("exp_avg_sq", n.div_ceil(2))],
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

/// The tensor that a parameter shares with its neighbours, and which of two kinds it is: one matrix product reads q, k
/// and v, or k and v of the cross-attention, or both gated inputs at once.
fn group(name: &str) -> Option<(String, &'static str)> {
    let (module, kind) = match (name.strip_suffix(".weight"), name.strip_suffix(".bias")) {
        (Some(module), _) => (module, "weight"),
        (_, Some(module)) => (module, "bias"),
        _ => return None,
    };
    let (stem, last) = module.rsplit_once('.')?;
    let joined = match last {
        "q_proj" | "k_proj" | "v_proj" => "qkv",
        "gate_proj" | "up_proj" => "gate_up",
        "q" | "k" | "v" if stem.ends_with("SelfAttention") => "qkv",
        "k" | "v" if stem.ends_with("EncDecAttention") => "kv",
        "wi_0" | "wi_1" => "wi",
        _ => return None,
    };
    Some((format!("{stem}.{joined}"), kind))
}

/// Groups whose members are alike, weights and biases both, so that one product can read them as one.
fn joinable(list: &[Stored]) -> HashMap<String, bool> {
    let mut seen: HashMap<(String, &str), (bool, Dtype)> = HashMap::new();
    let mut joined: HashMap<String, bool> = HashMap::new();
    for held in list.iter().filter(|held| !held.adapter) {
        let Some((name, kind)) = group(&held.param.name) else { continue };
        let facts = (held.trained, held.dtype);
        let first = *seen.entry((name.clone(), kind)).or_insert(facts);
        // A quantised group may not begin inside of another parameter's.
        *joined.entry(name).or_insert(true) &= first == facts && held.dtype.is_exact();
    }
    joined
}

/// Declares every persistent tensor. With `keep_gradients` each trained tensor has a gradient that lives as long.
pub fn store(
    spec: &ModelSpec,
    train: &TrainSpec,
    storage: &Storage,
    optimizer: Option<&OptimizerSpec>,
    keep_gradients: bool,
) -> Store {
    let list = stored(spec, train, storage);
    let joined = joinable(&list);
    let mut store = Store::default();
    let mut last: Option<(String, Id)> = None;
    let mut elements: Vec<usize> = Vec::new();
    for Stored { param, trained, dtype, adapter } in list {
        let n = param.elements();
        let group = group(&param.name).filter(|(name, _)| !adapter && joined.get(name) == Some(&true));
        let name = group.map(|(name, kind)| format!("{name}.{kind}"));
        let (weight, offset) = match (&name, &last) {
            (Some(name), Some((open, id))) if name == open => {
                let at = id.0 as usize;
                elements[at] += n;
                store.tensors[at].words = dtype.words(elements[at]);
                (*id, elements[at] - n)
            }
            _ => {
                let role = match trained {
                    true => Role::Weight,
                    false if is_running(&param.name) => Role::Running,
                    false => Role::Frozen,
                };
                let id = store.add(name.clone().unwrap_or_else(|| param.name.clone()), dtype.words(n), role);
                store.tensors[id.0 as usize].dtype = dtype;
                elements.push(n);
                (id, 0)
            }
        };
        last = name.map(|name| (name, weight));
        let running = is_running(&param.name);
        store.params.push(ParamPlace { param, weight, offset, trained, adapter, running, state: Vec::new() });
    }
    let weights = store.tensors.len();
    store.gradients = vec![None; weights];
    store.elements = elements;
    if keep_gradients {
        let changes = |w: &usize| matches!(store.tensors[*w].role, Role::Weight | Role::Running);
        for weight in (0..weights).filter(changes).collect::<Vec<_>>() {
            let name = format!("{}.grad", store.tensors[weight].name);
            let words = store.elements[weight];
            store.gradients[weight] = Some(store.add(name, words, Role::Gradient));
        }
    }
    if let Some(optimizer) = optimizer {
        for at in 0..store.params.len() {
            if !store.params[at].trained {
                continue;
            }
            let param = store.params[at].param.clone();
            for (kind, words) in optimizer_state(optimizer, &param) {
                let id = store.add(format!("{}.{kind}", param.name), words, Role::Optimizer);
                store.params[at].state.push(id);
            }
        }
    }
    store
}
