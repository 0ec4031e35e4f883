//! `out = drop(table[ids])`, and the gradient of the table: rows of one token are added up.

use plimsoll_engine::cpu::embed::{embed_backward, embed_forward};

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
            embed_forward(cores, ragged.rows(), width, &ids, &table, &mut out, drop);
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
            embed_backward(cores, ragged.rows(), width, &ids, &grad, &mut table, drop);
            assert_close(&table, &expected, 3e-6, "table");
            assert_eq!(table[3 * width..4 * width], untouched);
        });
    });
}
