//! The final model, as a folder that transformers loads; of series, one whose weights a PyTorch module of the same build loads.
//!
//! Invariant: the folder appears whole or not at all (`partial.rs`), and holds exactly the parameters of its spec.
//! Tensors are read piece by piece from whoever has them, so that saving needs one small buffer.

use std::path::Path;

use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::{ModelSpec, Param, SeriesSpec};
use serde_json::Value;

use crate::names::{self, HEAD, SHARED};
use crate::normalisation::WriteText;
use crate::partial::{Existing, Partial};
use crate::source::TensorSource;
use crate::write::{Outgoing, write_from};
use crate::{ModelError, config, folder, normalisation};

const GENERATION: &str = "generation_config.json";

/// Writes a model folder: config.json (the raw `config`, with what `spec` makes true), generation_config.json,
/// model.safetensors with exactly the parameters of `spec` as f32 or bf16 (rounded to nearest), and the tokenizer files
/// of the folder `side`. A model of series has none of these, but the normalisation of `side` where there is one.
/// [`crate::Views`] is a source of slices.
pub fn save_model(
    dir: impl AsRef<Path>,
    config: &Value,
    spec: &ModelSpec,
    dtype: Dtype,
    tensors: &mut dyn TensorSource,
    side: impl AsRef<Path>,
    existing: Existing,
) -> Result<(), ModelError> {
    let (dir, side) = (dir.as_ref(), side.as_ref());
    let config = config::to_save(&side.join("config.json"), config, spec, dtype)?;
    if spec.series().is_some() {
        let normalisation = normalisation::read(side)?;
        return save_as(dir, &config, spec, dtype, tensors, existing, |partial| match &normalisation {
            Some(text) => partial.write_text(normalisation::FILE, text),
            None => Ok(()),
        });
    }
    folder::tokenizer_in(side)?;
    save_as(dir, &config, spec, dtype, tensors, existing, |partial| {
        match side.join(GENERATION).is_file() {
            true => partial.copy(&side.join(GENERATION), GENERATION)?,
            false => partial.write_json(GENERATION, &config::generation(spec))?,
        }
        partial.copy_side_files(side)
    })
}

/// Writes the folder of a model of series: config.json, model.safetensors with the names and layouts of PyTorch, and
/// normalisation.json, a JSON text by which its features are normalised, where there is one; it is never held.
pub fn save_series(
    dir: impl AsRef<Path>,
    spec: &SeriesSpec,
    dtype: Dtype,
    tensors: &mut dyn TensorSource,
    normalisation: Option<WriteText<'_>>,
    existing: Existing,
) -> Result<(), ModelError> {
    let (dir, whole) = (dir.as_ref(), ModelSpec::Series(spec.clone()));
    let path = dir.join("config.json");
    let config = config::to_save(&path, &config::series::config_of(spec), &whole, dtype)?;
    save_as(dir, &config, &whole, dtype, tensors, existing, |partial| match normalisation {
        Some(write) => {
            let written = partial.write_pieces(normalisation::FILE, write)?;
            normalisation::check(written, &dir.join(normalisation::FILE))
        }
        None => Ok(()),
    })
}

/// Config, what `beside` writes, and weights.
fn save_as(
    dir: &Path,
    config: &Value,
    spec: &ModelSpec,
    dtype: Dtype,
    tensors: &mut dyn TensorSource,
    existing: Existing,
    beside: impl FnOnce(&Partial) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let partial = Partial::begin(dir, existing)?;
    partial.write_json("config.json", config)?;
    beside(&partial)?;
    let mut file = partial.create("model.safetensors")?;
    write_from(&mut file, dtype, &outgoing(spec), tensors)?;
    file.sync_all()?;
    partial.finish(dir, existing)
}

/// What is written, in the model's order.
///
/// A tied T5 whose head is not scaled is written with its head: transformers 4 knows an unscaled head only as one of
/// its own; transformers 5 sees that both are equal and ties them.
fn outgoing(spec: &ModelSpec) -> Vec<Outgoing> {
    let of = |p: Param| {
        let count = spec.series().is_some() && names::is_count(&p.name);
        Outgoing { from: p.name.clone(), name: p.name, shape: p.shape, count }
    };
    let mut list: Vec<Outgoing> = spec.params().into_iter().map(of).collect();
    if spec.t5().is_some_and(|t5| t5.tied && !t5.scale_head) {
        let shape = vec![spec.vocab(), spec.d_model()];
        list.push(Outgoing { name: HEAD.into(), from: SHARED.into(), shape, count: false });
    }
    list
}
