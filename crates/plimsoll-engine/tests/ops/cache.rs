//! One decoding step: keys and values are appended, each hypothesis attends over its own past, and over its prompt.

use plimsoll_engine::cpu::Shared;
use plimsoll_engine::cpu::attention::Columns;
use plimsoll_engine::cpu::cache::{Cache, Prompt, attention_step, cache_append, cross_step, decode_step};
use plimsoll_plan::op::{AttentionShape, Side};

use crate::{assert_close, inner_product, numbers, on_all_cores, unwritten, wide};

fn shape(heads: usize, d_kv: usize, keys: Side, max_keys: usize) -> AttentionShape {
    AttentionShape {
        queries: Side::Beam,
        keys,
        heads,
        kv_heads: heads,
        d_kv,
        scale: 1.0,
        causal: keys == Side::Beam,
        window: None,
        max_queries: max_keys,
        max_keys,
    }
}

/// Softmax attention of one query over keys and values given as (key, value, bias).
fn exact_row(q: &[f64], past: &[(Vec<f64>, Vec<f64>, f64)]) -> Vec<f64> {
    let scores: Vec<f64> = past.iter().map(|(k, _, b)| inner_product(q, k) + b).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|s| (s - most).exp()).sum();
    (0..q.len()).map(|c| past.iter().zip(&scores).map(|((_, v, _), s)| (s - most).exp() / total * v[c]).sum()).collect()
}

/// Five steps of three hypotheses that swap their pasts between steps, as beam search does.
#[test]
fn each_hypothesis_attends_over_its_own_past() {
    on_all_cores(|cores| {
        for (heads, d) in [(1, 1), (2, 5), (3, 16), (2, 33)] {
            let (rows, max_len, inner) = (3, 6, heads * d);
            let shape = shape(heads, d, Side::Beam, max_len);
            let bias = numbers(heads * shape.span(), 4);
            let mut cache = unwritten(rows * max_len * 2 * inner);
            // The same past, kept naively: each hypothesis owns a copy of every earlier key and value.
            let mut pasts: Vec<Vec<Vec<f32>>> = vec![Vec::new(); rows];
            let mut origin = vec![u32::MAX; rows * max_len];
            for position in 0..5 {
                let parents = [[0, 1, 2], [1, 0, 0], [2, 2, 1], [0, 0, 0], [2, 1, 0]][position];
                let old = origin.clone();
                for row in 0..rows {
                    origin[row * max_len..][..position].copy_from_slice(&old[parents[row] * max_len..][..position]);
                    origin[row * max_len + position] = row as u32;
                }
                pasts = parents.iter().map(|p| pasts[*p].clone()).collect();
                let mut qkv = numbers(rows * 3 * inner, 10 + position as u64);
                for row in 0..rows {
                    pasts[row].push(qkv[row * 3 * inner + inner..(row + 1) * 3 * inner].to_vec());
                }
                let wide_qkv = wide(&qkv);
                let columns = |start| Columns { data: Shared(qkv.as_mut_ptr()), start, stride: 3 * inner };
                let [q, kv] = [0, inner].map(columns);
                let into = Columns { data: Shared(cache.as_mut_ptr()), start: 0, stride: 2 * inner };
                cache_append(rows, kv, 2 * inner, into, max_len, position);
                let (mut out, mut space) = (unwritten(rows * inner), unwritten(cores.threads * max_len));
                attention_step(cores, &shape, rows, q, &cache, &origin, position, &bias, &mut out, &mut space);
                for row in 0..rows {
                    for head in 0..heads {
                        let past: Vec<_> = (0..=position)
                            .map(|at| {
                                let kv = wide(&pasts[row][at]);
                                let near = f64::from(bias[head * shape.span() + at + max_len - 1 - position]);
                                (kv[head * d..][..d].to_vec(), kv[inner + head * d..][..d].to_vec(), near)
                            })
                            .collect();
                        let expected = exact_row(&wide_qkv[row * 3 * inner + head * d..][..d], &past);
                        assert_close(
                            &out[row * inner + head * d..][..d],
                            &expected,
                            3e-6,
                            &format!("step {position}, row {row}"),
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn each_hypothesis_attends_over_its_own_prompt() {
    on_all_cores(|cores| {
        for (heads, d, beams) in [(1, 1, 1), (2, 7, 3), (3, 16, 2)] {
            let (inner, starts) = (heads * d, [0u32, 1, 40, 57]);
            let shape = shape(heads, d, Side::Source, 39);
            let rows = 3 * beams;
            let (mut q, mut kv) = (numbers(rows * inner, 1), numbers(57 * 2 * inner, 2));
            let (q64, kv64) = (wide(&q), wide(&kv));
            let columns = |data: &mut Vec<f32>, stride| Columns { data: Shared(data.as_mut_ptr()), start: 0, stride };
            let (q, kv) = (columns(&mut q, inner), columns(&mut kv, 2 * inner));
            let (mut out, mut space) = (unwritten(rows * inner), unwritten(cores.threads * shape.max_keys));
            cross_step(cores, &shape, rows, beams, q, kv, &starts, &mut out, &mut space);
            for row in 0..rows {
                let keys = starts[row / beams] as usize..starts[row / beams + 1] as usize;
                for head in 0..heads {
                    let part = |at: usize, start: usize| kv64[at * 2 * inner + start + head * d..][..d].to_vec();
                    let past: Vec<_> = keys.clone().map(|at| (part(at, 0), part(at, inner), 0.0)).collect();
                    let expected = exact_row(&q64[row * inner + head * d..][..d], &past);
                    assert_close(
                        &out[row * inner + head * d..][..d],
                        &expected,
                        3e-6,
                        &format!("row {row}, head {head}"),
                    );
                }
            }
        }
    });
}

/// Two prompts of different lengths, two hypotheses each, five steps; hypotheses swap their pasts between steps.
#[test]
fn a_decoder_attends_over_its_prompt_and_its_past_at_once() {
    on_all_cores(|cores| {
        for (heads, kv_heads, d, window, biased) in [
            (1, 1, 1, None, false),
            (4, 2, 5, None, true),
            (6, 1, 16, Some(3), false),
            (4, 4, 33, Some(1), false),
            (2, 1, 8, Some(7), true),
        ] {
            let (beams, rows, max_len, starts) = (2, 4, 5, [0u32, 3, 12]);
            let (inner, kv_inner) = (heads * d, kv_heads * d);
            let shape = AttentionShape { kv_heads, scale: 0.3, window, ..shape(heads, d, Side::Beam, 9 + max_len) };
            let bias = biased.then(|| numbers(heads * shape.span(), 4));
            // Keys and values of the prompt lie behind its queries.
            let stride = inner + 2 * kv_inner;
            let mut prompt = numbers(12 * stride, 2);
            let prompt64 = wide(&prompt);
            let prompt = Prompt {
                kv: Columns { data: Shared(prompt.as_mut_ptr()), start: inner, stride },
                starts: &starts,
                beams,
            };
            let mut cache = unwritten(rows * max_len * 2 * kv_inner);
            let mut origin = vec![u32::MAX; rows * max_len];
            let mut pasts: Vec<Vec<Vec<f64>>> = vec![Vec::new(); rows];
            for position in 0..max_len {
                let parents = [[0, 1, 2, 3], [1, 0, 2, 2], [0, 0, 3, 2], [1, 1, 2, 3], [0, 1, 3, 3]][position];
                let old = origin.clone();
                for row in 0..rows {
                    origin[row * max_len..][..position].copy_from_slice(&old[parents[row] * max_len..][..position]);
                    origin[row * max_len + position] = row as u32;
                }
                pasts = parents.iter().map(|p| pasts[*p].clone()).collect();
                let mut qkv = numbers(rows * stride, 10 + position as u64);
                let qkv64 = wide(&qkv);
                for row in 0..rows {
                    pasts[row].push(qkv64[row * stride + inner..(row + 1) * stride].to_vec());
                }
                let [q, kv] = [0, inner].map(|start| Columns { data: Shared(qkv.as_mut_ptr()), start, stride });
                let into = Columns { data: Shared(cache.as_mut_ptr()), start: 0, stride: 2 * kv_inner };
                cache_append(rows, kv, 2 * kv_inner, into, max_len, position);
                let (mut out, mut space) = (unwritten(rows * inner), unwritten(cores.threads * shape.max_keys));
                let own = Cache { data: &cache, origin: &origin, max_len, position };
                decode_step(cores, &shape, rows, q, prompt, own, bias.as_deref(), &mut out, &mut space);
                for row in 0..rows {
                    let prompted = (starts[row / beams] as usize..starts[row / beams + 1] as usize)
                        .map(|at| prompt64[at * stride + inner..(at + 1) * stride].to_vec());
                    let all: Vec<Vec<f64>> = prompted.chain(pasts[row].clone()).collect();
                    let query = all.len() - 1;
                    let seen = window.map_or(0, |window| all.len().saturating_sub(window));
                    for head in 0..heads {
                        let at = head / (heads / kv_heads) * d;
                        let past: Vec<_> = (seen..all.len())
                            .map(|key| {
                                let near = head * shape.span() + shape.max_queries - 1 - query + key;
                                let near = bias.as_ref().map_or(0.0, |b| f64::from(b[near]));
                                let scaled = all[key][at..at + d].iter().map(|k| k * f64::from(0.3f32)).collect();
                                (scaled, all[key][kv_inner + at..][..d].to_vec(), near)
                            })
                            .collect();
                        let expected = exact_row(&qkv64[row * stride + head * d..][..d], &past);
                        let got = &out[row * inner + head * d..][..d];
                        assert_close(got, &expected, 3e-6, &format!("step {position}, row {row}, head {head}"));
                    }
                }
            }
        }
    });
}
