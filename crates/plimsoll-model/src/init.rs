//! Random weights, drawn as transformers draws them for T5, from a generator without state.
//!
//! Each element is a function of (seed, parameter name, element index) alone: Philox 4x32 with ten rounds, counted by
//! block of four elements, then Box-Muller in f64 with functions in pure Rust. Invariant: the same on every machine,
//! for any number of threads and any order of filling.

use plimsoll_plan::spec::{Init, Param};

/// Draws a whole parameter.
pub fn fill_random(param: &Param, seed: u64, out: &mut [f32]) {
    fill_random_scaled(param, 1.0, seed, out);
}

/// Draws a whole parameter with everything multiplied by the config's `initializer_factor`.
///
/// # Panics
/// If `out` has another number of elements than the parameter.
pub fn fill_random_scaled(param: &Param, factor: f32, seed: u64, out: &mut [f32]) {
    assert_eq!(out.len(), param.elements(), "`{}` is drawn whole", param.name);
    fill_random_part(param, factor, seed, 0, out);
}

/// Draws the elements of a parameter from index `first` on: what several threads, or several pieces, fill is the same
/// as what one fills.
pub fn fill_random_part(param: &Param, factor: f32, seed: u64, first: usize, out: &mut [f32]) {
    let deviation = match param.init {
        Init::Ones => return out.fill(factor),
        Init::Zeros => return out.fill(0.0),
        Init::Normal(deviation) => f64::from(deviation) * f64::from(factor),
        Init::Uniform(limit) => return fill_uniform(param, limit, seed, first, out),
    };
    let stream = name_hash(&param.name);
    let mut rest = out;
    let mut index = first as u64;
    while !rest.is_empty() {
        let draws = normals(seed, stream, index / 4);
        let skip = (index % 4) as usize;
        let count = (4 - skip).min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        for (x, z) in now.iter_mut().zip(&draws[skip..]) {
            *x = (deviation * z) as f32;
        }
        rest = later;
        index += count as u64;
    }
}

/// Draws between plus and minus `limit`, from the same stream of words.
fn fill_uniform(param: &Param, limit: f32, seed: u64, first: usize, out: &mut [f32]) {
    let (stream, limit) = (name_hash(&param.name), f64::from(limit));
    for (index, x) in (first as u64..).zip(out) {
        let words = words(seed, stream, index / 4);
        let share = (f64::from(words[(index % 4) as usize]) + 0.5) / 4_294_967_296.0;
        *x = ((2.0 * share - 1.0) * limit) as f32;
    }
}

fn words(seed: u64, stream: u64, block: u64) -> [u32; 4] {
    let counter = [block as u32, (block >> 32) as u32, stream as u32, (stream >> 32) as u32];
    philox(counter, [seed as u32, (seed >> 32) as u32])
}

/// Four independent draws from the standard normal distribution.
fn normals(seed: u64, stream: u64, block: u64) -> [f64; 4] {
    let [a, b, c, d] = words(seed, stream, block);
    let [x, y] = box_muller(a, b);
    let [z, w] = box_muller(c, d);
    [x, y, z, w]
}

/// Two uniform numbers, the first in (0, 1], into two normal ones.
fn box_muller(a: u32, b: u32) -> [f64; 2] {
    const STEP: f64 = 1.0 / 4_294_967_296.0;
    let radius = libm::sqrt(-2.0 * libm::log((f64::from(a) + 1.0) * STEP));
    let (sin, cos) = libm::sincos(std::f64::consts::TAU * f64::from(b) * STEP);
    [radius * cos, radius * sin]
}

/// Philox 4x32, ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = u64::from(counter[0]) * 0xD251_1F53;
        let p1 = u64::from(counter[2]) * 0xCD9E_8D57;
        counter =
            [(p1 >> 32) as u32 ^ counter[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ counter[3] ^ key[1], p0 as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// FNV-1a, 64 bits: fixed for ever, unlike the standard library's hasher.
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(name: &str, shape: &[usize], init: Init) -> Param {
        Param { name: name.into(), shape: shape.to_vec(), init }
    }

    fn draw(param: &Param, seed: u64) -> Vec<f32> {
        let mut out = vec![0.0; param.elements()];
        fill_random(param, seed, &mut out);
        out
    }

    #[test]
    fn philox_gives_the_published_known_answers() {
        let answers = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, expected) in answers {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn draws_have_the_moments_of_a_normal_distribution() {
        let out = draw(&param("shared.weight", &[1000, 400], Init::Normal(0.5)), 7);
        let n = out.len() as f64;
        let moment = |k: i32| out.iter().map(|&x| (f64::from(x) / 0.5).powi(k)).sum::<f64>() / n;
        // Five standard errors of each moment at n = 400 000.
        for (k, expected, tolerance) in [(1, 0.0, 0.008), (2, 1.0, 0.012), (3, 0.0, 0.031), (4, 3.0, 0.078)] {
            assert!((moment(k) - expected).abs() < tolerance, "moment {k} is {}", moment(k));
        }
        let neighbours: f64 = out.windows(2).map(|w| f64::from(w[0]) * f64::from(w[1]) / 0.25).sum::<f64>() / n;
        assert!(neighbours.abs() < 0.008, "{neighbours}");
    }

    #[test]
    fn any_cut_into_pieces_draws_the_same() {
        let p = param("encoder.x", &[7, 13], Init::Normal(1.0));
        let whole = draw(&p, 3);
        for piece in [1, 2, 3, 5, 64] {
            let mut parts = vec![0.0; whole.len()];
            for (i, out) in parts.chunks_mut(piece).enumerate().rev() {
                fill_random_part(&p, 1.0, 3, i * piece, out);
            }
            assert_eq!(parts, whole, "pieces of {piece}");
        }
    }

    #[test]
    fn seed_and_name_make_other_draws_and_nothing_else_does() {
        let p = param("a", &[64], Init::Normal(1.0));
        assert_eq!(draw(&p, 1), draw(&p, 1));
        assert_ne!(draw(&p, 1), draw(&p, 2));
        assert_ne!(draw(&p, 1), draw(&p, 1 << 32));
        assert_ne!(draw(&p, 1), draw(&param("b", &[64], Init::Normal(1.0)), 1));
    }

    #[test]
    fn the_first_draws_are_fixed_for_ever() {
        let bits: Vec<u32> =
            draw(&param("shared.weight", &[4], Init::Normal(1.0)), 1).iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [1_063_655_455, 1_072_891_901, 1_074_193_807, 1_034_114_223]);
    }

    #[test]
    fn ones_are_ones_times_the_factor() {
        let p = param("n", &[3], Init::Ones);
        assert_eq!(draw(&p, 9), [1.0; 3]);
        let mut out = [0.0; 3];
        fill_random_scaled(&p, 0.5, 9, &mut out);
        assert_eq!(out, [0.5; 3]);
    }
}
