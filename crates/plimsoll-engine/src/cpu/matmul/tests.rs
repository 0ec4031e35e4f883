use super::*;

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn levels() -> Vec<Simd> {
    match crate::simd::detect() {
        Simd::Avx512 => vec![Simd::Avx512, Simd::Avx2, Simd::Baseline],
        Simd::Avx2 => vec![Simd::Avx2, Simd::Baseline],
        Simd::Baseline => vec![Simd::Baseline],
    }
}

fn run(
    simd: Simd,
    threads: usize,
    m: usize,
    n: usize,
    k: usize,
    layout: (bool, bool),
    add: bool,
) -> (Vec<f32>, Vec<f64>) {
    let (a, b, start) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
    let at_a = |i: usize, d: usize| if layout.0 { d * m + i } else { i * k + d };
    let at_b = |d: usize, j: usize| if layout.1 { j * k + d } else { d * n + j };
    let mut exact = vec![0.0f64; m * n];
    for i in 0..m {
        for j in 0..n {
            let sum: f64 = (0..k).map(|d| f64::from(a[at_a(i, d)]) * f64::from(b[at_b(d, j)])).sum();
            exact[i * n + j] = sum * 0.5 + if add { f64::from(start[i * n + j]) } else { 0.0 };
        }
    }
    let ma = if layout.0 { Matrix::rows(&a, m).transposed() } else { Matrix::rows(&a, k) };
    let mb = if layout.1 { Matrix::rows(&b, k).transposed() } else { Matrix::rows(&b, n) };
    let mut c = start.clone();
    let mut workspace = vec![f32::NAN; matmul_workspace(&Tiles::of(simd), threads, n, k)];
    let out = Output { data: c.as_mut_ptr(), stride: n, add, scale: 0.5 };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let space = Shared(workspace.as_mut_ptr());
    let len = workspace.len();
    // SAFETY: the matrices have the stated sizes; the workspace is ours alone.
    pool.install(move || unsafe { matmul(simd, threads, m, n, k, ma, mb, out, { space }.slice(0, len)) });
    (c, exact)
}

#[test]
fn products_agree_with_double_precision_in_every_layout() {
    for simd in levels() {
        for (m, n, k) in
            [(1, 1, 1), (7, 65, 33), (13, 130, 700), (100, 64, 5), (6, 2100, 40), (50, 17, 16), (3, 64, 1100)]
        {
            for layout in [(false, false), (true, false), (false, true), (true, true)] {
                for add in [false, true] {
                    let (got, exact) = run(simd, 2, m, n, k, layout, add);
                    for (g, e) in got.iter().zip(&exact) {
                        assert!(
                            (f64::from(*g) - e).abs() < 1e-6 * (k as f64 + 10.0),
                            "{simd:?} {m}x{n}x{k} {layout:?} {add}: {g} {e}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let simd = crate::simd::detect();
    for (m, n, k) in [(100, 200, 300), (5, 3000, 600), (33, 64, 2000)] {
        let one = run(simd, 1, m, n, k, (false, true), true).0;
        for threads in [2, 3, 4] {
            assert_eq!(one, run(simd, threads, m, n, k, (false, true), true).0);
        }
    }
}

#[test]
fn a_packed_product_agrees() {
    for simd in levels() {
        let (m, n, k) = (20, 70, 90);
        let (a, b) = (numbers(m * k, 1), numbers(n * k, 2));
        let tiles = Tiles::of(simd);
        let mut packed = vec![0.0; tiles.packed_words(n, k)];
        let (mut c, mut strip) = (vec![0.0; m * n], vec![0.0; tiles.row_block_words(k)]);
        let out = Output { data: c.as_mut_ptr(), stride: n, add: false, scale: 1.0 };
        // SAFETY: sizes as stated.
        unsafe {
            let packed = pack(simd, n, k, Matrix::rows(&b, k).transposed(), &mut packed);
            matmul_packed(simd, m, n, Matrix::rows(&a, m).transposed(), packed, out, &mut strip);
        }
        for i in 0..m {
            for j in 0..n {
                let exact: f64 = (0..k).map(|d| f64::from(a[d * m + i]) * f64::from(b[j * k + d])).sum();
                assert!((f64::from(c[i * n + j]) - exact).abs() < 1e-4);
            }
        }
    }
}
