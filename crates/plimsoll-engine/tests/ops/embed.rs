//! `out = drop(table[ids] + positions[at])`, and the gradients of the tables: rows of one token are added up.

use plimsoll_engine::cpu::embed::{Positions, embed_backward, embed_forward, positions_backward};
use plimsoll_engine::cpu::weights::{Weights, encode};
use plimsoll_plan::dtype::Dtype;

use crate::{assert_close, every_shape, numbers, on_all_cores, unwritten, wide};

const VOCAB: usize = 11;

/// Tokens with repeats; token 3 never occurs.
fn tokens(n: usize) -> Vec<u32> {
    (0..n).map(|i| [0, 10, 7, 7, 2, 0, 10][i * i % 7]).collect()
}

#[test]
fn rows_of_the_table_are_looked_up_and_dropped() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            let (ids, table) = (tokens(ragged.len()), numbers(VOCAB * width, 1));
            let mut out = unwritten(ragged.len() * width);
            embed_forward(cores, ragged.rows(), width, &ids, Weights::f32(&table), None, &mut out, drop);
            let factors = ragged.factors(drop, width);
            let at = |i: usize| f64::from(table[ids[i / width] as usize * width + i % width]) * factors[i];
            assert_close(&out, &(0..out.len()).map(at).collect::<Vec<f64>>(), 1e-7, "out");
        });
    });
}

#[test]
fn gradients_of_one_token_add_up_on_what_is_there() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            let (ids, grad) = (tokens(ragged.len()), numbers(ragged.len() * width, 1));
            let mut table = numbers(VOCAB * width, 2);
            let mut expected = wide(&table);
            for (i, (g, f)) in wide(&grad).iter().zip(ragged.factors(drop, width)).enumerate() {
                expected[ids[i / width] as usize * width + i % width] += g * f;
            }
            let untouched = table[3 * width..4 * width].to_vec();
            embed_backward(cores, ragged.rows(), width, &ids, &grad, &mut table, drop, None);
            assert_close(&table, &expected, 3e-6, "table");
            assert_eq!(table[3 * width..4 * width], untouched);
        });
    });
}

#[test]
fn positions_are_added_before_dropout() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            let (ids, table) = (tokens(ragged.len()), numbers(VOCAB * width, 1));
            let positions = numbers(40 * width, 2);
            let mut out = unwritten(ragged.len() * width);
            let added = Positions { table: Weights::f32(&positions), at: &ragged.position };
            embed_forward(cores, ragged.rows(), width, &ids, Weights::f32(&table), Some(added), &mut out, drop);
            let factors = ragged.factors(drop, width);
            let at = |i: usize| {
                let (row, col) = (i / width, i % width);
                let sum = f64::from(table[ids[row] as usize * width + col])
                    + f64::from(positions[ragged.position[row] as usize * width + col]);
                sum * factors[i]
            };
            assert_close(&out, &(0..out.len()).map(at).collect::<Vec<f64>>(), 3e-7, "out");
        });
    });
}

#[test]
fn gradients_of_one_position_add_up_on_what_is_there() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            let grad = numbers(ragged.len() * width, 1);
            let mut table = numbers(40 * width, 2);
            let mut expected = wide(&table);
            for (i, (g, f)) in wide(&grad).iter().zip(ragged.factors(drop, width)).enumerate() {
                expected[ragged.position[i / width] as usize * width + i % width] += g * f;
            }
            positions_backward(cores, ragged.rows(), width, &ragged.position, &grad, &mut table, drop);
            assert_close(&table, &expected, 3e-6, "positions");
        });
    });
}

#[test]
fn a_stored_table_is_the_table_it_decodes_to() {
    on_all_cores(|cores| {
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::Int8, Dtype::Nf4] {
            every_shape(|ragged, width, drop| {
                let (ids, table) = (tokens(ragged.len()), numbers(VOCAB * width, 1));
                let mut words = unwritten(dtype.words(table.len()));
                encode(cores.simd, dtype, table.len(), 0, &table, &mut words);
                let stored = Weights::new(&words, dtype, table.len());
                let mut decoded = unwritten(table.len());
                stored.decode(cores.simd, 0, &mut decoded);
                let at: Vec<u32> = ragged.position.iter().map(|p| p % VOCAB as u32).collect();
                let look = |table| {
                    let mut out = unwritten(ragged.len() * width);
                    let positions = Some(Positions { table, at: &at });
                    embed_forward(cores, ragged.rows(), width, &ids, table, positions, &mut out, drop);
                    out
                };
                assert_eq!(look(stored), look(Weights::f32(&decoded)), "{dtype:?} {width}");
            });
        }
    });
}
