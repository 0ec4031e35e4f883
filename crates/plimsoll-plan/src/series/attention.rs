//! From the LSTM's steps to one row a sample.

use super::places;
use crate::layer::{Backward, Normed, Pass, Projected, Projection};
use crate::op::{AttentionShape, Cols, Op, Place, SeriesOp, Side};
use crate::spec::{POSITIONS, SeriesAttention, SeriesSpec};
use crate::tape::Id;

const LSTM_NORM: &str = "lstm.layer_norm";
const NORM: &str = "attention.layer_norm";

/// What the backward pass reads.
pub(super) struct PooledKept {
    /// Norm behind the LSTM.
    normed: Option<Normed>,
    x: Id,
    attention: AttentionKept,
}

enum AttentionKept {
    None,
    Additive { u: Id, weights: Id, lora: Projected },
    MultiHead { x: Id, normed: Option<Normed>, qkv: Id, out: Id, lse: Id, lora: [Projected; 2] },
}

/// The steps, and how they are summed up.
pub(super) struct Pooling<'a> {
    pub spec: &'a SeriesSpec,
}

fn projection(names: &[&str], inputs: usize, each: usize) -> Projection {
    let modules = names.iter().map(|name| (format!("attention.{name}"), each)).collect();
    Projection { modules, inputs, in_out: false, place: 0 }
}

impl Pooling<'_> {
    fn side(&self) -> Side {
        Side::Steps(self.spec.lstm_steps())
    }

    fn output_drop(&self, pass: &Pass) -> Option<Place> {
        pass.place(places::LSTM_OUT, self.spec.lstm.output_dropout.unwrap_or(0.0))
    }

    fn shape(&self, heads: usize) -> AttentionShape {
        let (steps, d_kv) = (self.spec.lstm_steps(), self.spec.width() / heads);
        AttentionShape {
            queries: self.side(),
            keys: self.side(),
            heads,
            kv_heads: heads,
            d_kv,
            scale: (d_kv as f32).powf(-0.5),
            causal: false,
            window: None,
            max_queries: steps,
            max_keys: steps,
        }
    }

    /// One row a sample.
    pub fn forward(&self, pass: &mut Pass, x: Id) -> (PooledKept, Id) {
        let (side, width, steps) = (self.side(), self.spec.width(), self.spec.lstm_steps());
        let normed = self.spec.lstm.layer_norm.then(|| pass.norm(side, x, LSTM_NORM, None));
        let (x, normed) = normed.map_or((x, None), |(out, normed)| (out, Some(normed)));
        let drop = self.output_drop(pass);
        let x = pass.dropped(side, x, width, drop);
        let out = pass.activation("summary", pass.shape.samples * width);
        let attention = match self.spec.attention {
            SeriesAttention::None => {
                pass.tape.push(Op::Series(SeriesOp::Summary { steps, width, mean: false, x, out }));
                AttentionKept::None
            }
            SeriesAttention::Additive { units } => {
                let (u, lora) = pass.project(side, x, "units", &projection(&["attention.0"], width, units));
                let weights = pass.activation("weights", pass.rows(side));
                let of = |name: &str| pass.weight(&format!("attention.attention.2.{name}"));
                let (weight, bias) = (of("weight"), of("bias"));
                let op = SeriesOp::AdditivePool { steps, width, units, x, u, weight, bias, weights, out };
                pass.tape.push(Op::Series(op));
                AttentionKept::Additive { u, weights, lora }
            }
            SeriesAttention::MultiHead { heads, dropout, layer_norm, .. } => {
                let x = self.positions(pass, x);
                let normed = layer_norm.then(|| pass.norm(side, x, NORM, None));
                let (n, normed) = normed.map_or((x, None), |(out, normed)| (out, Some(normed)));
                let (qkv, of_qkv) = pass.project(side, n, "qkv", &self.qkv());
                let cols = |nth: usize| Cols { id: qkv, start: nth * width, stride: 3 * width };
                let attended = pass.activation("attended", pass.rows(side) * width);
                let lse = pass.activation("lse", pass.rows(side) * heads);
                let (shape, drop) = (self.shape(heads), pass.place(places::ATTENTION, dropout));
                let (q, k, v, bias) = (cols(0), cols(1), cols(2), None);
                pass.tape.push(Op::Attention { shape, q, k, v, bias, out: attended, lse, drop });
                let (y, of_out) = pass.project(side, attended, "residual", &self.out());
                let drop = pass.place(places::ATTENDED, dropout);
                let y = pass.residual(side, x, y, drop);
                pass.tape.push(Op::Series(SeriesOp::Summary { steps, width, mean: true, x: y, out }));
                AttentionKept::MultiHead { x, normed, qkv, out: attended, lse, lora: [of_qkv, of_out] }
            }
        };
        (PooledKept { normed, x, attention }, out)
    }

    fn qkv(&self) -> Projection {
        projection(&["q_proj", "k_proj", "v_proj"], self.spec.width(), self.spec.width())
    }

    fn out(&self) -> Projection {
        projection(&["out_proj"], self.spec.width(), self.spec.width())
    }

    fn positions(&self, pass: &mut Pass, x: Id) -> Id {
        if self.spec.positions().is_none() {
            return x;
        }
        let (steps, width) = (self.spec.lstm_steps(), self.spec.width());
        let (table, out) = (pass.weight(POSITIONS), pass.activation("placed", pass.rows(self.side()) * width));
        pass.tape.push(Op::Series(SeriesOp::Positions { steps, width, x, table, out }));
        out
    }

    /// The gradient of the LSTM's output, from that of the row.
    pub fn backward(&self, back: &mut Backward, kept: &PooledKept, dout: Id) -> Id {
        let (side, width, steps) = (self.side(), self.spec.width(), self.spec.lstm_steps());
        let g = back.temporary("g", side, width);
        match &kept.attention {
            AttentionKept::None => {
                back.push(Op::Series(SeriesOp::SummaryBackward { steps, width, mean: false, dout, dx: g }));
            }
            AttentionKept::Additive { u, weights, lora } => {
                let SeriesAttention::Additive { units } = self.spec.attention else { unreachable!("it was additive") };
                let [weight, bias] =
                    ["weight", "bias"].map(|name| back.pass.weight(&format!("attention.attention.2.{name}")));
                let (weight_grad, bias_grad) = (back.gradient(weight), back.gradient(bias));
                back.push(Op::Series(SeriesOp::AdditivePoolBackward {
                    steps,
                    width,
                    units,
                    dout,
                    x: kept.x,
                    u: *u,
                    weight,
                    weights: *weights,
                    dx: g,
                    weight_grad,
                    bias_grad,
                }));
                back.project(side, *u, kept.x, &projection(&["attention.0"], width, units), lora, Some(g));
            }
            AttentionKept::MultiHead { x, normed, qkv, out, lse, lora } => {
                let SeriesAttention::MultiHead { heads, dropout, .. } = self.spec.attention else {
                    unreachable!("it had heads")
                };
                back.push(Op::Series(SeriesOp::SummaryBackward { steps, width, mean: true, dout, dx: g }));
                let drop = back.pass.place(places::ATTENDED, dropout);
                let dy = back.pass.dropped(side, g, width, drop);
                let dattended = back.project(side, dy, *out, &self.out(), &lora[1], None);
                let dqkv = back.temporary("dqkv", side, 3 * width);
                let cols = |id: Id, nth: usize| Cols { id, start: nth * width, stride: 3 * width };
                back.push(Op::AttentionBackward {
                    shape: self.shape(heads),
                    q: cols(*qkv, 0),
                    k: cols(*qkv, 1),
                    v: cols(*qkv, 2),
                    bias: None,
                    out: *out,
                    lse: *lse,
                    dout: dattended,
                    dq: cols(dqkv, 0),
                    dk: cols(dqkv, 1),
                    dv: cols(dqkv, 2),
                    dbias: None,
                    drop: back.pass.place(places::ATTENTION, dropout),
                });
                match normed {
                    Some(normed) => {
                        let n = back.pass.norm_again(side, *normed, NORM);
                        let dn = back.project(side, dqkv, n, &self.qkv(), &lora[0], None);
                        back.norm_onto(side, dn, *normed, NORM, g, true);
                    }
                    None => {
                        back.project(side, dqkv, *x, &self.qkv(), &lora[0], Some(g));
                    }
                }
                self.positions_backward(back, g);
            }
        }
        let drop = self.output_drop(&back.pass);
        let dy = back.pass.dropped(side, g, width, drop);
        let Some(normed) = kept.normed else { return dy };
        let dx = back.temporary("dlstm", side, width);
        back.norm_onto(side, dy, normed, LSTM_NORM, dx, false);
        dx
    }

    fn positions_backward(&self, back: &mut Backward, dy: Id) {
        if self.spec.positions().is_none() {
            return;
        }
        let (steps, width, table) = (self.spec.lstm_steps(), self.spec.width(), back.pass.weight(POSITIONS));
        if let Some((grad, write)) = back.gradient(table) {
            back.push(Op::Series(SeriesOp::PositionsBackward { steps, width, dy, grad, write }));
        }
    }
}
