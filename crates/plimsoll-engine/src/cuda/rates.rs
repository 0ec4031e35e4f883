//! How fast a card is: large products, its memory, the way to it, and launches. Best of a few, in milliseconds.

use plimsoll_plan::card::CardRates;
use plimsoll_plan::dtype::Dtype;

use super::call::Call;
use super::card::{Address, Card, DeviceArena, Pinned};
use super::error::CudaError;
use super::graph::{self, GraphKey, Graphs};
use super::kernels::{Kernel, Kernels};
use super::lt::{Each, Into, Number, Operand, Products};

/// Sides of the products.
const SIDE: usize = 4096;
/// Memory of the card that measuring takes for a moment: three matrices of f32 and the matrix library's own.
const ARENA: usize = 256 << 20;
const WORKSPACE: usize = 32 << 20;
/// Bytes on the way to the card and back.
const PIECE: usize = 16 << 20;
/// Launches of a captured sequence.
const LAUNCHES: usize = 256;
const TRIES: usize = 5;

/// Measures a card whose activations are of this form. `cache` is where compiled kernels are kept.
pub fn card_rates(card: &Card, form: Dtype, cache: Option<std::path::PathBuf>) -> Result<CardRates, CudaError> {
    let arena = DeviceArena::take(card, ARENA)?;
    // Products of zeros are faster than others.
    card.fill(arena.base(), ARENA, 0x3c)?;
    let half = ARENA / 2;
    let copied = best(card, || card.copy(arena.base(), arena.base() + half as u64, half))?;
    let mut pinned = Pinned::take(PIECE / 4)?;
    // Behind the matrices, which are to stay as they are.
    let behind = arena.base() + (3 * SIDE * SIDE * 4) as u64;
    let sent = best(card, || card.send(behind, pinned.words()))?;
    let fetched = best(card, || card.fetch(behind, pinned.words_mut()))?;
    Ok(CardRates {
        flops: 2.0 * (SIDE as f64).powi(3) / product(card, &arena, Number::of(form))?,
        bandwidth: 2.0 * half as f64 / copied,
        launches: LAUNCHES as f64 / launches(card, arena.base(), cache)?,
        to_card: PIECE as f64 / sent,
        from_card: PIECE as f64 / fetched,
    })
}

/// Seconds of the fastest of a few.
fn best(card: &Card, mut work: impl FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let mut best = f64::INFINITY;
    work()?;
    for _ in 0..TRIES {
        let clock = card.clock()?;
        work()?;
        best = best.min(f64::from(clock.seconds()?));
    }
    Ok(best.max(1e-9))
}

fn product(card: &Card, arena: &DeviceArena, number: Number) -> Result<f64, CudaError> {
    let mut products = Products::open(false)?;
    let matrix = |nth: usize| arena.base() + (nth * SIDE * SIDE * 4) as u64;
    products.lend(matrix(3), WORKSPACE);
    let operand = |nth, transposed| Operand { at: matrix(nth), stride: SIDE, transposed };
    let into = Into { at: matrix(2), stride: SIDE, number, alpha: 1.0, add: false, bias: None };
    let size = (SIDE, SIDE, SIDE);
    let operands = (operand(0, false), operand(1, true), into);
    best(card, || products.product(card, number, size, operands, Each::ONE))
}

/// Seconds of a captured sequence of the smallest kernel.
fn launches(card: &Card, at: Address, cache: Option<std::path::PathBuf>) -> Result<f64, CudaError> {
    let mut kernels = Kernels::new(card, cache);
    let kernel = Kernel { file: "gradient_norm", name: "clip", act: Number::F32, wgt: Number::F32 };
    let function = kernels.function(kernel, 0)?;
    let (mut graphs, key) = (
        Graphs::of_at_most(LAUNCHES),
        GraphKey { tape: 0, rows: Vec::new(), documents: 0, first_micro: true, part: 0, exact: true },
    );
    graph::begin(card)?;
    for _ in 0..LAUNCHES {
        let mut call = Call::new().at(at);
        let (mut pointers, count) = call.pointers();
        if let Err(e) = card.launch(kernel.name, function, (1, 1, 1), (1, 1, 1), 0, &mut pointers[..count]) {
            graph::abandon(card);
            return Err(e);
        }
    }
    graphs.keep(card, key.clone(), LAUNCHES)?;
    best(card, || graphs.launch(card, &key).map(drop))
}
