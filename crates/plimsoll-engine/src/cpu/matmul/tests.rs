use plimsoll_plan::dtype::Dtype;

use super::*;
use crate::cpu::weights::{Weights, encode};

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
    let out = Output { add, scale: 0.5, ..Output::rows(c.as_mut_ptr(), n) };
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
        let out = Output::rows(c.as_mut_ptr(), n);
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

/// Any product with everything that can be said about it.
#[derive(Clone, Copy)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    /// W is `[n, k]` and B is W^T.
    transposed: bool,
    biased: bool,
    /// What rows of A, W and C have behind their end.
    slack: usize,
}

impl Case {
    fn w_stride(&self) -> usize {
        (if self.transposed { self.k } else { self.n }) + self.slack
    }

    fn w_elements(&self) -> usize {
        (if self.transposed { self.n } else { self.k }) * self.w_stride() + 5
    }

    fn bias(&self) -> Option<Vec<f32>> {
        self.biased.then(|| numbers(self.n, 4))
    }

    /// C with its slack, which is 7 throughout; W begins at element 5.
    fn product(&self, simd: Simd, threads: usize, weights: Weights) -> Vec<f32> {
        let Case { m, n, k, slack, .. } = *self;
        let (a, bias) = (numbers(m * (k + slack), 1), self.bias());
        let mut c = vec![7.0f32; m * (n + slack)];
        let mut workspace = vec![f32::NAN; matmul_workspace(&Tiles::of(simd), threads, n, k)];
        let b = Right::weights(weights, 5, self.w_stride());
        let b = if self.transposed { b.transposed() } else { b };
        let bias = bias.as_ref().map(|b| b.as_ptr());
        let out = Output { scale: 0.5, bias, ..Output::rows(c.as_mut_ptr(), n + slack) };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (space, len, a) = (Shared(workspace.as_mut_ptr()), workspace.len(), Matrix::rows(&a, k + slack));
        let run = || {
            let (out, b) = ({ out }, { b });
            // SAFETY: the matrices have the stated sizes; the workspace is ours alone.
            unsafe { matmul(simd, threads, m, n, k, a, b, out, { space }.slice(0, len)) };
        };
        pool.install(run);
        c
    }

    fn check(&self, got: &[f32], w: &[f32], what: &str) {
        let Case { m, n, k, slack, .. } = *self;
        let (a, bias) = (numbers(m * (k + slack), 1), self.bias());
        for i in 0..m {
            for j in 0..n + slack {
                let at = |d: usize| 5 + if self.transposed { j * self.w_stride() + d } else { d * self.w_stride() + j };
                let term = |d: usize| f64::from(a[i * (k + slack) + d]) * f64::from(w[at(d)]);
                let exact = if j < n {
                    0.5 * (0..k).map(term).sum::<f64>() + bias.as_ref().map_or(0.0, |b| f64::from(b[j]))
                } else {
                    7.0
                };
                let got = f64::from(got[i * (n + slack) + j]);
                assert!((got - exact).abs() < 1e-6 * (k as f64 + 10.0), "{what} {m}x{n}x{k} {i} {j}: {got} {exact}");
                assert!(j < n || got == 7.0, "what lies beside C is left alone");
            }
        }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (m, n, k) in
        [(1, 1, 1), (1, 70, 1100), (3, 130, 600), (16, 65, 33), (17, 65, 33), (40, 200, 700), (20, 2100, 40), (4, 9, 0)]
    {
        for transposed in [false, true] {
            for (biased, slack) in [(false, 0), (true, 0), (true, 3), (false, 50)] {
                cases.push(Case { m, n, k, transposed, biased, slack });
            }
        }
    }
    cases
}

const DTYPES: [Dtype; 5] = [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::Int8, Dtype::Nf4];

#[test]
fn stored_weights_give_the_bits_of_the_numbers_they_decode_to() {
    for simd in levels() {
        for case in cases() {
            let w = numbers(case.w_elements(), 2);
            for dtype in DTYPES {
                let mut words = vec![f32::NAN; dtype.words(w.len())];
                encode(simd, dtype, w.len(), 0, &w, &mut words);
                let stored = Weights::new(&words, dtype, w.len());
                let mut decoded = vec![f32::NAN; w.len()];
                stored.decode(simd, 0, &mut decoded);
                let (got, expected) = (case.product(simd, 2, stored), case.product(simd, 2, Weights::f32(&decoded)));
                assert_eq!(got, expected, "{simd:?} {dtype:?}");
                case.check(&got, &decoded, &format!("{simd:?} {dtype:?}"));
            }
        }
    }
}

#[test]
fn stored_products_do_not_depend_on_the_number_of_threads() {
    let simd = crate::simd::detect();
    for case in cases() {
        let w = numbers(case.w_elements(), 2);
        for dtype in [Dtype::Bf16, Dtype::Nf4] {
            let mut words = vec![0.0; dtype.words(w.len())];
            encode(simd, dtype, w.len(), 0, &w, &mut words);
            let stored = Weights::new(&words, dtype, w.len());
            let one = case.product(simd, 1, stored);
            for threads in [2, 3, 4] {
                assert_eq!(one, case.product(simd, threads, stored), "{dtype:?}");
            }
        }
    }
}

#[test]
fn a_product_of_few_rows_has_the_bits_of_its_rows_among_many_where_both_are_packed() {
    for simd in levels() {
        let many = Case { m: 40, n: 200, k: 700, transposed: false, biased: true, slack: 3 };
        let w = numbers(many.w_elements(), 2);
        let few = Case { m: 9, ..many };
        let (all, some) = (many.product(simd, 2, Weights::f32(&w)), few.product(simd, 2, Weights::f32(&w)));
        assert_eq!(all[..some.len()], some, "{simd:?}");
    }
}
