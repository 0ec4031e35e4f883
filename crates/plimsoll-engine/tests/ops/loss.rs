//! Cross entropy over the vocabulary in chunks of rows, the gradient of its input and of the head.

use plimsoll_engine::cpu::Cores;
use plimsoll_engine::cpu::loss::{Head, loss_backward, loss_forward};
use plimsoll_engine::cpu::weights::{Weights, encode};
use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::Write;
use plimsoll_plan::tiles::{Tiles, matmul_workspace};

use crate::{assert_close, finite_differences, numbers, on_all_cores, unwritten, wide};

struct Case {
    width: usize,
    vocab: usize,
    scale: f32,
    labels: Vec<u32>,
}

impl Case {
    /// Every third label is ignored where `holes` says so.
    fn of(rows: usize, width: usize, vocab: usize, holes: bool) -> Case {
        let label = |i: usize| if holes && i % 3 == 1 { IGNORE } else { (i * 7 % vocab) as u32 };
        Case { width, vocab, scale: 0.7, labels: (0..rows).map(label).collect() }
    }

    fn hidden(&self) -> Vec<f32> {
        numbers(self.labels.len() * self.width, 1).iter().map(|v| v * 3.0).collect()
    }

    fn weight(&self) -> Vec<f32> {
        numbers(self.vocab * self.width, 2)
    }

    fn workspace(&self, cores: Cores, chunk: usize) -> Vec<f32> {
        let tiles = Tiles::of(cores.simd);
        let words = |n, k| matmul_workspace(&tiles, cores.threads, n, k);
        unwritten(words(self.vocab, self.width).max(words(self.width, self.vocab)).max(words(self.width, chunk)))
    }

    /// The loss of each row, and the probabilities less the label: what flows into the logits.
    fn exact(&self, hidden: &[f64], weight: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (width, vocab) = (self.width, self.vocab);
        let (mut losses, mut dlogits) = (Vec::new(), Vec::new());
        for (row, label) in self.labels.iter().enumerate() {
            let logits: Vec<f64> = (0..vocab)
                .map(|v| {
                    f64::from(self.scale)
                        * crate::inner_product(&hidden[row * width..][..width], &weight[v * width..][..width])
                })
                .collect();
            let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total = most + logits.iter().map(|l| (l - most).exp()).sum::<f64>().ln();
            if *label == IGNORE {
                losses.push(0.0);
                dlogits.extend(std::iter::repeat_n(0.0, vocab));
            } else {
                losses.push(total - logits[*label as usize]);
                dlogits.extend(
                    logits
                        .iter()
                        .enumerate()
                        .map(|(v, l)| (l - total).exp() - f64::from(u8::from(v == *label as usize))),
                );
            }
        }
        (losses, dlogits)
    }

    /// Gradients of the hidden states and of the head.
    fn exact_gradients(&self, hidden: &[f64], weight: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (width, vocab, scale) = (self.width, self.vocab, f64::from(self.scale));
        let dlogits = self.exact(hidden, weight).1;
        let (mut dhidden, mut dweight) = (vec![0.0; hidden.len()], vec![0.0; weight.len()]);
        for row in 0..self.labels.len() {
            for v in 0..vocab {
                for c in 0..width {
                    dhidden[row * width + c] += scale * dlogits[row * vocab + v] * weight[v * width + c];
                    dweight[v * width + c] += scale * dlogits[row * vocab + v] * hidden[row * width + c];
                }
            }
        }
        (dhidden, dweight)
    }
}

#[test]
fn losses_and_gradients_are_exact_whatever_the_chunk() {
    on_all_cores(|cores| {
        for (rows, width, vocab, holes) in
            [(1, 5, 3, false), (1, 16, 64, false), (7, 33, 130, true), (26, 12, 97, true), (13, 64, 16, false)]
        {
            let case = Case::of(rows, width, vocab, holes);
            let (hidden, weight) = (case.hidden(), case.weight());
            let exact_losses = case.exact(&wide(&hidden), &wide(&weight)).0;
            let (exact_dhidden, exact_dweight) = case.exact_gradients(&wide(&hidden), &wide(&weight));
            for chunk in [1, 2, 5, rows, 100] {
                let what = format!("{rows} rows, width {width}, vocabulary {vocab}, chunk {chunk}");
                let head = Head { weight: Weights::f32(&weight), width, vocab, scale: case.scale, chunk };
                let mut space = case.workspace(cores, chunk);
                let (mut losses, mut logits) = (unwritten(rows), unwritten(chunk * vocab));
                loss_forward(cores, head, &case.labels, &hidden, &mut losses, &mut logits, &mut space);
                assert_close(&losses, &exact_losses, 2e-6, &what);
                for write in [Write::Set, Write::Add] {
                    let before = if write == Write::Add { numbers(vocab * width, 9) } else { unwritten(vocab * width) };
                    let (mut dhidden, mut grad) = (unwritten(hidden.len()), before.clone());
                    let (mut losses, mut logits) = (unwritten(rows), unwritten(chunk * vocab));
                    let mut space = case.workspace(cores, chunk);
                    loss_backward(
                        cores,
                        head,
                        &case.labels,
                        &hidden,
                        &mut losses,
                        &mut dhidden,
                        Some((&mut grad, write)),
                        &mut logits,
                        &mut space,
                    );
                    let added = |(e, b): (&f64, &f32)| if write == Write::Add { e + f64::from(*b) } else { *e };
                    let expected: Vec<f64> = exact_dweight.iter().zip(&before).map(added).collect();
                    assert_close(&losses, &exact_losses, 2e-6, &what);
                    assert_close(&dhidden, &exact_dhidden, 3e-6, &what);
                    assert_close(&grad, &expected, 5e-6, &what);
                }
            }
        }
    });
}

#[test]
fn the_reference_gradient_is_the_slope_of_the_reference_loss() {
    let case = Case::of(4, 5, 7, true);
    let (hidden, weight) = (wide(&case.hidden()), wide(&case.weight()));
    let (dhidden, dweight) = case.exact_gradients(&hidden, &weight);
    let narrow = |values: &[f64]| values.iter().map(|v| *v as f32).collect::<Vec<f32>>();
    let total = |hidden: &[f64], weight: &[f64]| case.exact(hidden, weight).0.iter().sum::<f64>();
    assert_close(&narrow(&dhidden), &finite_differences(&hidden, |h| total(h, &weight)), 1e-6, "dhidden");
    assert_close(&narrow(&dweight), &finite_differences(&weight, |w| total(&hidden, w)), 1e-6, "dweight");
}

#[test]
fn a_batch_of_ignored_labels_costs_nothing_and_moves_nothing() {
    on_all_cores(|cores| {
        let case = Case { labels: vec![IGNORE; 5], ..Case::of(5, 9, 21, false) };
        let (hidden, weight) = (case.hidden(), case.weight());
        let head = Head { weight: Weights::f32(&weight), width: 9, vocab: 21, scale: 1.0, chunk: 2 };
        let (mut losses, mut dhidden, mut grad) = (unwritten(5), unwritten(45), unwritten(21 * 9));
        let (mut logits, mut space) = (unwritten(2 * 21), case.workspace(cores, 2));
        loss_backward(
            cores,
            head,
            &case.labels,
            &hidden,
            &mut losses,
            &mut dhidden,
            Some((&mut grad, Write::Set)),
            &mut logits,
            &mut space,
        );
        assert!(losses.iter().chain(&dhidden).chain(&grad).all(|v| *v == 0.0));
    });
}

#[test]
fn huge_logits_do_not_overflow() {
    on_all_cores(|cores| {
        let (weight, hidden, labels) = ([1.0, -1.0, 0.5], [300.0, -300.0], [1, 1]);
        let head = Head { weight: Weights::f32(&weight), width: 1, vocab: 3, scale: 1.0, chunk: 2 };
        let (mut losses, mut logits) = (unwritten(2), unwritten(6));
        let case = Case { width: 1, vocab: 3, scale: 1.0, labels: labels.to_vec() };
        loss_forward(cores, head, &labels, &hidden, &mut losses, &mut logits, &mut case.workspace(cores, 2));
        assert_close(&losses, &[600.0, 0.0], 1e-6, "losses");
    });
}

/// Everything that a backward call writes.
struct Written {
    losses: Vec<f32>,
    dhidden: Vec<f32>,
    grad: Vec<f32>,
}

impl Case {
    fn head<'a>(&self, weight: Weights<'a>, chunk: usize) -> Head<'a> {
        Head { weight, width: self.width, vocab: self.vocab, scale: self.scale, chunk }
    }

    fn backward(&self, cores: Cores, head: Head, hidden: &[f32], frozen: bool) -> Written {
        let (rows, width, vocab) = (self.labels.len(), self.width, self.vocab);
        let (mut losses, mut dhidden, mut grad) = (unwritten(rows), unwritten(rows * width), unwritten(vocab * width));
        let into = (!frozen).then_some((&mut grad[..], Write::Set));
        let (mut logits, mut space) = (unwritten(head.chunk * vocab), self.workspace(cores, head.chunk));
        loss_backward(cores, head, &self.labels, hidden, &mut losses, &mut dhidden, into, &mut logits, &mut space);
        Written { losses, dhidden, grad }
    }

    fn forward(&self, cores: Cores, head: Head, hidden: &[f32]) -> Vec<f32> {
        let (mut losses, mut logits) = (unwritten(self.labels.len()), unwritten(head.chunk * self.vocab));
        let mut space = self.workspace(cores, head.chunk);
        loss_forward(cores, head, &self.labels, hidden, &mut losses, &mut logits, &mut space);
        losses
    }
}

/// Labels as a conversation has them: none, then some, and single ones between.
fn conversation(rows: usize, vocab: usize) -> Vec<u32> {
    (0..rows).map(|i| if i % 23 < 11 || i % 7 == 3 { IGNORE } else { (i * 5 % vocab) as u32 }).collect()
}

#[test]
fn rows_between_labels_are_as_if_they_were_not_there() {
    on_all_cores(|cores| {
        for (rows, width, vocab, chunk) in [(120, 24, 70, 8), (120, 24, 70, 64), (61, 40, 9, 4), (50, 5, 33, 1)] {
            let labels = conversation(rows, vocab);
            let case = Case { labels, ..Case::of(rows, width, vocab, false) };
            let (mut hidden, weight) = (case.hidden(), case.weight());
            let labelled: Vec<usize> = (0..rows).filter(|row| case.labels[*row] != IGNORE).collect();
            let dense =
                Case { labels: labelled.iter().map(|r| case.labels[*r]).collect(), ..Case::of(0, width, vocab, false) };
            let dense_hidden: Vec<f32> = labelled.iter().flat_map(|r| hidden[r * width..][..width].to_vec()).collect();
            // What is not read cannot hurt.
            for row in (0..rows).filter(|row| case.labels[*row] == IGNORE) {
                hidden[row * width..][..width].fill(f32::NAN);
            }
            let head = case.head(Weights::f32(&weight), chunk);
            let (got, expected) =
                (case.backward(cores, head, &hidden, false), dense.backward(cores, head, &dense_hidden, false));
            let forward = case.forward(cores, head, &hidden);
            assert_eq!(forward, got.losses);
            assert_close(&got.grad, &wide(&expected.grad), 3e-6, "head");
            let mut nth = 0;
            for row in 0..rows {
                let (loss, dhidden) = (got.losses[row], &got.dhidden[row * width..][..width]);
                if case.labels[row] == IGNORE {
                    assert!(loss == 0.0 && forward[row] == 0.0 && dhidden.iter().all(|d| d.to_bits() == 0), "{row}");
                } else {
                    assert_close(&[loss], &[f64::from(expected.losses[nth])], 1e-6, "loss");
                    assert_close(dhidden, &wide(&expected.dhidden[nth * width..][..width]), 1e-6, "hidden");
                    nth += 1;
                }
            }
        }
    });
}

#[test]
fn a_frozen_head_gets_no_gradient_and_changes_nothing_else() {
    on_all_cores(|cores| {
        let case = Case::of(26, 12, 97, true);
        let (hidden, weight) = (case.hidden(), case.weight());
        let head = case.head(Weights::f32(&weight), 7);
        let (frozen, trained) = (case.backward(cores, head, &hidden, true), case.backward(cores, head, &hidden, false));
        assert_eq!((frozen.losses, frozen.dhidden), (trained.losses, trained.dhidden));
        assert!(frozen.grad.iter().all(|g| g.is_nan()));
    });
}

#[test]
fn a_stored_head_is_the_head_it_decodes_to() {
    on_all_cores(|cores| {
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::Int8, Dtype::Nf4] {
            let case = Case::of(40, 70, 131, true);
            let (hidden, weight) = (case.hidden(), case.weight());
            let mut words = unwritten(dtype.words(weight.len()));
            encode(cores.simd, dtype, weight.len(), 0, &weight, &mut words);
            let stored = Weights::new(&words, dtype, weight.len());
            let mut decoded = unwritten(weight.len());
            stored.decode(cores.simd, 0, &mut decoded);
            for chunk in [3, 30] {
                let (head, plain) = (case.head(stored, chunk), case.head(Weights::f32(&decoded), chunk));
                let (got, expected) =
                    (case.backward(cores, head, &hidden, false), case.backward(cores, plain, &hidden, false));
                assert_eq!(
                    (got.losses, got.dhidden, got.grad),
                    (expected.losses, expected.dhidden, expected.grad),
                    "{dtype:?}"
                );
                assert_eq!(case.forward(cores, head, &hidden), case.forward(cores, plain, &hidden), "{dtype:?}");
                let (mut logits, mut plain_logits) = (unwritten(2 * 131), unwritten(2 * 131));
                head.logits(cores, &hidden, 2, &mut logits, &mut case.workspace(cores, chunk));
                plain.logits(cores, &hidden, 2, &mut plain_logits, &mut case.workspace(cores, chunk));
                assert_eq!(logits, plain_logits, "{dtype:?}");
            }
        }
    });
}
