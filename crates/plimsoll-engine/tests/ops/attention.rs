//! Attention and its gradient: both ways, causal and cross, over tiles of query rows, with bias and dropout.
//!
//! The reference builds the whole matrix of scores in f64; its own gradient is checked by finite differences first.

use plimsoll_engine::cpu::attention::{Columns, Samples, attention_forward};
use plimsoll_engine::cpu::attention_backward::{Forward, attention_backward};
use plimsoll_engine::cpu::{Cores, Dropper, Shared};
use plimsoll_plan::op::{AttentionShape, Side};
use plimsoll_plan::tiles::Tiles;

use crate::{Ragged, assert_close, finite_differences, inner_product, numbers, on_all_cores, unwritten, wide};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Bidirectional,
    Causal,
    Cross,
}

struct Case {
    kind: Kind,
    shape: AttentionShape,
    queries: Ragged,
    keys: Ragged,
    /// Index of the first sample in the effective batch.
    first: u32,
    drop: Option<Dropper>,
}

/// The gradients of one backward pass.
struct Gradients<T> {
    dq: Vec<T>,
    dk: Vec<T>,
    dv: Vec<T>,
    dbias: Vec<T>,
}

impl Case {
    /// Samples of these query and key lengths; the plan has room for `spare` more of each.
    fn of(kind: Kind, heads: usize, d_kv: usize, lens: &[(usize, usize)], spare: usize, dropped: bool) -> Case {
        let keys_of = |(queries, keys): &(usize, usize)| if kind == Kind::Cross { *keys } else { *queries };
        let query_lens: Vec<usize> = lens.iter().map(|l| l.0).collect();
        let key_lens: Vec<usize> = lens.iter().map(keys_of).collect();
        let shape = AttentionShape {
            queries: if kind == Kind::Bidirectional { Side::Source } else { Side::Target },
            keys: if kind == Kind::Causal { Side::Target } else { Side::Source },
            heads,
            d_kv,
            causal: kind == Kind::Causal,
            max_queries: query_lens.iter().max().unwrap() + spare,
            max_keys: key_lens.iter().max().unwrap() + spare,
        };
        let first = 4;
        let drop = dropped.then(|| Dropper::new(99, 7, 21, 0.25));
        Case { kind, shape, queries: Ragged::of(first, &query_lens), keys: Ragged::of(first, &key_lens), first, drop }
    }

    fn inner(&self) -> usize {
        self.shape.heads * self.shape.d_kv
    }

    fn bias(&self) -> Option<Vec<f32>> {
        (self.kind != Kind::Cross).then(|| numbers(self.shape.heads * self.shape.span(), 5))
    }

    /// Queries, keys, values; scaled so that the softmax is neither flat nor a single one.
    fn inputs(&self) -> [Vec<f32>; 3] {
        let size = 2.0 / (self.shape.d_kv as f32).powf(0.25);
        let scaled =
            |rows: usize, seed| numbers(rows * self.inner(), seed).iter().map(|v| v * size).collect::<Vec<f32>>();
        [scaled(self.queries.len(), 1), scaled(self.keys.len(), 2), numbers(self.keys.len() * self.inner(), 3)]
    }

    fn dout(&self) -> Vec<f32> {
        numbers(self.queries.len() * self.inner(), 4)
    }

    /// Calls `f(head, query row, key rows seen, dropout factors, bias of the first key)` for each query of each head.
    fn each_query(&self, mut f: impl FnMut(usize, usize, std::ops::Range<usize>, &[f64], usize)) {
        for sample in 0..self.queries.starts.len() - 1 {
            let start = |side: &Ragged, at: usize| side.starts[at] as usize;
            let (q0, q1) = (start(&self.queries, sample), start(&self.queries, sample + 1));
            let (k0, k1) = (start(&self.keys, sample), start(&self.keys, sample + 1));
            for head in 0..self.shape.heads {
                for query in 0..q1 - q0 {
                    let end = if self.shape.causal { k0 + query + 1 } else { k1 };
                    let mut factors = vec![1.0f32; self.shape.max_keys];
                    if let Some(dropper) = &self.drop {
                        let row = (head * self.shape.max_queries + query) as u64;
                        dropper.apply(self.first + sample as u32, row, &mut factors);
                    }
                    f(
                        head,
                        q0 + query,
                        k0..end,
                        &wide(&factors),
                        head * self.shape.span() + self.shape.max_queries - 1 - query,
                    );
                }
            }
        }
    }

    /// Probabilities of one query, and its log-sum-exp.
    fn softmax(
        &self,
        q: &[f64],
        k: &[f64],
        bias: Option<&[f64]>,
        head: usize,
        row: usize,
        keys: std::ops::Range<usize>,
        at: usize,
    ) -> (Vec<f64>, f64) {
        let (inner, d) = (self.inner(), self.shape.d_kv);
        let part = |data: &[f64], row: usize| data[row * inner + head * d..][..d].to_vec();
        let first = keys.start;
        let scores: Vec<f64> = keys
            .map(|key| inner_product(&part(q, row), &part(k, key)) + bias.map_or(0.0, |b| b[at + key - first]))
            .collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = most + scores.iter().map(|s| (s - most).exp()).sum::<f64>().ln();
        (scores.iter().map(|s| (s - lse).exp()).collect(), lse)
    }

    /// (out, lse)
    fn exact(&self, q: &[f64], k: &[f64], v: &[f64], bias: Option<&[f64]>) -> (Vec<f64>, Vec<f64>) {
        let (inner, d, heads) = (self.inner(), self.shape.d_kv, self.shape.heads);
        let (mut out, mut lses) = (vec![0.0; q.len()], vec![0.0; self.queries.len() * heads]);
        self.each_query(|head, row, keys, factors, at| {
            let (p, lse) = self.softmax(q, k, bias, head, row, keys.clone(), at);
            lses[row * heads + head] = lse;
            for (i, key) in keys.enumerate() {
                (0..d)
                    .for_each(|c| out[row * inner + head * d + c] += p[i] * factors[i] * v[key * inner + head * d + c]);
            }
        });
        (out, lses)
    }

    fn exact_gradients(&self, q: &[f64], k: &[f64], v: &[f64], bias: Option<&[f64]>, dout: &[f64]) -> Gradients<f64> {
        let (inner, d) = (self.inner(), self.shape.d_kv);
        let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
        let mut dbias = vec![0.0; self.shape.heads * self.shape.span()];
        self.each_query(|head, row, keys, factors, at| {
            let (p, _) = self.softmax(q, k, bias, head, row, keys.clone(), at);
            let from = row * inner + head * d;
            let dp: Vec<f64> = keys
                .clone()
                .enumerate()
                .map(|(i, key)| factors[i] * inner_product(&dout[from..from + d], &v[key * inner + head * d..][..d]))
                .collect();
            let mean = inner_product(&p, &dp);
            for (i, key) in keys.enumerate() {
                let ds = p[i] * (dp[i] - mean);
                dbias[at + i] += ds;
                for c in 0..d {
                    let other = key * inner + head * d + c;
                    dv[other] += p[i] * factors[i] * dout[from + c];
                    dq[from + c] += ds * k[other];
                    dk[other] += ds * q[from + c];
                }
            }
        });
        Gradients { dq, dk, dv, dbias }
    }

    /// Where q, k and v lie in the engine: side by side for self-attention; q alone and k, v side by side for cross.
    fn places(&self) -> [(usize, usize, usize); 3] {
        let inner = self.inner();
        match self.kind {
            Kind::Cross => [(0, 0, inner), (1, 0, 2 * inner), (1, inner, 2 * inner)],
            _ => [(0, 0, 3 * inner), (0, inner, 3 * inner), (0, 2 * inner, 3 * inner)],
        }
    }

    fn columns(&self, tensors: &mut [Vec<f32>; 2]) -> [Columns; 3] {
        let data = [Shared(tensors[0].as_mut_ptr()), Shared(tensors[1].as_mut_ptr())];
        self.places().map(|(tensor, start, stride)| Columns { data: data[tensor], start, stride })
    }

    fn tensors(&self, value: f32) -> [Vec<f32>; 2] {
        let width = if self.kind == Kind::Cross { 1 } else { 3 };
        [vec![value; self.queries.len() * width * self.inner()], vec![value; self.keys.len() * 2 * self.inner()]]
    }

    fn scatter(&self, parts: &[Vec<f32>; 3]) -> [Vec<f32>; 2] {
        let mut tensors = self.tensors(f32::NAN);
        for ((tensor, start, stride), part) in self.places().into_iter().zip(parts) {
            for (row, values) in part.chunks_exact(self.inner()).enumerate() {
                tensors[tensor][row * stride + start..][..self.inner()].copy_from_slice(values);
            }
        }
        tensors
    }

    fn gather(&self, tensors: &[Vec<f32>; 2]) -> [Vec<f32>; 3] {
        self.places().map(|(tensor, start, stride)| {
            tensors[tensor].chunks_exact(stride).flat_map(|row| row[start..start + self.inner()].to_vec()).collect()
        })
    }

    fn samples(&self) -> Samples<'_> {
        Samples { queries: &self.queries.starts, keys: &self.keys.starts, first: self.first }
    }

    fn forward(&self, cores: Cores, inputs: &[Vec<f32>; 3]) -> (Vec<f32>, Vec<f32>) {
        let mut tensors = self.scatter(inputs);
        let [q, k, v] = self.columns(&mut tensors);
        let (mut out, mut lse) = (unwritten(inputs[0].len()), unwritten(self.queries.len() * self.shape.heads));
        let mut space = unwritten(cores.threads * self.shape.forward_words(&Tiles::of(cores.simd)));
        let bias = self.bias();
        let bias = bias.as_deref();
        attention_forward(
            cores,
            &self.shape,
            self.samples(),
            q,
            k,
            v,
            bias,
            &mut out,
            &mut lse,
            self.drop.as_ref(),
            &mut space,
        );
        (out, lse)
    }

    fn backward(
        &self,
        cores: Cores,
        inputs: &[Vec<f32>; 3],
        kept: (&[f32], &[f32]),
        dout: &[f32],
        mut dbias: Vec<f32>,
    ) -> Gradients<f32> {
        let (mut tensors, mut grads) = (self.scatter(inputs), self.tensors(f32::NAN));
        let [q, k, v] = self.columns(&mut tensors);
        let [dq, dk, dv] = self.columns(&mut grads);
        let bias = self.bias();
        let forward = Forward { q, k, v, bias: bias.as_deref(), out: kept.0, lse: kept.1, dout };
        let partial = if bias.is_some() { self.samples().count() * self.shape.heads * self.shape.span() } else { 0 };
        let mut space = unwritten(cores.threads * self.shape.backward_words(&Tiles::of(cores.simd)) + partial);
        let onto = bias.is_some().then_some(&mut dbias[..]);
        attention_backward(
            cores,
            &self.shape,
            self.samples(),
            forward,
            dq,
            dk,
            dv,
            onto,
            self.drop.as_ref(),
            &mut space,
        );
        let [dq, dk, dv] = self.gather(&grads);
        Gradients { dq, dk, dv, dbias }
    }

    fn agrees(&self) {
        let inputs = self.inputs();
        let [q, k, v] = [wide(&inputs[0]), wide(&inputs[1]), wide(&inputs[2])];
        let bias = self.bias().map(|b| wide(&b));
        let (exact_out, exact_lse) = self.exact(&q, &k, &v, bias.as_deref());
        let exact = self.exact_gradients(&q, &k, &v, bias.as_deref(), &wide(&self.dout()));
        // The bias of the cross case is empty: nothing may be written there.
        let before = if bias.is_some() { numbers(exact.dbias.len(), 8) } else { Vec::new() };
        let exact_dbias: Vec<f64> = before.iter().zip(&exact.dbias).map(|(b, d)| f64::from(*b) + d).collect();
        on_all_cores(|cores| {
            let what = |part: &str| {
                format!("{part}: {:?} {:?}, dropout {}, {cores:?}", self.kind, self.shape, self.drop.is_some())
            };
            let (out, lse) = self.forward(cores, &inputs);
            assert_close(&out, &exact_out, 5e-6, &what("out"));
            assert_close(&lse, &exact_lse, 2e-6, &what("lse"));
            let got = self.backward(cores, &inputs, (&out, &lse), &self.dout(), before.clone());
            assert_close(&got.dq, &exact.dq, 2e-5, &what("dq"));
            assert_close(&got.dk, &exact.dk, 2e-5, &what("dk"));
            assert_close(&got.dv, &exact.dv, 2e-5, &what("dv"));
            assert_close(&got.dbias, &exact_dbias, 2e-5, &what("dbias"));
        });
    }
}

const KINDS: [Kind; 3] = [Kind::Bidirectional, Kind::Causal, Kind::Cross];

#[test]
fn the_reference_gradient_is_the_slope_of_the_reference() {
    for kind in KINDS {
        let case = Case::of(kind, 2, 3, &[(4, 5), (1, 2)], 1, true);
        let inputs = case.inputs();
        let [q, k, v] = [wide(&inputs[0]), wide(&inputs[1]), wide(&inputs[2])];
        let (bias, dout) = (case.bias().map(|b| wide(&b)), wide(&case.dout()));
        let exact = case.exact_gradients(&q, &k, &v, bias.as_deref(), &dout);
        let narrow = |values: &[f64]| values.iter().map(|v| *v as f32).collect::<Vec<f32>>();
        let loss = |q: &[f64], k: &[f64], v: &[f64], b: Option<&[f64]>| inner_product(&dout, &case.exact(q, k, v, b).0);
        let bias = bias.as_deref();
        assert_close(&narrow(&exact.dq), &finite_differences(&q, |q| loss(q, &k, &v, bias)), 1e-6, "dq");
        assert_close(&narrow(&exact.dk), &finite_differences(&k, |k| loss(&q, k, &v, bias)), 1e-6, "dk");
        assert_close(&narrow(&exact.dv), &finite_differences(&v, |v| loss(&q, &k, v, bias)), 1e-6, "dv");
        if let Some(bias) = bias {
            let slope = finite_differences(bias, |b| loss(&q, &k, &v, Some(b)));
            assert_close(&narrow(&exact.dbias), &slope, 1e-6, "dbias");
        }
    }
}

#[test]
fn one_query_of_one_sample_agrees() {
    for kind in KINDS {
        for dropped in [false, true] {
            Case::of(kind, 1, 1, &[(1, 1)], 0, dropped).agrees();
            Case::of(kind, 2, 17, &[(1, 3)], 4, dropped).agrees();
        }
    }
}

#[test]
fn ragged_samples_agree_below_the_planned_lengths() {
    for kind in KINDS {
        for dropped in [false, true] {
            Case::of(kind, 3, 8, &[(5, 9), (1, 1), (13, 2), (7, 20)], 3, dropped).agrees();
            Case::of(kind, 2, 64, &[(16, 65), (33, 7)], 0, dropped).agrees();
        }
    }
}

#[test]
fn several_tiles_of_queries_agree() {
    for kind in KINDS {
        for dropped in [false, true] {
            let case = Case::of(kind, 2, 5, &[(64, 30), (65, 70), (131, 9), (3, 129)], 0, dropped);
            assert!(case.shape.tile_rows() == 64 && case.shape.max_queries > 2 * 64);
            case.agrees();
        }
    }
}

#[test]
fn long_keys_make_low_tiles_that_agree() {
    // 32 Ki scores a tile: beyond 512 keys the tile is lower than 64 rows.
    for kind in [Kind::Bidirectional, Kind::Cross] {
        let case = Case::of(kind, 1, 4, &[(130, 700), (601, 11)], 0, true);
        assert!(case.shape.tile_rows() < 64, "{}", case.shape.tile_rows());
        case.agrees();
    }
    let case = Case::of(Kind::Cross, 2, 3, &[(17, 4100)], 0, false);
    assert_eq!(case.shape.tile_rows(), 8);
    case.agrees();
    Case::of(Kind::Causal, 1, 4, &[(600, 0)], 0, true).agrees();
}

#[test]
fn large_scores_do_not_overflow() {
    on_all_cores(|cores| {
        let case = Case::of(Kind::Causal, 1, 2, &[(40, 0)], 0, false);
        let mut inputs = case.inputs();
        inputs[0].iter_mut().for_each(|q| *q *= 30.0);
        inputs[1].iter_mut().for_each(|k| *k *= 30.0);
        let (out, lse) = case.forward(cores, &inputs);
        let got = case.backward(cores, &inputs, (&out, &lse), &case.dout(), vec![0.0; case.shape.span()]);
        let bias = wide(&case.bias().unwrap());
        let exact = case.exact(&wide(&inputs[0]), &wide(&inputs[1]), &wide(&inputs[2]), Some(&bias));
        assert!(exact.1.iter().any(|l| *l > 500.0), "the scores are large");
        assert_close(&lse, &exact.1, 1e-6, "lse");
        assert_close(&out, &exact.0, 2e-4, "out");
        assert!(got.dq.iter().chain(&got.dk).chain(&got.dv).chain(&got.dbias).all(|v| v.is_finite()));
    });
}

#[test]
fn a_sample_attends_alike_in_any_micro_batch() {
    on_all_cores(|cores| {
        for kind in KINDS {
            let lens = [(9, 12), (70, 30), (4, 21)];
            let whole = Case::of(kind, 2, 7, &lens, 0, true);
            let (inputs, dout) = (whole.inputs(), whole.dout());
            let no_bias = || vec![0.0; whole.shape.heads * whole.shape.span()];
            let (out, lse) = whole.forward(cores, &inputs);
            let grads = whole.backward(cores, &inputs, (&out, &lse), &dout, no_bias());
            let mut dbias = vec![0.0f64; grads.dbias.len()];
            for sample in 0..lens.len() {
                let mut alone = Case::of(kind, 2, 7, &lens[sample..=sample], 0, true);
                alone.shape = whole.shape;
                alone.first = whole.first + sample as u32;
                let rows = |side: &Ragged, width: usize| {
                    side.starts[sample] as usize * width..side.starts[sample + 1] as usize * width
                };
                let (q, k) = (rows(&whole.queries, whole.inner()), rows(&whole.keys, whole.inner()));
                let part =
                    [inputs[0][q.clone()].to_vec(), inputs[1][k.clone()].to_vec(), inputs[2][k.clone()].to_vec()];
                let (out_alone, lse_alone) = alone.forward(cores, &part);
                assert_eq!(out_alone, out[q.clone()], "{kind:?}, sample {sample}");
                assert_eq!(lse_alone, lse[rows(&whole.queries, 2)]);
                let got = alone.backward(cores, &part, (&out_alone, &lse_alone), &dout[q.clone()], no_bias());
                assert_eq!(
                    (got.dq, got.dk, got.dv),
                    (grads.dq[q].to_vec(), grads.dk[k.clone()].to_vec(), grads.dv[k].to_vec())
                );
                dbias.iter_mut().zip(&got.dbias).for_each(|(all, one)| *all += f64::from(*one));
            }
            assert_close(&grads.dbias, &dbias, 1e-6, "dbias");
        }
    });
}
