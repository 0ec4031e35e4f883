//! The peer: transformers, PEFT and PyTorch in one process for many cases.
//!
//! Python is `$PLIMSOLL_PYTHON`, or the workspace's `.venv`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::spec::Param;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::texts::Sample;
use crate::fixture::tensors;

/// Named tensors with their shapes.
pub type Tensors = HashMap<String, (Vec<usize>, Vec<f32>)>;

/// What Python is asked about one model: its weights, and the case as `decoder.py` reads it.
pub struct Question {
    pub name: String,
    pub weights: Vec<(Param, Vec<f32>)>,
    pub case: Value,
}

fn label(label: &u32) -> i64 {
    if *label == IGNORE { -100 } else { i64::from(*label) }
}

pub fn labels(of: &[u32]) -> Vec<i64> {
    of.iter().map(label).collect()
}

/// Samples as texts in rows of their own.
pub fn texts(samples: &[Sample]) -> Value {
    let rows = samples.iter().flatten().map(|t| json!({"tokens": t.tokens, "labels": labels(&t.labels)}));
    Value::Array(rows.collect())
}

/// The answers, in order; or why there are none.
pub fn ask(binary: &str, questions: &[Question]) -> Result<Vec<Tensors>, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os("PLIMSOLL_PYTHON").map_or_else(|| here.join("../../.venv/bin/python"), PathBuf::from);
    if !python.is_file() {
        return Err(format!("no Python at `{}`; scripts/test makes one", python.display()));
    }
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{binary}-{}", std::process::id()));
    let mut cases = Vec::new();
    for question in questions {
        let folder = scratch.join(&question.name);
        fs_err::create_dir_all(&folder).unwrap();
        let bytes: Vec<Vec<u8>> =
            question.weights.iter().map(|(_, v)| v.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
        let views = question.weights.iter().zip(&bytes).map(|((param, _), bytes)| {
            (param.name.as_str(), TensorView::new(Dtype::F32, param.shape.clone(), bytes).unwrap())
        });
        fs_err::write(folder.join("weights.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        let mut case = question.case.clone();
        case["folder"] = folder.display().to_string().into();
        cases.push(case);
    }
    let file = scratch.join("cases.json");
    fs_err::write(&file, Value::Array(cases).to_string()).unwrap();
    let mut command = Command::new(python);
    command.arg(here.join("tests/peer/decoder.py")).arg(&file).env("HF_HUB_OFFLINE", "1");
    let out = command.output().unwrap();
    assert!(out.status.success(), "decoder.py: {}", String::from_utf8_lossy(&out.stderr));
    let answers = questions.iter().map(|q| tensors(&scratch.join(&q.name).join("out.safetensors"))).collect();
    fs_err::remove_dir_all(&scratch).unwrap();
    Ok(answers)
}
