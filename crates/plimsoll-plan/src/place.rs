//! Places: an offset in the arena for each tensor of a tape, such that tensors that live at the same time never overlap.
//!
//! Largest first, each at the lowest offset that is free over its whole lifetime. The arena's size and the engine's
//! addresses both come from here, so the number cannot drift from the deed.

use crate::shelf::Shelf;
use crate::tape::Tape;

/// Elements that every offset is a multiple of: 64 bytes, a cache line.
pub const ALIGN_WORDS: usize = 16;

/// Rounds a number of elements up to the alignment.
pub fn aligned(words: usize) -> usize {
    words.div_ceil(ALIGN_WORDS) * ALIGN_WORDS
}

/// Where the tensors of one tape lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Offset of each of the tape's own tensors, in elements.
    pub offsets: Vec<usize>,
    /// Elements needed for all of them.
    pub words: usize,
}

/// Elements live at each op.
pub fn live(tape: &Tape) -> Vec<usize> {
    let mut change = vec![0isize; tape.ops.len() + 1];
    for (tensor, span) in tape.tensors.iter().zip(tape.lifetimes()) {
        if let Some((first, last)) = span {
            change[first] += aligned(tensor.words) as isize;
            change[last + 1] -= aligned(tensor.words) as isize;
        }
    }
    let mut now = 0;
    let add = |change: &isize| {
        now += change;
        now as usize
    };
    change[..tape.ops.len()].iter().map(add).collect()
}

/// Gives every tensor of the tape a place.
pub fn place(tape: &Tape) -> Places {
    let spans = tape.lifetimes();
    let mut order: Vec<usize> = (0..spans.len()).filter(|i| spans[*i].is_some()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(tape.tensors[*i].words), spans[*i], *i));
    let mut offsets = vec![0; spans.len()];
    let mut shelf = Shelf::new(tape.ops.len());
    let mut words = 0;
    for index in order {
        let (first, last) = spans[index].expect("only tensors with a lifetime are ordered");
        let need = aligned(tape.tensors[index].words);
        let at = shelf.put(first, last, need);
        offsets[index] = at;
        words = words.max(at + need);
    }
    Places { offsets, words }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Op, Write};
    use crate::tape::{Role, Store};
    use proptest::prelude::*;

    /// A toy tape: each tensor is touched at the two given moments.
    fn toy(spans: &[(usize, usize, usize)]) -> Tape {
        let mut tape = Tape::over(&Store::default());
        let last = spans.iter().map(|s| s.1).max().unwrap_or(0);
        let ids: Vec<_> = spans.iter().map(|(_, _, words)| tape.tensor("t", *words, Role::Activation)).collect();
        for at in 0..=last {
            let touched =
                spans.iter().zip(&ids).filter(|((a, b, _), _)| *a == at || *b == at).map(|(_, id)| *id).collect();
            tape.push(Op::GradientNorm { gradients: touched });
        }
        tape
    }

    #[test]
    fn tensors_that_never_meet_share_one_place() {
        let places = place(&toy(&[(0, 1, 64), (2, 3, 64), (4, 5, 32)]));
        assert_eq!(places.words, 64);
        assert_eq!(places.offsets, vec![0, 0, 0]);
    }

    #[test]
    fn a_zeroed_tensor_counts_as_touched() {
        let mut tape = Tape::over(&Store::default());
        let id = tape.tensor("z", 10, Role::Activation);
        tape.push(Op::Zero { tensor: id, write: Write::Set });
        assert_eq!(tape.lifetimes(), vec![Some((0, 0))]);
        assert_eq!(place(&tape).words, aligned(10));
    }

    /// The lowest free offset by looking at everything that is placed.
    fn plain(spans: &[(usize, usize, usize)]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..spans.len()).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(spans[*i].2), (spans[*i].0, spans[*i].1), *i));
        let mut offsets = vec![0; spans.len()];
        let mut placed: Vec<usize> = Vec::new();
        for i in order {
            let (first, last, words) = spans[i];
            placed.sort_by_key(|j| offsets[*j]);
            let mut at = 0;
            for j in placed.iter().filter(|j| spans[**j].0 <= last && first <= spans[**j].1) {
                if at + aligned(words) <= offsets[*j] {
                    break;
                }
                at = at.max(offsets[*j] + aligned(spans[*j].2));
            }
            offsets[i] = at;
            placed.push(i);
        }
        offsets
    }

    proptest! {
        #[test]
        fn every_tensor_gets_the_lowest_free_offset(
            spans in prop::collection::vec((0usize..3000, prop_oneof![0usize..20, 0usize..3000], 1usize..300), 1..120),
        ) {
            let spans: Vec<_> = spans.into_iter().map(|(a, long, w)| (a, (a + long).min(2999), w)).collect();
            prop_assert_eq!(place(&toy(&spans)).offsets, plain(&spans));
        }

        #[test]
        fn no_two_living_tensors_overlap(spans in prop::collection::vec((0usize..40, 0usize..40, 1usize..500), 1..60)) {
            let spans: Vec<_> = spans.into_iter().map(|(a, b, w)| (a.min(b), a.max(b), w)).collect();
            let tape = toy(&spans);
            let places = place(&tape);
            for (i, a) in spans.iter().enumerate() {
                prop_assert!(places.offsets[i] + a.2 <= places.words);
                prop_assert_eq!(places.offsets[i] % ALIGN_WORDS, 0);
                for (j, b) in spans.iter().enumerate().skip(i + 1) {
                    let together = a.0 <= b.1 && b.0 <= a.1;
                    let apart = places.offsets[i] + a.2 <= places.offsets[j] || places.offsets[j] + b.2 <= places.offsets[i];
                    prop_assert!(!together || apart, "{i} and {j}");
                }
            }
            prop_assert!(places.words >= live(&tape).into_iter().max().unwrap_or(0));
        }
    }
}
