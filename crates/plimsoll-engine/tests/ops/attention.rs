//! Attention and its gradient: both ways, causal and cross, over tiles of query rows and blocks of keys, with bias and
//! dropout, shared heads of keys and values, windows, and several documents in a sample.
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
    Decoder,
}

struct Case {
    kind: Kind,
    shape: AttentionShape,
    queries: Ragged,
    keys: Ragged,
    /// Sample of each document in the effective batch.
    sample: Vec<u32>,
    /// First row of each document in its sample.
    offset: Vec<u32>,
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
            kv_heads: heads,
            d_kv,
            scale: 1.0,
            causal: kind == Kind::Causal,
            window: None,
            max_queries: query_lens.iter().max().unwrap() + spare,
            max_keys: key_lens.iter().max().unwrap() + spare,
        };
        let first = 4;
        let drop = dropped.then(|| Dropper::new(99, 7, 21, 0.25));
        let (sample, offset) = ((0..lens.len() as u32).map(|at| first + at).collect(), vec![0; lens.len()]);
        Case {
            kind,
            shape,
            queries: Ragged::of(first, &query_lens),
            keys: Ragged::of(first, &key_lens),
            sample,
            offset,
            drop,
        }
    }

    /// A decoder's attention: causal, scaled, without bias.
    fn decoder(
        (heads, kv_heads): (usize, usize),
        d_kv: usize,
        lens: &[usize],
        window: Option<usize>,
        dropped: bool,
    ) -> Case {
        let lens: Vec<(usize, usize)> = lens.iter().map(|len| (*len, *len)).collect();
        let mut case = Case::of(Kind::Decoder, heads, d_kv, &lens, 0, dropped);
        case.shape = AttentionShape {
            queries: Side::Target,
            keys: Side::Target,
            causal: true,
            kv_heads,
            scale: (d_kv as f32).powf(-0.5),
            window,
            ..case.shape
        };
        case
    }

    fn inner(&self) -> usize {
        self.shape.heads * self.shape.d_kv
    }

    fn kv_inner(&self) -> usize {
        self.shape.kv_heads * self.shape.d_kv
    }

    /// First element of a key or value of a query head.
    fn kv_at(&self, row: usize, head: usize) -> usize {
        row * self.kv_inner() + head / (self.shape.heads / self.shape.kv_heads) * self.shape.d_kv
    }

    fn bias(&self) -> Option<Vec<f32>> {
        (!matches!(self.kind, Kind::Cross | Kind::Decoder)).then(|| numbers(self.shape.heads * self.shape.span(), 5))
    }

    /// Queries, keys, values; scaled so that the softmax is neither flat nor a single one.
    fn inputs(&self) -> [Vec<f32>; 3] {
        let size = 2.0 / (self.shape.d_kv as f32).powf(0.25);
        let size = size / self.shape.scale.sqrt();
        let scaled = |n: usize, seed| numbers(n, seed).iter().map(|v| v * size).collect::<Vec<f32>>();
        let (queries, keys) = (self.queries.len() * self.inner(), self.keys.len() * self.kv_inner());
        [scaled(queries, 1), scaled(keys, 2), numbers(keys, 3)]
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
                    let behind = self.shape.window.map_or(0, |window| (query + 1).saturating_sub(window));
                    let mut factors = vec![1.0f32; self.shape.max_keys];
                    if let Some(dropper) = &self.drop {
                        let row = (head * self.shape.max_queries + query) as u64 + u64::from(self.offset[sample]);
                        dropper.apply(self.sample[sample], row, &mut factors);
                    }
                    let at = head * self.shape.span() + self.shape.max_queries - 1 - query;
                    f(head, q0 + query, k0 + behind..end, &wide(&factors[behind..]), at + behind);
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
        let (first, scale) = (keys.start, f64::from(self.shape.scale));
        let q = &q[row * inner + head * d..][..d];
        let score = |key: usize| scale * inner_product(q, &k[self.kv_at(key, head)..][..d]);
        let scores: Vec<f64> = keys.map(|key| score(key) + bias.map_or(0.0, |b| b[at + key - first])).collect();
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
                let value = self.kv_at(key, head);
                (0..d).for_each(|c| out[row * inner + head * d + c] += p[i] * factors[i] * v[value + c]);
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
                .map(|(i, key)| factors[i] * inner_product(&dout[from..from + d], &v[self.kv_at(key, head)..][..d]))
                .collect();
            let mean = inner_product(&p, &dp);
            for (i, key) in keys.enumerate() {
                let ds = p[i] * (dp[i] - mean);
                dbias[at + i] += ds;
                for c in 0..d {
                    let other = self.kv_at(key, head) + c;
                    let ds = ds * f64::from(self.shape.scale);
                    dv[other] += p[i] * factors[i] * dout[from + c];
                    dq[from + c] += ds * k[other];
                    dk[other] += ds * q[from + c];
                }
            }
        });
        Gradients { dq, dk, dv, dbias }
    }

    /// (tensor, first column, columns, row length) of q, k and v in the engine: side by side for self-attention; q alone
    /// and k, v side by side for cross.
    fn places(&self) -> [(usize, usize, usize, usize); 3] {
        let (inner, kv) = (self.inner(), self.kv_inner());
        let all = inner + 2 * kv;
        match self.kind {
            Kind::Cross => [(0, 0, inner, inner), (1, 0, kv, 2 * kv), (1, kv, kv, 2 * kv)],
            _ => [(0, 0, inner, all), (0, inner, kv, all), (0, inner + kv, kv, all)],
        }
    }

    fn columns(&self, tensors: &mut [Vec<f32>; 2]) -> [Columns; 3] {
        let data = [Shared(tensors[0].as_mut_ptr()), Shared(tensors[1].as_mut_ptr())];
        self.places().map(|(tensor, start, _, stride)| Columns { data: data[tensor], start, stride })
    }

    fn tensors(&self, value: f32) -> [Vec<f32>; 2] {
        [vec![value; self.queries.len() * self.places()[0].3], vec![value; self.keys.len() * 2 * self.kv_inner()]]
    }

    fn scatter(&self, parts: &[Vec<f32>; 3]) -> [Vec<f32>; 2] {
        let mut tensors = self.tensors(f32::NAN);
        for ((tensor, start, width, stride), part) in self.places().into_iter().zip(parts) {
            for (row, values) in part.chunks_exact(width).enumerate() {
                tensors[tensor][row * stride + start..][..width].copy_from_slice(values);
            }
        }
        tensors
    }

    fn gather(&self, tensors: &[Vec<f32>; 2]) -> [Vec<f32>; 3] {
        self.places().map(|(tensor, start, width, stride)| {
            tensors[tensor].chunks_exact(stride).flat_map(|row| row[start..start + width].to_vec()).collect()
        })
    }

    fn samples(&self) -> Samples<'_> {
        Samples { queries: &self.queries.starts, keys: &self.keys.starts, sample: &self.sample, offset: &self.offset }
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
fn keys_of_several_blocks_agree_with_bias_and_dropout() {
    for kind in [Kind::Bidirectional, Kind::Cross] {
        let case = Case::of(kind, 1, 4, &[(130, 700), (601, 11)], 0, true);
        assert!(case.shape.key_block() < case.shape.max_keys);
        case.agrees();
    }
    Case::of(Kind::Cross, 2, 3, &[(17, 4100)], 0, false).agrees();
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
                alone.sample = vec![whole.sample[sample]];
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

#[test]
fn the_reference_of_shared_heads_and_windows_has_its_slope() {
    for window in [None, Some(3)] {
        let case = Case::decoder((4, 2), 3, &[5, 2], window, true);
        let inputs = case.inputs();
        let ([q, k, v], dout) = ([0, 1, 2].map(|at| wide(&inputs[at])), wide(&case.dout()));
        let exact = case.exact_gradients(&q, &k, &v, None, &dout);
        let narrow = |values: &[f64]| values.iter().map(|v| *v as f32).collect::<Vec<f32>>();
        let loss = |q: &[f64], k: &[f64], v: &[f64]| inner_product(&dout, &case.exact(q, k, v, None).0);
        assert_close(&narrow(&exact.dq), &finite_differences(&q, |q| loss(q, &k, &v)), 1e-6, "dq");
        assert_close(&narrow(&exact.dk), &finite_differences(&k, |k| loss(&q, k, &v)), 1e-6, "dk");
        assert_close(&narrow(&exact.dv), &finite_differences(&v, |v| loss(&q, &k, v)), 1e-6, "dv");
    }
}

#[test]
fn shared_heads_of_keys_agree() {
    for dropped in [false, true] {
        for (heads, kv_heads) in [(1, 1), (4, 1), (6, 2), (4, 4)] {
            Case::decoder((heads, kv_heads), 8, &[5, 1, 70], None, dropped).agrees();
        }
        Case::decoder((3, 1), 33, &[130], None, dropped).agrees();
    }
}

#[test]
fn windows_agree() {
    for dropped in [false, true] {
        for window in [1, 2, 30, 64, 65, 129, 1000] {
            Case::decoder((2, 1), 8, &[5, 200, 1], Some(window), dropped).agrees();
        }
    }
}

#[test]
fn many_blocks_of_keys_agree() {
    for dropped in [false, true] {
        for window in [None, Some(100), Some(600)] {
            Case::decoder((2, 1), 16, &[3, 1100], window, dropped).agrees();
        }
        Case::of(Kind::Bidirectional, 1, 8, &[(1030, 0), (20, 0)], 5, dropped).agrees();
        Case::of(Kind::Cross, 1, 8, &[(70, 1200), (130, 513)], 0, dropped).agrees();
    }
}

/// A row's scores in the last block drown those of the first, and the other way round.
#[test]
fn blocks_of_very_different_scores_agree() {
    on_all_cores(|cores| {
        let case = Case::of(Kind::Cross, 1, 4, &[(9, 1100)], 0, false);
        let mut inputs = case.inputs();
        inputs[1][..4 * 512].iter_mut().for_each(|k| *k *= 20.0);
        let (out, lse) = case.forward(cores, &inputs);
        let exact = case.exact(&wide(&inputs[0]), &wide(&inputs[1]), &wide(&inputs[2]), None);
        assert!(exact.1.iter().any(|l| *l > 20.0), "the scores are large");
        assert_close(&out, &exact.0, 2e-5, "out");
        assert_close(&lse, &exact.1, 2e-6, "lse");
    });
}

#[test]
fn documents_drop_as_rows_of_their_sample_and_empty_ones_do_nothing() {
    let mut case = Case::decoder((4, 2), 8, &[20, 0, 33, 0, 7], None, true);
    // Two samples: the first holds three documents, the second two.
    (case.sample, case.offset) = (vec![4, 4, 4, 5, 5], vec![0, 20, 20, 0, 0]);
    case.shape.max_queries = 60;
    case.shape.max_keys = 60;
    case.agrees();
}

#[test]
fn a_query_without_keys_gets_zeros() {
    on_all_cores(|cores| {
        let case = Case::of(Kind::Cross, 2, 5, &[(3, 0), (2, 4), (0, 3)], 0, false);
        let inputs = case.inputs();
        let (out, lse) = case.forward(cores, &inputs);
        assert!(out[..3 * 10].iter().all(|o| *o == 0.0));
        let got = case.backward(cores, &inputs, (&out, &lse), &case.dout(), Vec::new());
        assert!(got.dq[..3 * 10].iter().all(|d| *d == 0.0));
        assert!(got.dk[4 * 10..].iter().chain(&got.dv[4 * 10..]).all(|d| *d == 0.0), "keys without queries");
        assert!(got.dq.iter().chain(&got.dk).chain(&got.dv).chain(&out).all(|v| v.is_finite()));
    });
}

#[test]
fn the_bits_do_not_depend_on_the_threads() {
    for case in [
        Case::decoder((6, 2), 16, &[600, 40], Some(300), true),
        Case::of(Kind::Bidirectional, 3, 8, &[(70, 0), (33, 0)], 0, true),
    ] {
        let (inputs, dout) = (case.inputs(), case.dout());
        let run = |threads: usize| {
            let (case, inputs, dout) = (&case, &inputs, &dout);
            let work = move || {
                let cores = Cores { simd: plimsoll_engine::simd::detect(), threads };
                let (out, lse) = case.forward(cores, inputs);
                let dbias = case.bias().map_or(Vec::new(), |b| vec![0.0; b.len()]);
                let got = case.backward(cores, inputs, (&out, &lse), dout, dbias);
                [out, lse, got.dq, got.dk, got.dv, got.dbias]
            };
            plimsoll_engine::with_cores(threads, || {}, work).unwrap()
        };
        assert_eq!(run(1), run(3));
    }
}

#[test]
fn scratch_stays_small_whatever_the_context() {
    let mut shape = Case::decoder((8, 8), 128, &[1], None, false).shape;
    (shape.max_queries, shape.max_keys) = (1 << 17, 1 << 17);
    let tiles = Tiles::of(plimsoll_plan::tiles::Simd::Avx512);
    assert!(shape.forward_words(&tiles) * 4 < 1 << 20);
    assert!(shape.backward_words(&tiles) * 4 < 2 << 20);
}
