//! T5's relative position bias: a bucket table expanded by distance, and its gradient collected.

use plimsoll_engine::cpu::bias::{BiasSpec, bias_collect, bias_expand, bucket};
use plimsoll_plan::op::{AttentionShape, Side, Write};

use crate::{assert_close, inner_product, numbers, unwritten, wide};

fn shape(queries: usize, keys: usize, causal: bool) -> AttentionShape {
    let side = if causal { Side::Target } else { Side::Source };
    AttentionShape {
        queries: side,
        keys: side,
        heads: 3,
        kv_heads: 3,
        d_kv: 4,
        scale: 1.0,
        causal,
        window: None,
        max_queries: queries,
        max_keys: keys,
    }
}

const SHAPES: [(usize, usize, bool); 6] =
    [(1, 1, false), (1, 1, true), (9, 9, true), (30, 30, false), (150, 150, true), (7, 20, false)];
const SPECS: [BiasSpec; 3] = [
    BiasSpec { buckets: 32, max_distance: 128 },
    BiasSpec { buckets: 8, max_distance: 20 },
    BiasSpec { buckets: 5, max_distance: 11 },
];

#[test]
fn the_bias_of_a_pair_is_its_buckets() {
    for (queries, keys, causal) in SHAPES {
        for spec in SPECS {
            let shape = shape(queries, keys, causal);
            let (table, mut delta) = (numbers(spec.buckets * shape.heads, 1), unwritten(shape.heads * shape.span()));
            bias_expand(&shape, spec, &table, &mut delta);
            for head in 0..shape.heads {
                for query in 0..queries {
                    for key in 0..keys {
                        let row = bucket(key as i64 - query as i64, !causal, spec.buckets, spec.max_distance);
                        let got = delta[head * shape.span() + key + queries - 1 - query];
                        assert_eq!(got, table[row * shape.heads + head], "query {query}, key {key}");
                    }
                }
            }
        }
    }
}

#[test]
fn collecting_is_the_transpose_of_expanding() {
    for (queries, keys, causal) in SHAPES {
        for spec in SPECS {
            let shape = shape(queries, keys, causal);
            let (table, ddelta) = (numbers(spec.buckets * shape.heads, 1), numbers(shape.heads * shape.span(), 2));
            let (mut delta, mut grad) = (unwritten(ddelta.len()), unwritten(table.len()));
            bias_expand(&shape, spec, &table, &mut delta);
            bias_collect(&shape, spec, &ddelta, &mut grad, Write::Set);
            let (there, back) =
                (inner_product(&wide(&delta), &wide(&ddelta)), inner_product(&wide(&table), &wide(&grad)));
            assert!((there - back).abs() < 1e-4, "{there} and {back}");
            let before = numbers(table.len(), 3);
            let mut added = before.clone();
            bias_collect(&shape, spec, &ddelta, &mut added, Write::Add);
            let expected: Vec<f64> = wide(&grad).iter().zip(wide(&before)).map(|(g, b)| g + b).collect();
            assert_close(&added, &expected, 1e-6, "added");
        }
    }
}

/// The bucket in whole numbers where that is possible: near distances have their own, then no bucket ever falls back,
/// and from `max_distance` on there is one bucket.
#[test]
fn buckets_are_exact_near_rise_with_distance_and_end_at_the_last() {
    for spec in SPECS {
        for bidirectional in [true, false] {
            let half = if bidirectional { spec.buckets / 2 } else { spec.buckets };
            let at = |distance: i64| bucket(distance, bidirectional, spec.buckets, spec.max_distance);
            for far in 0..400i64 {
                let near = far < (half / 2) as i64;
                assert!(!near || at(-far) == far as usize, "{far}");
                assert!(at(-far) <= at(-far - 1) && at(-far) < half);
                assert!((far as usize) < spec.max_distance || at(-far) == half - 1);
                let ahead = if bidirectional && far > 0 { half + at(-far) } else { 0 };
                assert_eq!(at(far), ahead, "{far}");
            }
        }
    }
}
