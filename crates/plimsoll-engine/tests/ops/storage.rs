//! Weights in their storage: what is written comes back, exactly or as near as the format allows.

use plimsoll_engine::cpu::weights::{Weights, Window, encode};
use plimsoll_plan::dtype::{BLOCK, Dtype, GROUP, NF4_LEVELS};
use plimsoll_plan::tiles::Simd;

use crate::{levels, numbers, unwritten};

const ALL: [Dtype; 5] = [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::Int8, Dtype::Nf4];

/// Numbers of a normal distribution: sums of uniform ones come near enough.
fn normal(n: usize, seed: u64) -> Vec<f32> {
    let uniform = numbers(12 * n, seed);
    uniform.chunks_exact(12).map(|twelve| twelve.iter().sum::<f32>() * 0.5).collect()
}

fn stored(simd: Simd, dtype: Dtype, values: &[f32]) -> Vec<f32> {
    let mut words = unwritten(dtype.words(values.len()));
    encode(simd, dtype, values.len(), 0, values, &mut words);
    words
}

fn round_trip(simd: Simd, dtype: Dtype, values: &[f32]) -> Vec<f32> {
    let words = stored(simd, dtype, values);
    let mut out = unwritten(values.len());
    Weights::new(&words, dtype, values.len()).decode(simd, 0, &mut out);
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The number that 16 bits of this format stand for, by its definition.
fn exact_half(half: u16, exponent_bits: u32) -> f64 {
    let mantissa_bits = 15 - exponent_bits;
    let sign = if half >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(half >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let mantissa = f64::from(half & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    let bias = (1 << (exponent_bits - 1)) - 1;
    match exponent {
        0 => sign * mantissa * 2f64.powi(1 - bias),
        e if e == (1 << exponent_bits) - 1 => {
            if mantissa == 0.0 {
                sign * f64::INFINITY
            } else {
                f64::NAN
            }
        }
        e => sign * (1.0 + mantissa) * 2f64.powi(e - bias),
    }
}

#[test]
fn every_pattern_of_sixteen_bits_decodes_to_its_number_and_comes_back() {
    for simd in levels() {
        for (dtype, exponent_bits) in [(Dtype::Bf16, 8), (Dtype::F16, 5)] {
            let words: Vec<f32> = (0..1u32 << 15).map(|i| f32::from_bits((2 * i) | ((2 * i + 1) << 16))).collect();
            let mut values = unwritten(1 << 16);
            Weights::new(&words, dtype, 1 << 16).decode(*simd, 0, &mut values);
            for (half, value) in values.iter().enumerate() {
                let exact = exact_half(half as u16, exponent_bits);
                assert!(
                    f64::from(*value) == exact && value.is_sign_negative() == exact.is_sign_negative()
                        || value.is_nan() && exact.is_nan(),
                    "{dtype:?} {half:#x}: {value} {exact}"
                );
            }
            assert_eq!(bits(&stored(*simd, dtype, &values)), bits(&words), "{simd:?} {dtype:?}");
        }
    }
}

#[test]
fn sixteen_bits_are_the_nearest_and_ties_are_even() {
    let mut values = numbers(4000, 5);
    for (i, v) in values.iter_mut().enumerate() {
        *v *= 2f32.powi(i as i32 % 60 - 40);
    }
    // Halfway between two halves, and a hair beside it; the last that is finite; overflow.
    for base in [1.0f32, 1.5, 0.1, 6e-5, 3e-7, 100.0] {
        for step in [-16i32, -12, -8, -7] {
            let half = base * 2f32.powi(step - 1);
            values.extend([base + half, (base + half).next_up(), (base + half).next_down()]);
        }
    }
    values.extend([0.0, -0.0, 65504.0, 65519.996, 65520.0, 1e30, f32::MAX, f32::MIN_POSITIVE, 1e-45, 2f32.powi(-25)]);
    values.extend([f32::INFINITY, f32::NEG_INFINITY, 2f32.powi(-25).next_up(), 3.0 * 2f32.powi(-25)]);
    for (dtype, exponent_bits) in [(Dtype::Bf16, 8), (Dtype::F16, 5)] {
        let finite = |half: u16| exact_half(half, exponent_bits);
        let infinite: u16 = if dtype == Dtype::Bf16 { 0x7F80 } else { 0x7C00 };
        // Rounding treats the first number past the last as if it existed.
        let next = |half: u16| if half == infinite { 2.0 * finite(half - 1) - finite(half - 2) } else { finite(half) };
        for simd in levels() {
            let words = stored(*simd, dtype, &values);
            for (i, value) in values.iter().enumerate() {
                let half = (words[i / 2].to_bits() >> (16 * (i % 2))) as u16;
                assert_eq!(half >> 15 == 1, value.is_sign_negative());
                let (half, value) = (half & 0x7FFF, f64::from(value.abs()));
                if value.is_infinite() {
                    assert_eq!(half, infinite);
                    continue;
                }
                let apart = (next(half) - value).abs();
                for other in [half.wrapping_sub(1), half + 1] {
                    if other <= infinite {
                        let theirs = (next(other) - value).abs();
                        assert!(apart < theirs || apart == theirs && half % 2 == 0, "{dtype:?} {value:e} {half:#x}");
                    }
                }
            }
        }
    }
}

#[test]
fn any_stretch_of_any_rows_decodes_as_the_whole_does() {
    for simd in levels() {
        for dtype in ALL {
            for n in [1, 2, 63, 64, 65, 1000, GROUP, 2 * GROUP + 777] {
                let values = normal(n, 7);
                let words = stored(*simd, dtype, &values);
                let weights = Weights::new(&words, dtype, n);
                let mut whole = unwritten(n);
                weights.decode(*simd, 0, &mut whole);
                let mut state = 12345usize;
                let mut below = |most: usize| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) % most
                };
                for _ in 0..200 {
                    let first = below(n);
                    let len = 1 + below((n - first).min(300));
                    let mut part = unwritten(len);
                    weights.decode(*simd, first, &mut part);
                    assert_eq!(part, whole[first..first + len], "{simd:?} {dtype:?} {n} {first} {len}");
                    let (stride, width) = (1 + below(150), 1 + below(len));
                    let rows = 1 + (n - first - width) / stride.max(1) % 9;
                    let rows = (1..=rows).rev().find(|r| first + (r - 1) * stride + width <= n).unwrap();
                    let (out_stride, window) = (width + below(5), Window { first, stride, rows, width });
                    let mut out = unwritten((rows - 1) * out_stride + width);
                    weights.decode_rows(*simd, window, &mut out, out_stride);
                    for row in 0..rows {
                        assert_eq!(out[row * out_stride..][..width], whole[first + row * stride..][..width]);
                    }
                }
            }
        }
    }
}

#[test]
fn pieces_and_instruction_levels_store_the_same_words() {
    let n = 3 * GROUP + 129;
    let values = normal(n, 3);
    for dtype in ALL {
        let whole = stored(Simd::Baseline, dtype, &values);
        for simd in levels() {
            assert_eq!(bits(&stored(*simd, dtype, &values)), bits(&whole), "{dtype:?}");
            let mut pieces = unwritten(dtype.words(n));
            for (first, len) in [(2 * GROUP, GROUP + 129), (0, GROUP), (GROUP, GROUP)] {
                encode(*simd, dtype, n, first, &values[first..first + len], &mut pieces);
            }
            assert_eq!(bits(&pieces), bits(&whole), "{dtype:?}");
            let (mut here, mut there) = (unwritten(n), unwritten(n));
            Weights::new(&whole, dtype, n).decode(*simd, 0, &mut here);
            Weights::new(&whole, dtype, n).decode(Simd::Baseline, 0, &mut there);
            assert_eq!(bits(&here), bits(&there), "{dtype:?}");
        }
    }
}

#[test]
fn levels_of_nf4_come_back_as_published() {
    for simd in levels() {
        for absmax in [1.0f32, 0.037, 250.0, 1e-20] {
            let values: Vec<f32> = (0..BLOCK * 5 + 16).map(|i| NF4_LEVELS[(i * 7 + 15) % 16] * absmax).collect();
            assert_eq!(round_trip(*simd, Dtype::Nf4, &values), values, "{simd:?} {absmax}");
        }
    }
}

#[test]
fn nf4_always_takes_the_nearest_level() {
    let n = 2 * GROUP + 70;
    // Blocks of very different sizes, one of them zero.
    let values: Vec<f32> =
        normal(n, 11).iter().enumerate().map(|(i, v)| v * [1.0, 0.01, 3.0, 0.0, 1e-9][i / BLOCK % 5]).collect();
    for simd in levels() {
        let words = stored(*simd, Dtype::Nf4, &values);
        let layout = Dtype::Nf4.layout(n).unwrap();
        let byte = |at: usize| (words[at / 4].to_bits() >> (8 * (at % 4))) as u8;
        let decoded = round_trip(*simd, Dtype::Nf4, &values);
        for (i, (value, decoded)) in values.iter().zip(&decoded).enumerate() {
            let block = i / BLOCK;
            let pair = layout.groups / 4 + 2 * (i / GROUP);
            let (offset, scale) = (words[pair], words[pair + 1]);
            let absmax = offset + f32::from(byte(layout.blocks + block) as i8) * scale;
            let apart = |level: &f32| (f64::from(*level) * f64::from(absmax) - f64::from(*value)).abs();
            let nearest = NF4_LEVELS.iter().map(apart).fold(f64::INFINITY, f64::min);
            let code = byte(i / 2) >> (4 * (i % 2)) & 15;
            assert_eq!(*decoded, NF4_LEVELS[usize::from(code)] * absmax);
            assert!(apart(&NF4_LEVELS[usize::from(code)]) <= nearest + 1e-6 * f64::from(absmax.abs()), "{i}");
            // The absmax is wrong by half a step of its byte at most, the number by half the widest gap on top.
            let end = (block * BLOCK + BLOCK).min(n);
            let true_absmax = values[block * BLOCK..end].iter().fold(0.0f32, |most, v| most.max(v.abs()));
            assert!((true_absmax - absmax).abs() <= 0.5001 * scale, "{block}: {true_absmax} {absmax}");
            let gap = 0.5 * (NF4_LEVELS[1] - NF4_LEVELS[0]);
            assert!((decoded - value).abs() <= gap * true_absmax + 1.001 * scale, "{i}: {value} {decoded}");
            if true_absmax == 0.0 {
                assert_eq!(*decoded, 0.0);
            }
        }
    }
}

#[test]
fn int8_is_within_half_a_step_and_zeros_stay_zeros() {
    let n = GROUP + 1000;
    let values: Vec<f32> =
        normal(n, 13).iter().enumerate().map(|(i, v)| v * [1.0, 1e-3, 40.0, 0.0, 1e-44][i / BLOCK % 5]).collect();
    for simd in levels() {
        let decoded = round_trip(*simd, Dtype::Int8, &values);
        for (values, decoded) in values.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
            let step = values.iter().fold(0.0f32, |most, v| most.max(v.abs())) / 127.0;
            for (value, decoded) in values.iter().zip(decoded) {
                assert!((value - decoded).abs() <= 0.5001 * step + 1e-43, "{value} {decoded}");
            }
        }
    }
}

#[test]
fn normal_numbers_lose_what_their_bits_say() {
    let values = normal(4 * GROUP, 17);
    let size = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let loss = |dtype| {
        let decoded = round_trip(plimsoll_engine::simd::detect(), dtype, &values);
        let apart = decoded.iter().zip(&values).map(|(d, v)| (f64::from(*d) - f64::from(*v)).powi(2)).sum::<f64>();
        (apart / size).sqrt()
    };
    let measured = [Dtype::Bf16, Dtype::F16, Dtype::Int8, Dtype::Nf4].map(loss);
    for (got, most) in measured.iter().zip([0.0021, 0.00027, 0.0075, 0.1]) {
        assert!(*got < most && *got > most * 0.5, "{measured:?}");
    }
}

#[test]
fn all_zero_tensors_and_numbers_that_are_none_neither_panic_nor_hide() {
    for simd in levels() {
        for dtype in ALL {
            for n in [1, 70, GROUP + 5] {
                assert!(round_trip(*simd, dtype, &vec![0.0; n]).iter().all(|v| *v == 0.0), "{dtype:?}");
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut values = normal(n, 1);
                    values[n / 2] = bad;
                    assert!(!round_trip(*simd, dtype, &values)[n / 2].is_finite(), "{dtype:?} {bad}");
                }
                for extreme in [f32::MAX, f32::MIN_POSITIVE, 1e-45] {
                    let values: Vec<f32> = normal(n, 1).iter().map(|v| v.signum() * extreme).collect();
                    let decoded = round_trip(*simd, dtype, &values);
                    assert!(dtype == Dtype::F16 || decoded.iter().all(|v| !v.is_nan()), "{dtype:?} {extreme:e}");
                }
            }
        }
    }
}
