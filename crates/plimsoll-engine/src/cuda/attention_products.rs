//! Attention over samples of equal length in f32: products by the matrix library, and kernels between them. Scores of some
//! samples of one head are written out at a time, as many as the plan has scratch for, however many samples there are.
//!
//! The kernels of tiles add in f32 without tensor cores: over 840 steps of 256 samples they took 130 ms of a step of 175 on
//! an H200, which takes 63 with these (`docs/benchmarks.md`).

use plimsoll_plan::op::AttentionShape;
use plimsoll_plan::place::aligned;

use super::attention::Attention;
use super::call::Call;
use super::card::Address;
use super::error::CudaError;
use super::execute::{BLOCK, Run};
use super::lt::{Each, Into, Number, Operand};

const NUMBER: Number = Number::F32;
const BYTES: usize = 4;

/// Rows of one head of some samples: the first one's first number, how long rows are, and whether they are columns.
#[derive(Clone, Copy)]
struct Rows {
    at: Address,
    stride: usize,
    transposed: bool,
}

impl Rows {
    fn turned(self) -> Rows {
        Rows { transposed: !self.transposed, ..self }
    }
}

impl Run<'_> {
    /// One product for each of some samples; `steps` rows are from one to the next.
    fn of_samples(
        &mut self,
        size: (usize, usize, usize),
        [a, b, out]: [Rows; 3],
        alpha: f32,
        (samples, steps): (usize, usize),
    ) -> Result<(), CudaError> {
        let operand = |of: Rows| Operand { at: of.at, stride: of.stride, transposed: of.transposed };
        let into = Into { at: out.at, stride: out.stride, number: NUMBER, alpha, add: false, bias: None };
        let [a_apart, b_apart, out_apart] = [a, b, out].map(|of| steps * of.stride);
        let each = Each { count: samples, a: a_apart, b: b_apart, out: out_apart };
        self.products(NUMBER, size, (operand(a), operand(b), into), each)
    }

    /// Rows of a head of the samples from `first` on.
    fn head_rows(at: Address, stride: usize, shape: &AttentionShape, first: usize, head: usize) -> Rows {
        let at = at + (BYTES * (first * shape.max_queries * stride + head * shape.d_kv)) as u64;
        Rows { at, stride, transposed: false }
    }

    /// Calls `f(first sample, samples, head)` for all of them, `each` samples at a time.
    fn each_head(
        &mut self,
        shape: &AttentionShape,
        each: usize,
        mut f: impl FnMut(&mut Self, usize, usize, usize) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let samples = self.samples();
        for first in (0..samples).step_by(each.max(1)) {
            for head in 0..shape.heads {
                f(self, first, each.min(samples - first), head)?;
            }
        }
        Ok(())
    }

    pub(super) fn attention_by_products(
        &mut self,
        shape: &AttentionShape,
        of: Attention,
        each: usize,
    ) -> Result<(), CudaError> {
        let (steps, d, wide) = (shape.max_queries, shape.d_kv, shape.heads * shape.d_kv);
        let scores = Rows { at: self.scratch(), stride: steps, transposed: false };
        self.each_head(shape, each, |run, first, samples, head| {
            let [q, k, v] =
                [0, 1, 2].map(|nth| Self::head_rows(of.of[nth], of.strides[nth] as usize, shape, first, head));
            let many = (samples, steps);
            run.of_samples((steps, steps, d), [q, k.turned(), scores], shape.scale, many)?;
            let call = Call::new().with(of).at(run.step()).at(scores.at).u32(first).u32(samples).u32(head);
            let (kernel, grid) = ("attention_scores_forward", ((samples * steps).div_ceil(8), 1));
            run.launch(run.kernel("attention_scores", kernel), grid, BLOCK, 0, call)?;
            let out = Self::head_rows(of.out, wide, shape, first, head);
            run.of_samples((steps, d, steps), [scores, v, out], 1.0, many)
        })
    }

    /// `dots` of the arguments lie in the scratch, the scores behind them.
    pub(super) fn attention_backward_by_products(
        &mut self,
        shape: &AttentionShape,
        of: Attention,
        each: usize,
    ) -> Result<(), CudaError> {
        let (steps, d, wide, rows) =
            (shape.max_queries, shape.d_kv, shape.heads * shape.d_kv, self.rows(shape.queries));
        let grid = ((rows * shape.heads).div_ceil(8), 1);
        self.launch(self.kernel("attention", "attention_dots"), grid, BLOCK, 0, Call::new().with(of))?;
        let at = self.scratch() + (BYTES * aligned(rows * shape.heads)) as u64;
        let scores = Rows { at, stride: steps, transposed: false };
        let slopes = Rows { at: at + (BYTES * aligned(each * steps * steps)) as u64, ..scores };
        self.each_head(shape, each, |run, first, samples, head| {
            let rows = |at: [Address; 3], strides: [u32; 3]| {
                [0, 1, 2].map(|nth| Self::head_rows(at[nth], strides[nth] as usize, shape, first, head))
            };
            let ([q, k, v], [dq, dk, dv]) = (rows(of.of, of.strides), rows(of.into, of.into_strides));
            let dout = Self::head_rows(of.dout, wide, shape, first, head);
            let (many, square, narrow) = ((samples, steps), (steps, steps, d), (steps, d, steps));
            run.of_samples(square, [q, k.turned(), scores], shape.scale, many)?;
            run.of_samples(square, [dout, v.turned(), slopes], 1.0, many)?;
            let call =
                Call::new().with(of).at(run.step()).at(scores.at).at(slopes.at).u32(first).u32(samples).u32(head);
            let (kernel, grid) = ("attention_scores_backward", ((samples * steps).div_ceil(8), 1));
            run.launch(run.kernel("attention_scores", kernel), grid, BLOCK, 0, call)?;
            run.of_samples(narrow, [scores.turned(), dout, dv], 1.0, many)?;
            run.of_samples(narrow, [slopes, k, dq], shape.scale, many)?;
            run.of_samples(narrow, [slopes.turned(), q, dk], shape.scale, many)
        })
    }
}
