//! The loss over the vocabulary, some rows at a time, and what its gradient is multiplied into.

use plimsoll_plan::op::{Gradient, Side};
use plimsoll_plan::tape::Id;

use super::call::Call;
use super::card::Address;
use super::error::CudaError;
use super::execute::Run;
use super::kernels::Kernel;
use super::lt::{Into, Number, Operand};
use super::staged::Array;

/// The vocabulary head.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub weight: Id,
    pub logits: Id,
    pub chunk: usize,
    pub width: usize,
    pub vocab: usize,
}

impl Run<'_> {
    /// Cross entropy a chunk of rows at a time; with gradients of the hidden states and, unless frozen, of the head.
    pub(super) fn loss(
        &mut self,
        hidden: Id,
        losses: Id,
        head: Head,
        scale: f32,
        gradients: Option<(Id, Gradient)>,
    ) -> Result<(), CudaError> {
        let Head { weight, logits, chunk, width, vocab } = head;
        let (rows, number, side) = (self.rows(Side::Target), self.act(), Side::Target);
        let weight = self.weight(weight)?;
        if gradients.is_some_and(|(_, grad)| grad.is_some()) {
            self.clear_tails(side, (self.at(hidden), width, width), None)?;
        }
        for first in (0..rows).step_by(chunk) {
            let limit = chunk.min(rows - first);
            let row = |id: Address| id + (first * width * number.bytes()) as u64;
            let a = Operand { at: row(self.at(hidden)), stride: width, transposed: false };
            let b = Operand { at: weight, stride: width, transposed: true };
            let logits = self.at(logits);
            let into = Into { at: logits, stride: vocab, number, alpha: scale, add: false, bias: None };
            self.product(number, (limit, vocab, width), a, b, into)?;
            let call = Call::new().at(logits).at(self.array(Array::Labels)).at(self.at(losses)).u32(vocab).u32(first);
            let call = call.u32(limit).u32(usize::from(gradients.is_some())).at(self.rows_at(side)).at(self.step());
            let kernel = Kernel { wgt: number, ..self.kernel("loss", "loss_forward") };
            self.launch(kernel, (limit, 1), 1024, 0, call)?;
            let Some((dhidden, grad)) = gradients else { continue };
            if let Some((grad, write)) = grad {
                let add = first > 0 || self.adds(write);
                let into =
                    Into { at: self.at(grad), stride: width, number: Number::F32, alpha: scale, add, bias: None };
                let dlogits = Operand { at: logits, stride: vocab, transposed: true };
                self.product(number, (vocab, width, limit), dlogits, a, into)?;
            }
            let dlogits = Operand { at: logits, stride: vocab, transposed: false };
            let b = Operand { at: weight, stride: width, transposed: false };
            let into = Into { at: row(self.at(dhidden)), stride: width, number, alpha: scale, add: false, bias: None };
            self.product(number, (limit, width, vocab), dlogits, b, into)?;
        }
        let kernel = Kernel { wgt: number, ..self.kernel("loss", "loss_total") };
        let call = Call::new().at(self.at(losses)).at(self.rows_at(side)).at(self.step());
        self.launch(kernel, (1, 1), 1024, 0, call)
    }
}
