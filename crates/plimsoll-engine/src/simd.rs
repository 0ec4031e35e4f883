//! One body, compiled for each instruction set level, chosen at run time.
//!
//! Kernels are written as plain loops over slices with explicit lane arrays where a sum is taken; `leveled!` compiles
//! the body once with AVX-512, once with AVX2 and FMA, once without. Sums are taken in the same lane order everywhere.

use plimsoll_plan::tiles::Simd;

/// The level of this machine.
pub fn detect() -> Simd {
    if ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"].iter().all(|f| has(f)) && has("fma") {
        Simd::Avx512
    } else if has("avx2") && has("fma") {
        Simd::Avx2
    } else {
        Simd::Baseline
    }
}

fn has(feature: &str) -> bool {
    match feature {
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        "avx512cd" => is_x86_feature_detected!("avx512cd"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        _ => false,
    }
}

/// Defines a function whose body is compiled for each level; the first argument says which one runs.
///
/// The caller passes a level that `detect` returned, or a lower one.
macro_rules! leveled {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(simd: plimsoll_plan::tiles::Simd, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            match simd {
                // SAFETY: the level was detected on this machine, so the features are there.
                plimsoll_plan::tiles::Simd::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                plimsoll_plan::tiles::Simd::Avx2 => unsafe { avx2($($arg),*) },
                plimsoll_plan::tiles::Simd::Baseline => body($($arg),*),
            }
        }
    };
}
pub(crate) use leveled;

/// Lanes of the explicit accumulators.
pub const LANES: usize = 16;

/// Sums the lanes in a fixed order.
#[inline(always)]
pub fn fold(lanes: [f32; LANES]) -> f32 {
    let mut sum = 0.0;
    let mut half = [0.0f32; LANES / 2];
    for i in 0..LANES / 2 {
        half[i] = lanes[i] + lanes[i + LANES / 2];
    }
    for h in half {
        sum += h;
    }
    sum
}

/// Dot product in lane order.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut lanes = [0.0f32; LANES];
    let split = n / LANES * LANES;
    for (x, y) in a[..split].chunks_exact(LANES).zip(b[..split].chunks_exact(LANES)) {
        for i in 0..LANES {
            lanes[i] = x[i].mul_add(y[i], lanes[i]);
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(a[split..].iter().zip(&b[split..])) {
        *lane = x.mul_add(*y, *lane);
    }
    fold(lanes)
}

/// Asks for the cache line at an address that will be read soon. Any address is fine.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint; it reads nothing that the program could see, and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}
