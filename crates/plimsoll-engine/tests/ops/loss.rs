//! Cross entropy over the vocabulary in chunks of rows, the gradient of its input and of the head.

use plimsoll_engine::cpu::Cores;
use plimsoll_engine::cpu::loss::{Head, loss_backward, loss_forward};
use plimsoll_plan::batch::IGNORE;
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
                let head = Head { weight: &weight, width, vocab, scale: case.scale, chunk };
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
                        &mut grad,
                        write,
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
        let head = Head { weight: &weight, width: 9, vocab: 21, scale: 1.0, chunk: 2 };
        let (mut losses, mut dhidden, mut grad) = (unwritten(5), unwritten(45), unwritten(21 * 9));
        let (mut logits, mut space) = (unwritten(2 * 21), case.workspace(cores, 2));
        loss_backward(
            cores,
            head,
            &case.labels,
            &hidden,
            &mut losses,
            &mut dhidden,
            &mut grad,
            Write::Set,
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
        let head = Head { weight: &weight, width: 1, vocab: 3, scale: 1.0, chunk: 2 };
        let (mut losses, mut logits) = (unwritten(2), unwritten(6));
        let case = Case { width: 1, vocab: 3, scale: 1.0, labels: labels.to_vec() };
        loss_forward(cores, head, &labels, &hidden, &mut losses, &mut logits, &mut case.workspace(cores, 2));
        assert_close(&losses, &[600.0, 0.0], 1e-6, "losses");
    });
}
