//! From stored rows to what samples of one length are made from.
//!
//! Invariant: the same tokens, and the same word on what was left out, that a loader of the original texts would come to. It knows
//! no files and no threads.

use super::maker::MadeAt;
use super::words::Side;
use crate::document::Tokens;

/// Words of a long text that are taken at a time, at least.
pub(crate) const PART_WORDS: usize = 4096;

/// How rows are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    /// Source and target: the length, and at which of those that the set was made at it is.
    sides: [FitSide; 2],
    eos_id: u32,
    splits: bool,
}

#[derive(Clone, Copy, Debug)]
struct FitSide {
    length: usize,
    made: bool,
    longest: bool,
}

impl FitSide {
    /// Whether something is left out of a side of which at most `kept` tokens are kept.
    fn cut(&self, side: &Side<'_>, kept: usize) -> bool {
        let cuts = side.cuts();
        match (self.made, self.longest) {
            (true, _) => cuts.at_made,
            (false, true) => cuts.at_longest,
            (false, false) => side.len() > kept,
        }
    }
}

impl Fit {
    /// To samples of these lengths, which the set serves.
    pub fn new(at: [MadeAt; 2], lengths: [usize; 2], eos_id: u32, splits: bool) -> Fit {
        let side = |n: usize| {
            let (MadeAt { made, longest }, length) = (at[n], lengths[n]);
            FitSide { length, made: length == made, longest: length == longest }
        };
        Fit { sides: [side(0), side(1)], eos_id, splits }
    }

    /// Replaces `out` by the tokens of both sides of a pair, each with its end; says whether something is left out.
    pub fn pair(&self, row: [Side<'_>; 2], out: [&mut Vec<u32>; 2]) -> bool {
        let mut cut = false;
        for ((fit, side), out) in self.sides.iter().zip(row).zip(out) {
            let kept = side.len().min(fit.length - 1);
            out.clear();
            side.copy(0, kept, out);
            out.push(self.eos_id);
            cut |= fit.cut(&side, kept);
        }
        cut
    }

    /// Replaces `out` by the tokens of a document from `start` on; where the next part of it begins, if there is one.
    pub fn document(&self, row: [Side<'_>; 2], start: usize, out: &mut Tokens) -> Option<usize> {
        let (fit, side) = (&self.sides[0], row[0]);
        out.words.clear();
        out.cut = false;
        if self.splits {
            let end = side.len().min(start + PART_WORDS.max(fit.length + 1));
            side.copy(start.min(end), end, &mut out.words);
            return (end < side.len()).then_some(end);
        }
        let kept = side.len().min(fit.length + 1);
        side.copy(0, kept, &mut out.words);
        out.cut = fit.cut(&side, kept);
        None
    }
}
