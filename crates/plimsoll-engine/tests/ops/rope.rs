//! Rotary positions: the table by its formula, turning as complex numbers turn, and turning back.

use plimsoll_engine::cpu::Shared;
use plimsoll_engine::cpu::attention::Columns;
use plimsoll_engine::cpu::rope::{rope, rope_table};
use plimsoll_plan::spec::{RopeScaling, RopeSpec};

use crate::{assert_close, inner_product, numbers, on_all_cores, unwritten, wide};

const SPECS: [RopeSpec; 3] = [
    RopeSpec { theta: 10_000.0, scaling: RopeScaling::Default },
    RopeSpec { theta: 1e6, scaling: RopeScaling::Linear { factor: 4.0 } },
    RopeSpec {
        theta: 500_000.0,
        scaling: RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        },
    },
];

#[test]
fn the_table_has_cosines_and_sines_of_single_precision_angles() {
    for spec in SPECS {
        for width in [2, 6, 64, 128] {
            let len = 9000;
            let mut table = unwritten(len * width);
            rope_table(&spec, width, len, &mut table);
            let angle = |position: usize, i: usize| f64::from(position as f32 * spec.frequency(i, width));
            for position in [0, 1, 2, 77, 8191, 8999] {
                let exact: Vec<f64> = (0..width / 2)
                    .map(|i| angle(position, i).cos())
                    .chain((0..width / 2).map(|i| angle(position, i).sin()))
                    .collect();
                assert_close(&table[position * width..(position + 1) * width], &exact, 1e-7, "table");
            }
        }
    }
}

#[test]
fn heads_turn_by_their_position_and_back() {
    on_all_cores(|cores| {
        for (heads, width, start, behind) in [(1, 2, 0, 0), (3, 6, 2, 5), (2, 64, 7, 0)] {
            let (len, stride) = (50, start + heads * width + behind);
            let positions: Vec<u32> = (0..37).map(|row| row * 7 % len as u32).collect();
            let mut table = unwritten(len * width);
            rope_table(&SPECS[0], width, len, &mut table);
            let before = numbers(positions.len() * stride, 1);
            let mut turned = before.clone();
            let columns = Columns { data: Shared(turned.as_mut_ptr()), start, stride };
            rope(cores, &positions, heads, width, columns, &table, false);
            let mut exact = wide(&before);
            for (row, position) in positions.iter().enumerate() {
                for head in 0..heads {
                    for i in 0..width / 2 {
                        let angle = f64::from(*position as f32 * SPECS[0].frequency(i, width));
                        let a = row * stride + start + head * width + i;
                        let b = a + width / 2;
                        let (x, y) = (exact[a], exact[b]);
                        exact[a] = x * angle.cos() - y * angle.sin();
                        exact[b] = y * angle.cos() + x * angle.sin();
                    }
                }
            }
            assert_close(&turned, &exact, 3e-7, "turned");
            let columns = Columns { data: Shared(turned.as_mut_ptr()), start, stride };
            rope(cores, &positions, heads, width, columns, &table, true);
            assert_close(&turned, &wide(&before), 5e-7, "turned back");
        }
    });
}

#[test]
fn products_of_turned_queries_and_keys_depend_on_their_distance_alone() {
    on_all_cores(|cores| {
        let (width, len) = (16, 40);
        let mut table = unwritten(len * width);
        rope_table(&SPECS[0], width, len, &mut table);
        let product = |q_at: u32, k_at: u32| {
            let mut pair = [numbers(width, 1), numbers(width, 2)].concat();
            let columns = Columns { data: Shared(pair.as_mut_ptr()), start: 0, stride: width };
            rope(cores, &[q_at, k_at], 1, width, columns, &table, false);
            inner_product(&wide(&pair[..width]), &wide(&pair[width..]))
        };
        assert!((product(9, 4) - product(35, 30)).abs() < 2e-5);
        assert!((product(9, 4) - product(9, 9)).abs() > 1e-2);
    });
}
