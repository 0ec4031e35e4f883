//! A base and an adapter made into one model: `W += scale * B A`.
//!
//! Arithmetic is in f32, whatever the base is stored as, and rounds once, when the result is written. Invariant: held
//! at once are one piece of one weight and the factors of one module.

use std::path::Path;

use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::ModelSpec;
use plimsoll_plan::trained::factor_names;

use crate::partial::Existing;
use crate::{AdapterFolder, ModelError, ModelFolder, WeightFiles, save_model};

/// Elements of a row whose sum is kept apart from the weight: PEFT adds the scaled product to it, not term by term.
const COLUMNS: usize = 1024;

/// Writes the merged model as a folder of its own, with the base's config and tokenizer files.
pub fn merge(
    base: &ModelFolder,
    weights: &WeightFiles,
    adapter: &AdapterFolder,
    dir: impl AsRef<Path>,
    dtype: Dtype,
    existing: Existing,
) -> Result<(), ModelError> {
    let spec = base.spec();
    adapter.check(spec)?;
    let mut held: Option<Delta> = None;
    let mut read = |name: &str, first: usize, out: &mut [f32]| {
        weights.fill_part(name, first, out)?;
        if held.as_ref().is_none_or(|delta| delta.name != name) {
            // The last module's factors go before the next one's come.
            held = None;
            held = Delta::of(name, spec, adapter)?;
        }
        if let Some(delta) = &held {
            delta.add(first, out);
        }
        Ok(())
    };
    save_model(dir, base.config(), spec, dtype, &mut read, base.dir(), existing)
}

/// What is added to one weight `[rows, cols]`: `scale * left * right`.
struct Delta {
    name: String,
    rank: usize,
    cols: usize,
    scale: f32,
    /// `[rows, rank]`
    left: Vec<f32>,
    /// `[rank, cols]`
    right: Vec<f32>,
}

impl Delta {
    /// The factors of a weight, if it has any.
    fn of(name: &str, spec: &ModelSpec, adapter: &AdapterFolder) -> Result<Option<Delta>, ModelError> {
        let Some(module) = name.strip_suffix(".weight") else { return Ok(None) };
        let [a_name, b_name] = factor_names(module);
        let files = adapter.weights();
        let Ok(&[rank, inputs]) = files.shape(&a_name).map(|shape| shape.first_chunk().unwrap_or(&[0, 0])) else {
            return Ok(None);
        };
        let outputs = files.shape(&b_name)?[0];
        let mut a = vec![0.0; rank * inputs];
        let mut b = vec![0.0; outputs * rank];
        files.fill(&a_name, &mut a)?;
        files.fill(&b_name, &mut b)?;
        let (name, scale) = (name.to_string(), adapter.lora().scale());
        let in_out = spec.decoder().is_some_and(|d| d.weights_are_in_out());
        Ok(Some(match in_out {
            // W is [in, out]: A^T B^T.
            true => {
                Delta { name, rank, cols: outputs, scale, left: transposed(&a, inputs), right: transposed(&b, rank) }
            }
            false => Delta { name, rank, cols: inputs, scale, left: b, right: a },
        }))
    }

    /// Adds the elements from `first` on.
    fn add(&self, first: usize, out: &mut [f32]) {
        let mut sums = [0.0f32; COLUMNS];
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            let (row, col) = (at / self.cols, at % self.cols);
            let count = rest.len().min(self.cols - col).min(COLUMNS);
            let (now, later) = rest.split_at_mut(count);
            let sums = &mut sums[..count];
            sums.fill(0.0);
            for k in 0..self.rank {
                let factor = self.left[row * self.rank + k];
                let right = &self.right[k * self.cols + col..][..count];
                for (sum, x) in sums.iter_mut().zip(right) {
                    *sum += factor * x;
                }
            }
            for (weight, sum) in now.iter_mut().zip(sums.iter()) {
                *weight += self.scale * sum;
            }
            at += count;
            rest = later;
        }
    }
}

/// A matrix of rows that are `cols` wide, turned.
fn transposed(matrix: &[f32], cols: usize) -> Vec<f32> {
    let rows = matrix.len() / cols;
    (0..matrix.len()).map(|i| matrix[(i % rows) * cols + i / rows]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_into_pieces_adds_the_same() {
        let (rows, cols, rank) = (5, 2 * COLUMNS + 3, 3);
        let numbers = |n: usize| (0..n).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect::<Vec<f32>>();
        let (left, right) = (numbers(rows * rank), numbers(rank * cols));
        let delta = Delta { name: "w".into(), rank, cols, scale: 0.5, left, right };
        let mut whole = vec![1.0; rows * cols];
        delta.add(0, &mut whole);
        let expected: f32 = (0..rank).map(|k| delta.left[4 * rank + k] * delta.right[k * cols + 7]).sum();
        assert_eq!(whole[4 * cols + 7], 1.0 + 0.5 * expected);
        for piece in [1, 1000, cols, cols + 1] {
            let mut parts = vec![1.0; rows * cols];
            for (i, out) in parts.chunks_mut(piece).enumerate() {
                delta.add(i * piece, out);
            }
            assert_eq!(parts, whole, "pieces of {piece}");
        }
    }

    #[test]
    fn a_turned_matrix_has_its_rows_as_columns() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
