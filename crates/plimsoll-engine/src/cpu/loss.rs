//! Cross entropy over the vocabulary, a chunk of rows at a time, with its gradients; full logits never exist.

use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::op::Write;

use super::Cores;
use super::attention::max;
use super::matmul::{Matrix, Output, matmul};
use crate::math::exp;
use crate::pool::{self, Shared};
use crate::simd::{LANES, fold, leveled};

/// The vocabulary head and how it is applied.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// `[vocab, width]`.
    pub weight: &'a [f32],
    /// Width of the hidden states.
    pub width: usize,
    /// Rows of the head.
    pub vocab: usize,
    /// Factor on the hidden states.
    pub scale: f32,
    /// Rows at a time.
    pub chunk: usize,
}

impl Head<'_> {
    /// `logits[rows, vocab] = scale * hidden weight^T`.
    pub fn logits(&self, cores: Cores, hidden: &[f32], rows: usize, logits: &mut [f32], workspace: &mut [f32]) {
        let Head { weight, width, vocab, .. } = *self;
        assert!(
            weight.len() >= vocab * width && hidden.len() >= rows * width && logits.len() >= rows * vocab,
            "every row has its place"
        );
        let (a, b) = (Matrix::rows(hidden, self.width), Matrix::rows(self.weight, self.width).transposed());
        let out = Output { data: logits.as_mut_ptr(), stride: self.vocab, add: false, scale: self.scale };
        // SAFETY: the slices have these shapes; logits overlap neither operand.
        unsafe { matmul(cores.simd, cores.threads, rows, self.vocab, self.width, a, b, out, workspace) };
    }
}

/// The loss of each row, 0 where the label is ignored.
pub fn loss_forward(
    cores: Cores,
    head: Head,
    labels: &[u32],
    hidden: &[f32],
    losses: &mut [f32],
    logits: &mut [f32],
    workspace: &mut [f32],
) {
    for from in (0..labels.len()).step_by(head.chunk) {
        let rows = head.chunk.min(labels.len() - from);
        head.logits(cores, &hidden[from * head.width..], rows, logits, workspace);
        softmax_chunk(cores, head.vocab, &labels[from..from + rows], logits, &mut losses[from..from + rows], false);
    }
}

/// The loss of each row, the gradient of the hidden states and that of the head.
pub fn loss_backward(
    cores: Cores,
    head: Head,
    labels: &[u32],
    hidden: &[f32],
    losses: &mut [f32],
    dhidden: &mut [f32],
    grad: &mut [f32],
    write: Write,
    logits: &mut [f32],
    workspace: &mut [f32],
) {
    let Head { width, vocab, scale, .. } = head;
    assert!(dhidden.len() >= labels.len() * width && grad.len() >= vocab * width, "every row has its place");
    if labels.is_empty() && write != Write::Add {
        grad.fill(0.0);
    }
    for from in (0..labels.len()).step_by(head.chunk) {
        let rows = head.chunk.min(labels.len() - from);
        let hidden = &hidden[from * width..(from + rows) * width];
        head.logits(cores, hidden, rows, logits, workspace);
        softmax_chunk(cores, vocab, &labels[from..from + rows], logits, &mut losses[from..from + rows], true);
        let dlogits = Matrix::rows(logits, vocab);
        let into = Output { data: dhidden[from * width..].as_mut_ptr(), stride: width, add: false, scale };
        let onto = Output { data: grad.as_mut_ptr(), stride: width, add: from > 0 || write == Write::Add, scale };
        // SAFETY: the slices have these shapes and do not overlap.
        unsafe {
            matmul(
                cores.simd,
                cores.threads,
                rows,
                width,
                vocab,
                dlogits,
                Matrix::rows(head.weight, width),
                into,
                workspace,
            );
            matmul(
                cores.simd,
                cores.threads,
                vocab,
                width,
                rows,
                dlogits.transposed(),
                Matrix::rows(hidden, width),
                onto,
                workspace,
            );
        }
    }
}

fn softmax_chunk(cores: Cores, vocab: usize, labels: &[u32], logits: &mut [f32], losses: &mut [f32], gradient: bool) {
    assert!(logits.len() >= labels.len() * vocab && losses.len() >= labels.len(), "every row has its place");
    let (logits, losses) = (Shared(logits.as_mut_ptr()), Shared(losses.as_mut_ptr()));
    pool::rows(labels.len(), (32 * 1024 / vocab).max(1), |range| {
        for row in range {
            // SAFETY: tasks own disjoint rows.
            let (logits, loss) = unsafe { (logits.slice(row * vocab, vocab), losses.slice(row, 1)) };
            loss[0] = cross_entropy(cores.simd, logits, labels[row], gradient);
        }
    });
}

leveled! {
    /// The loss of one row; with `gradient`, the row becomes its gradient.
    fn cross_entropy(logits: &mut [f32], label: u32, gradient: bool) -> f32 {
        if label == IGNORE {
            logits.fill(0.0);
            return 0.0;
        }
        let most = max(logits);
        let picked = logits[label as usize];
        let mut lanes = [0.0f32; LANES];
        let split = logits.len() / LANES * LANES;
        for chunk in logits[..split].chunks_exact_mut(LANES) {
            for i in 0..LANES {
                chunk[i] = exp(chunk[i] - most);
                lanes[i] += chunk[i];
            }
        }
        for (lane, l) in lanes.iter_mut().zip(&mut logits[split..]) {
            *l = exp(*l - most);
            *lane += *l;
        }
        let sum = fold(lanes);
        if gradient {
            let inverse = 1.0 / sum;
            logits.iter_mut().for_each(|l| *l *= inverse);
            logits[label as usize] -= 1.0;
        }
        sum.ln() + (most - picked)
    }
}
