//! The arena while it is filled: what lies where, and from when to when; finds the lowest offset that is free for long enough.
//!
//! A tape of a whole update has tens of thousands of tensors, nearly all of them short-lived. Those are kept by the stretch
//! of time that they live in, so that a short-lived one meets only its neighbours and the few that live long. A long-lived
//! one sees the stretches that it covers as the union of what lies in them.

/// Ops of a stretch of time.
const CELL: usize = 64;
/// Stretches whose unions are kept together as well.
const CELLS: usize = 16;

#[derive(Clone, Copy)]
struct Held {
    start: usize,
    end: usize,
    first: usize,
    last: usize,
}

/// Offsets in use, as disjoint ranges in order.
#[derive(Clone, Default)]
struct Union(Vec<(usize, usize)>);

impl Union {
    fn add(&mut self, start: usize, end: usize) {
        let list = &mut self.0;
        let from = list.partition_point(|r| r.1 < start);
        let to = list.partition_point(|r| r.0 <= end);
        if from == to {
            list.insert(from, (start, end));
            return;
        }
        let merged = (list[from].0.min(start), list[to - 1].1.max(end));
        list[from] = merged;
        list.drain(from + 1..to);
    }
}

/// Everything placed so far.
pub(crate) struct Shelf {
    /// Those that live for more than two stretches, by offset.
    long: Vec<Held>,
    /// The others, in each stretch that they touch.
    short: Vec<Vec<Held>>,
    unions: Vec<Union>,
    wide_unions: Vec<Union>,
    found: Vec<(usize, usize)>,
}

impl Shelf {
    /// For a tape of so many ops.
    pub fn new(ops: usize) -> Shelf {
        let cells = ops.div_ceil(CELL) + 1;
        Shelf {
            long: Vec::new(),
            short: vec![Vec::new(); cells],
            unions: vec![Union::default(); cells],
            wide_unions: vec![Union::default(); cells.div_ceil(CELLS)],
            found: Vec::new(),
        }
    }

    /// Takes the lowest offset that is free over a whole lifetime.
    pub fn put(&mut self, first: usize, last: usize, need: usize) -> usize {
        let (from, to) = (first / CELL, last / CELL);
        self.meet(first, last);
        let at = self.lowest(first, last, need);
        let held = Held { start: at, end: at + need, first, last };
        if to - from > 2 {
            let slot = self.long.partition_point(|h| h.start < at);
            self.long.insert(slot, held);
        } else {
            for cell in from..=to {
                self.short[cell].push(held);
                self.unions[cell].add(at, at + need);
                self.wide_unions[cell / CELLS].add(at, at + need);
            }
        }
        at
    }

    /// Finds the short-lived ones that live at some time from `first` to `last`, by offset.
    fn meet(&mut self, first: usize, last: usize) {
        let Shelf { short, unions, wide_unions, found, .. } = self;
        let (from, to) = (first / CELL, last / CELL);
        found.clear();
        let mut exact = |cell: usize| {
            let meets = short[cell].iter().filter(|h| h.first <= last && first <= h.last);
            found.extend(meets.map(|h| (h.start, h.end)));
        };
        exact(from);
        if to > from {
            exact(to);
        }
        let mut cell = from + 1;
        while cell < to {
            if cell.is_multiple_of(CELLS) && cell + CELLS <= to {
                found.extend_from_slice(&wide_unions[cell / CELLS].0);
                cell += CELLS;
            } else {
                found.extend_from_slice(&unions[cell].0);
                cell += 1;
            }
        }
        found.sort_unstable();
    }

    /// The lowest gap between those found and the long-lived ones.
    fn lowest(&self, first: usize, last: usize, need: usize) -> usize {
        let mut at = 0;
        let mut found = self.found.iter().copied().peekable();
        let mut long =
            self.long.iter().filter(|h| h.first <= last && first <= h.last).map(|h| (h.start, h.end)).peekable();
        loop {
            let next = match (found.peek(), long.peek()) {
                (Some(a), Some(b)) if a <= b => found.next(),
                (Some(_), None) => found.next(),
                (_, Some(_)) => long.next(),
                (None, None) => None,
            };
            let Some((start, end)) = next else { return at };
            if at + need <= start {
                return at;
            }
            at = at.max(end);
        }
    }
}
