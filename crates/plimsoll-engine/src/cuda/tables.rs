//! What ops read on the card besides tensors: angles, buckets, parameters of updates. Computed once, at the start, by the
//! CPU's own functions.

use plimsoll_plan::device::{MAP_WORDS, UPDATE_CHUNK, group_params, param_scratch, read_form, update_groups};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::{AttentionShape, BiasBuckets, Op, SeriesOp};
use plimsoll_plan::place::aligned;
use plimsoll_plan::program::{Placed, Program};

use super::call::{MATRIX, ParamEntry, SPLIT, words_of};
use super::card::Address;
use crate::cpu::adamw8bit::CodeMap;
use crate::cpu::bias::bucket;
use crate::cpu::rope::rope_table;

/// Chunks that Adafactor's column sums are cut into.
const COLUMN_CHUNKS: usize = 16;

/// What an op reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Table {
    /// Nothing.
    None,
    /// Angles or buckets, so many words.
    Words(Address, usize),
    /// A group of updates.
    Group(Group),
    /// An update that the first of its group does along.
    Grouped,
}

/// Updates that are one launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub params: Address,
    pub count: usize,
    /// First blocks of each parameter: for elements, for rows, for columns; and how many there are.
    pub blocks: [(Address, usize); 3],
}

/// Tables of all tapes, as they lie on the card.
#[derive(Debug)]
pub(crate) struct Tables {
    /// Their content.
    pub words: Vec<u32>,
    base: Address,
    /// The maps of 8-bit moments.
    pub maps: Address,
}

/// The addresses of a program on a card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses<'a> {
    pub program: &'a Program,
    pub placed: &'a Placed,
    pub base: Address,
}

impl Addresses<'_> {
    /// A tensor's first byte.
    pub fn of(&self, id: plimsoll_plan::tape::Id) -> Address {
        let words = match self.placed.tape.own(id) {
            None => self.program.store_offsets[id.0 as usize],
            Some(own) => self.program.parts.store + self.placed.places.offsets[own],
        };
        self.base + 4 * words as u64
    }

    /// Scratch beside the matrix library's.
    pub fn scratch(&self) -> Address {
        let parts = &self.program.parts;
        let products = self.program.device.cuda().map_or(0, |form| aligned(form.products / 4));
        self.base + 4 * (parts.store + parts.transient + products) as u64
    }
}

impl Tables {
    /// Empty tables that will lie at `base`.
    pub fn at(base: Address) -> Tables {
        let maps = [CodeMap::new(true), CodeMap::new(false)];
        let words: Vec<u32> = maps.iter().flat_map(|map| map.values.map(f32::to_bits)).collect();
        assert_eq!(words.len(), MAP_WORDS);
        Tables { words, base, maps: base }
    }

    fn put(&mut self, words: &[u32]) -> Address {
        let at = self.base + 4 * self.words.len() as u64;
        self.words.extend_from_slice(words);
        self.words.resize(aligned(self.words.len()), 0);
        at
    }

    /// Tables of one tape, one for each op.
    pub fn add(&mut self, addresses: Addresses) -> Vec<Table> {
        let tape = &addresses.placed.tape;
        let mut list: Vec<Table> = tape
            .ops
            .iter()
            .map(|op| match op {
                Op::RopeTable { rope, width, len, .. } => {
                    let mut values = vec![0.0f32; len * width];
                    rope_table(rope, *width, *len, &mut values);
                    Table::Words(self.put(words_of(&values)), values.len())
                }
                Op::BiasExpand { shape, buckets, .. } | Op::BiasCollect { shape, buckets, .. } => {
                    let values = bucket_list(shape, buckets);
                    Table::Words(self.put(&values), values.len())
                }
                Op::Series(SeriesOp::Loss { terms, .. }) => {
                    Table::Words(self.put(words_of(&terms.class_weights)), terms.class_weights.len())
                }
                _ => Table::None,
            })
            .collect();
        for group in update_groups(tape) {
            let mut scratch = addresses.scratch();
            let (mut params, mut blocks) = (Vec::new(), [vec![0u32], vec![0u32], vec![0u32]]);
            for (op, param) in tape.ops[group.clone()].iter().zip(group_params(tape, &group)) {
                let entry = entry(op, param, addresses, scratch);
                scratch += 4 * param_scratch(&addresses.program.store, param) as u64;
                let matrix = entry.flags & MATRIX != 0;
                let counts = [
                    entry.elements.div_ceil(UPDATE_CHUNK as u64) as u32,
                    if matrix { entry.rows.div_ceil(8) } else { 1 },
                    if matrix { COLUMN_CHUNKS as u32 * entry.cols.div_ceil(64) } else { 0 },
                ];
                for (list, count) in blocks.iter_mut().zip(counts) {
                    list.push(list.last().copied().unwrap_or(0) + count);
                }
                params.push(entry);
            }
            let at = self.put(words_of(&params));
            let blocks = blocks.map(|list| (self.put(&list), list.last().copied().unwrap_or(0) as usize));
            list[group.start] = Table::Group(Group { params: at, count: params.len(), blocks });
            list[group.start + 1..group.end].fill(Table::Grouped);
        }
        list
    }
}

/// Bucket of each distance, from the most negative.
fn bucket_list(shape: &AttentionShape, buckets: &BiasBuckets) -> Vec<u32> {
    let first = shape.max_queries as i64 - 1;
    let of = |at: usize| bucket(at as i64 - first, !shape.causal, buckets.count, buckets.max_distance);
    (0..shape.span()).map(|at| of(at) as u32).collect()
}

fn entry(op: &Op, param: usize, addresses: Addresses, scratch: Address) -> ParamEntry {
    let Op::Update { weight, grad, state, .. } = op else { return ParamEntry::default() };
    let store = &addresses.program.store;
    let place = &store.params[param];
    let shape = store.param(param);
    let read = read_form(store, *weight);
    let of = |id, width: usize| addresses.of(id) + (place.offset * width) as u64;
    let split = store.is_split(*weight);
    let (master, weight) = match store.dtype(*weight) {
        Dtype::F32 if split => (of(*weight, 2), of(read, 2)),
        Dtype::F32 if read != *weight => (of(*weight, 4), of(read, 2)),
        Dtype::F32 => (of(*weight, 4), 0),
        _ => (0, of(*weight, 2)),
    };
    let mut states = [0; 3];
    let matrix = place.param.shape.len() == 2;
    let mut given = state.iter().map(|id| addresses.of(*id));
    // A vector of Adafactor's has one second moment; its average stays in the third place.
    let names = if is_adafactor_vector(store, param, state.len(), matrix) { &[0, 2][..] } else { &[0, 1, 2][..] };
    for (slot, at) in names.iter().zip(&mut given) {
        states[*slot] = at;
    }
    ParamEntry {
        master,
        weight,
        grad: of(*grad, 4),
        state: states,
        scratch,
        elements: place.param.elements() as u64,
        rows: shape.rows as u32,
        cols: shape.cols as u32,
        key: param as u32,
        flags: (u32::from(matrix) * MATRIX) | (u32::from(split) * SPLIT),
    }
}

/// Whether the first two states of a vector are a whole second moment and an average: its first is named so.
fn is_adafactor_vector(store: &plimsoll_plan::tape::Store, param: usize, states: usize, matrix: bool) -> bool {
    let first = store.params[param].state.first().map(|id| store.tensors[id.0 as usize].name.as_str());
    !matrix && states == 2 && first.is_some_and(|name| name.ends_with("exp_avg_sq"))
}
