//! The tapes of training a `cnn-lstm`: a micro-batch's forward and backward pass, and evaluation.

use super::attention::{PooledKept, Pooling};
use super::conv::{Block, ConvKept};
use super::heads::{Head, HeadKept};
use super::recurrent::{LstmKept, Recurrent};
use crate::choices::Choices;
use crate::layer::{Backward, Pass, Sweep};
use crate::op::{Answer, LSTM_BLOCK, Op, SeriesOp};
use crate::program::TapeJob;
use crate::spec::{SERIES_EPS, SeriesSpec};
use crate::tape::{Id, Tape};

/// What the forward pass left.
struct Forward {
    blocks: Vec<ConvKept>,
    lstm: LstmKept,
    pooled: PooledKept,
    heads: [Option<HeadKept>; 3],
    answers: [Option<Answer>; 3],
}

fn pass<'a>(spec: &SeriesSpec, job: &TapeJob<'a>, train: bool) -> Pass<'a> {
    Pass::new(job.store, job.train, job.shape, (spec.width(), SERIES_EPS), train)
}

/// Classes, confidence, values.
fn heads(spec: &SeriesSpec) -> [Option<Head<'_>>; 3] {
    let [classes, confidence, values] = [&spec.classes, &spec.confidence, &spec.values];
    let head = |nth: u32, head| Head { spec, head, nth };
    [classes.as_ref().map(|h| head(0, h)), confidence.as_ref().map(|h| head(1, h)), values.as_ref().map(|h| head(2, h))]
}

fn forward(spec: &SeriesSpec, pass: &mut Pass, choices: &Choices) -> Forward {
    let width = spec.window * spec.features;
    let mut x = pass.activation("inputs", pass.shape.samples * width);
    let mixup = spec.loss.mixup.filter(|_| pass.trains());
    pass.tape.push(Op::Series(SeriesOp::Input { out: x, width, mixup }));
    let mut blocks = Vec::new();
    for nth in 0..spec.conv.len() {
        let (kept, out) = Block::new(spec, nth).forward(pass, x, nth < choices.recompute);
        blocks.push(kept);
        x = out;
    }
    let (lstm, out) = recurrent(spec, choices).forward(pass, x);
    let (pooled, row) = Pooling { spec }.forward(pass, out);
    let mut answers = [None; 3];
    let mut at = 0;
    let heads = heads(spec).map(|head| {
        let made = head.map(|head| head.forward(pass, row));
        answers[at] = made.as_ref().map(|(_, answer)| *answer);
        at += 1;
        made.map(|(kept, _)| kept)
    });
    Forward { blocks, lstm, pooled, heads, answers }
}

fn recurrent<'a>(spec: &'a SeriesSpec, choices: &Choices) -> Recurrent<'a> {
    Recurrent { spec, every: choices.lstm_every }
}

fn loss(spec: &SeriesSpec, pass: &mut Pass, answers: [Option<Answer>; 3]) {
    let losses = pass.activation("losses", pass.shape.samples);
    let [classes, confidence, values] = answers;
    pass.tape.push(Op::Series(SeriesOp::Loss { classes, confidence, values, losses, terms: spec.loss.clone() }));
}

/// Forward and backward of one micro-batch. Gradients are kept: they are as small as the model.
pub(crate) fn micro_tape(spec: &SeriesSpec, job: &TapeJob, choices: &Choices) -> Tape {
    assert!(!choices.optimizer_in_backward && job.parts == 1, "gradients of series are kept");
    let mut back = Backward::new(pass(spec, job, true), Sweep::Both);
    let Forward { blocks, lstm, pooled, heads: kept, answers } = forward(spec, &mut back.pass, choices);
    let answers = answers.map(|answer| {
        answer.map(|answer| {
            let grad = back.pass.activation("danswers", back.pass.shape.samples * answer.outputs);
            Answer { grad: Some(grad), ..answer }
        })
    });
    loss(spec, &mut back.pass, answers);
    let mut row: Option<Id> = None;
    for ((head, kept), answer) in heads(spec).into_iter().zip(kept).zip(answers) {
        let (Some(head), Some(kept), Some(grad)) = (head, kept, answer.and_then(|a| a.grad)) else { continue };
        row = Some(head.backward(&mut back, &kept, grad, row));
    }
    let row = row.expect("a model has a head");
    let g = Pooling { spec }.backward(&mut back, &pooled, row);
    let mut g = recurrent(spec, choices).backward(&mut back, &lstm, g);
    for (nth, kept) in blocks.iter().enumerate().rev() {
        g = Block::new(spec, nth).backward(&mut back, kept, g);
    }
    back.finish()
}

/// Forward pass and loss, without dropout and mixing, by running statistics.
pub(crate) fn eval_tape(spec: &SeriesSpec, job: &TapeJob) -> Tape {
    let mut pass = pass(spec, job, false);
    // Without a backward pass nothing is kept; short stretches of the LSTM need least on the way.
    let choices = Choices { lstm_every: LSTM_BLOCK, ..Choices::plain(job.shape.samples) };
    let Forward { answers, .. } = forward(spec, &mut pass, &choices);
    loss(spec, &mut pass, answers);
    pass.tape
}
