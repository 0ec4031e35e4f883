//! A card that is held while a run is planned: with the context and the matrix library that the run will have, so that what
//! they cost, on the card and in RAM, can be measured before anything is promised.

use plimsoll_plan::dtype::Dtype;

use super::card::{Card, DeviceArena};
use super::error::CudaError;
use super::lt::{Each, Into, Number, Operand, Products};

/// An open card with everything that costs memory before a program is there.
#[derive(Debug)]
pub struct Hold {
    // Dropped in this order.
    _products: Products,
    card: Card,
    index: usize,
    used: u64,
}

/// Sides of the product that makes the library load what it computes with.
const SIDE: usize = 256;
/// Its scratch.
const SCRATCH: usize = 1 << 20;

impl Hold {
    /// Opens card `index` for activations of a form. The matrix library has computed something in it: only then it holds what
    /// it needs.
    pub fn open(index: usize, form: Dtype) -> Result<Hold, CudaError> {
        let card = Card::open(index)?;
        let mut products = Products::open(false)?;
        let arena = DeviceArena::take(&card, 3 * SIDE * SIDE * 4 + SCRATCH)?;
        let at = |nth: usize| arena.base() + (nth * SIDE * SIDE * 4) as u64;
        products.lend(at(3), SCRATCH);
        let operand = |nth: usize, transposed| Operand { at: at(nth), stride: SIDE, transposed };
        let number = Number::of(form);
        let into = Into { at: at(2), stride: SIDE, number, alpha: 1.0, add: false, bias: None };
        let operands = (operand(0, false), operand(1, true), into);
        products.product(&card, number, (SIDE, SIDE, SIDE), operands, Each::ONE)?;
        card.wait()?;
        drop(arena);
        let used = card.total() - card.free()?;
        Ok(Hold { _products: products, card, index, used })
    }

    /// The card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Which it is.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Memory of the card that is in use now: by the context, and by others.
    pub fn used(&self) -> u64 {
        self.used
    }
}
