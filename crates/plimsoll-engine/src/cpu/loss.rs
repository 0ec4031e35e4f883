//! Cross entropy over the vocabulary, a chunk of rows at a time, with its gradients; full logits never exist.
//!
//! Rows without a label cost nothing: a chunk holds only rows that have one. Where other rows lie between them they are
//! put side by side, in memory that is free at that time: the rows' own place among the gradients, or behind the logits.

use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::op::Write;

use super::Cores;
use super::attention::max;
use super::matmul::{Matrix, Output, Right, matmul};
use super::weights::Weights;
use crate::math::exp;
use crate::pool::{self, Shared};
use crate::simd::{LANES, fold, leveled};

/// The vocabulary head and how it is applied.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// `[vocab, width]`.
    pub weight: Weights<'a>,
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
        let Head { weight, width, vocab, scale, .. } = *self;
        assert!(
            weight.elements() >= vocab * width && hidden.len() >= rows * width && logits.len() >= rows * vocab,
            "every row has its place"
        );
        let (a, b) = (Matrix::rows(hidden, width), Right::weights(weight, 0, width).transposed());
        let out = Output { scale, ..Output::rows(logits.as_mut_ptr(), vocab) };
        // SAFETY: the slices have these shapes; logits overlap neither operand.
        unsafe { matmul(cores.simd, cores.threads, rows, vocab, width, a, b, out, workspace) };
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
    let Head { width, vocab, chunk, .. } = head;
    assert!(chunk > 0 && logits.len() >= chunk * vocab, "every row has its place");
    let mut done = 0;
    while let Some(span) = Span::next(labels, done, &head) {
        losses[done..span.from].fill(0.0);
        let (labels, losses) = (&labels[span.from..span.end], &mut losses[span.from..span.end]);
        let (logits, side) = logits.split_at_mut(span.count * vocab);
        let rows = if span.whole() {
            &hidden[span.from * width..span.end * width]
        } else {
            gather(labels, width, &hidden[span.from * width..span.end * width], side);
            &side[..span.count * width]
        };
        head.logits(cores, rows, span.count, logits, workspace);
        span_losses(cores, vocab, labels, logits, losses, false);
        done = span.end;
    }
    losses[done..labels.len()].fill(0.0);
}

/// The loss of each row, the gradient of the hidden states (0 where the label is ignored) and that of the head, unless it
/// is frozen.
pub fn loss_backward(
    cores: Cores,
    head: Head,
    labels: &[u32],
    hidden: &[f32],
    losses: &mut [f32],
    dhidden: &mut [f32],
    mut grad: Option<(&mut [f32], Write)>,
    logits: &mut [f32],
    workspace: &mut [f32],
) {
    let Head { weight, width, vocab, scale, chunk } = head;
    let Cores { simd, threads } = cores;
    assert!(chunk > 0, "a chunk has rows");
    assert!(dhidden.len() >= labels.len() * width && hidden.len() >= labels.len() * width, "every row has its place");
    assert!(grad.as_ref().is_none_or(|(grad, _)| grad.len() >= vocab * width), "the head's gradient is a head");
    let mut done = 0;
    while let Some(span) = Span::next(labels, done, &head) {
        losses[done..span.from].fill(0.0);
        dhidden[done * width..span.from * width].fill(0.0);
        let (labels, losses) = (&labels[span.from..span.end], &mut losses[span.from..span.end]);
        let hidden = &hidden[span.from * width..span.end * width];
        let dhidden = &mut dhidden[span.from * width..span.end * width];
        // Side by side, the rows lie in the first of their gradients' places until these are computed.
        let rows = if span.whole() {
            Matrix::rows(hidden, width)
        } else {
            gather(labels, width, hidden, dhidden);
            Matrix::rows(dhidden, width)
        };
        // SAFETY: `count` rows, of the hidden states or among their gradients, which nobody writes now.
        let side = unsafe { std::slice::from_raw_parts(rows.data, span.count * width) };
        head.logits(cores, side, span.count, logits, workspace);
        span_losses(cores, vocab, labels, logits, losses, true);
        let dlogits = Matrix::rows(logits, vocab);
        if let Some((grad, write)) = &mut grad {
            let onto = Output { add: *write == Write::Add, scale, ..Output::rows(grad.as_mut_ptr(), width) };
            // SAFETY: the slices have these shapes and do not overlap.
            unsafe { matmul(simd, threads, vocab, width, span.count, dlogits.transposed(), rows, onto, workspace) };
            *write = Write::Add;
        }
        let into = Output { scale, ..Output::rows(dhidden.as_mut_ptr(), width) };
        let b = Right::weights(weight, 0, width);
        // SAFETY: the slices have these shapes; the rows that may lie where the product goes are no longer needed.
        unsafe { matmul(simd, threads, span.count, width, vocab, dlogits, b, into, workspace) };
        scatter(labels, width, dhidden);
        done = span.end;
    }
    losses[done..labels.len()].fill(0.0);
    dhidden[done * width..labels.len() * width].fill(0.0);
    if let Some((grad, write)) = grad
        && write != Write::Add
    {
        grad.fill(0.0);
    }
}

/// A stretch of rows that begins and ends with one that has a label.
#[derive(Clone, Copy)]
struct Span {
    from: usize,
    end: usize,
    /// Rows with a label.
    count: usize,
}

impl Span {
    /// The rows of the next chunk; none where no label is left. Forward and backward cut alike, so that they take the
    /// same losses.
    fn next(labels: &[u32], done: usize, head: &Head) -> Option<Span> {
        let Head { width, vocab, chunk, .. } = *head;
        let span = Span::of(labels, done, chunk)?;
        // Rows that are put side by side may lie behind their logits, so they are a few less.
        let beside = (chunk * vocab / (vocab + width)).max(1);
        if span.whole() || span.count <= beside { Some(span) } else { Span::of(labels, done, beside) }
    }

    /// The next rows, `most` of them with a label.
    fn of(labels: &[u32], done: usize, most: usize) -> Option<Span> {
        let mut span: Option<Span> = None;
        for (row, _) in labels.iter().enumerate().skip(done).filter(|(_, label)| **label != IGNORE).take(most) {
            let (from, count) = span.map_or((row, 0), |s| (s.from, s.count));
            span = Some(Span { from, end: row + 1, count: count + 1 });
        }
        span
    }

    /// Every row has a label.
    fn whole(&self) -> bool {
        self.count == self.end - self.from
    }
}

/// Puts the rows that have a label side by side.
fn gather(labels: &[u32], width: usize, from: &[f32], into: &mut [f32]) {
    let labelled = from.chunks_exact(width).zip(labels).filter(|(_, label)| **label != IGNORE);
    labelled.zip(into.chunks_exact_mut(width)).for_each(|((from, _), into)| into.copy_from_slice(from));
}

/// Brings rows that lie side by side at the beginning to their own places, the last first; the others become zero.
fn scatter(labels: &[u32], width: usize, rows: &mut [f32]) {
    let mut left = labels.iter().filter(|label| **label != IGNORE).count();
    for (row, label) in labels.iter().enumerate().rev() {
        if *label == IGNORE {
            rows[row * width..(row + 1) * width].fill(0.0);
        } else {
            left -= 1;
            if left == row {
                // All before it have a label as well, and are where they belong.
                return;
            }
            rows.copy_within(left * width..(left + 1) * width, row * width);
        }
    }
}

/// The loss of each row of a span, from the logits of those that have a label.
fn span_losses(cores: Cores, vocab: usize, labels: &[u32], logits: &mut [f32], losses: &mut [f32], gradient: bool) {
    // The labels wait side by side where the losses will be.
    let labelled = labels.iter().filter(|label| **label != IGNORE);
    let count = labelled.zip(losses.iter_mut()).map(|(label, loss)| *loss = f32::from_bits(*label)).count();
    softmax_chunk(cores, vocab, count, logits, losses, gradient);
    scatter(labels, 1, losses);
}

/// Turns the bits of each row's label into its loss.
fn softmax_chunk(cores: Cores, vocab: usize, rows: usize, logits: &mut [f32], losses: &mut [f32], gradient: bool) {
    assert!(logits.len() >= rows * vocab && losses.len() >= rows, "every row has its place");
    let (logits, losses) = (Shared(logits.as_mut_ptr()), Shared(losses.as_mut_ptr()));
    pool::rows(rows, (32 * 1024 / vocab).max(1), |range| {
        for row in range {
            // SAFETY: tasks own disjoint rows.
            let (logits, loss) = unsafe { (logits.slice(row * vocab, vocab), losses.slice(row, 1)) };
            loss[0] = cross_entropy(cores.simd, logits, loss[0].to_bits(), gradient);
        }
    });
}

leveled! {
    /// The loss of one row; with `gradient`, the row becomes its gradient.
    fn cross_entropy(logits: &mut [f32], label: u32, gradient: bool) -> f32 {
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
