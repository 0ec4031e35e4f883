//! The loader's heap, as a formula over the facts found when the data were opened.
//!
//! Invariant: an upper bound for any run of the loader; `tests/heap.rs` holds it against a counting allocator. Stacks
//! ([`crate::LOADER_STACK_BYTES`] a thread) and the tokenizer's own tables, which are measured, are not in it.

use plimsoll_plan::batch::BatchShape;

use crate::assemble::Assembler;
use crate::pair_groups::PairAssembler;
use crate::prepared::{ENTRY_BYTES, PART_WORDS};
use crate::ring::Slot;
use crate::tokenizer::{MOST_WEIGHT, clip_bytes};
use crate::visits::{Deal, VISIT_BYTES};
use crate::window::ROW_ENTRY_BYTES;
use crate::{ColumnPages, DataFacts, Kind, Long, Order, Recipe, Sources, documents, paired};

/// Heap that the tokenizer library takes for each byte (by weight) of the text in work, at most. Measured with
/// `cargo test --test heap -- --nocapture`: 68 to 138 for words, 289 where each character is a word (Unigram), 787 for
/// the Arabic phrase ligature, which weighs three times its bytes.
pub const TOKENIZER_BYTES_PER_TEXT_BYTE: u64 = 368;

/// Heap of a tokenizing thread beside its texts: regex caches, thread-locals, names.
const THREAD_BYTES: u64 = 256 << 10;

/// Heap for each byte of a conversation's JSON while it is read, parsed and handed to a template: buffers that double, the
/// messages, their values, and what a template joins before it writes. Short messages are the worst: each of them is a
/// mapping, and in JSON only 34 bytes.
const CHAT_BYTES_PER_TEXT_BYTE: u64 = 32;

/// Heap of tokens for each byte (by weight) of a text that is taken whole: at most 4 tokens, in a buffer that doubles.
const TOKENS_BYTES_PER_TEXT_BYTE: u64 = 48;

/// Heap of reading a block of prepared data beside its bytes: names, an opened file.
const PREPARED_READ_BYTES: u64 = 8 << 10;

/// Heap of a thread that tokenises nothing: its name, thread-locals.
const PREPARED_THREAD_BYTES: u64 = 16 << 10;

/// Heap of one Parquet column reader beside its pages: codec state, header buffers.
const COLUMN_READER_BYTES: u64 = 256 << 10;

/// Heap of one value of a decoded Parquet dictionary.
const DICTIONARY_ENTRY_BYTES: u64 = size_of::<parquet::data_type::ByteArray>() as u64;

/// The loader's heap, part by part, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoaderHeap {
    /// The block index, file names, Parquet row groups, Arrow batches.
    pub index_bytes: u64,
    /// Texts of one shuffle window, its blocks and its order of rows; of a mixture also what a pass visits.
    pub window_bytes: u64,
    /// Buffers for reading one block.
    pub read_bytes: u64,
    /// The ring of ready batches.
    pub ring_bytes: u64,
    /// Texts and tokens in work, and what the tokenizer takes meanwhile.
    pub tokenize_bytes: u64,
}

impl LoaderHeap {
    /// All parts together.
    pub fn total_bytes(&self) -> u64 {
        self.index_bytes + self.window_bytes + self.read_bytes + self.ring_bytes + self.tokenize_bytes
    }
}

/// All that the loader's heap depends on beside batch shape, threads and prefetch; a value, so that a planner can try
/// many of those without the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LoadFacts {
    /// What opening found out.
    pub data: DataFacts,
    /// Bytes of text in the largest window.
    pub window_text_bytes: u64,
    /// Rows in the largest window.
    pub window_rows: u64,
    /// Blocks in a window, or parts of them.
    #[serde(default)]
    pub window_blocks: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Bytes of the lists of a pass, of a mixture.
    #[serde(default)]
    pub mixture_bytes: u64,
    /// What a row is.
    #[serde(default)]
    pub kind: Kind,
    /// Pairs that are too long are left out.
    #[serde(default)]
    pub drops: bool,
    /// Samples of like length share a batch.
    #[serde(default)]
    pub by_length: bool,
    /// Heap of the chat template.
    #[serde(default)]
    pub template_bytes: u64,
    /// Heap that the tokenizer takes for each byte (by weight) of the text in work.
    #[serde(default = "most_effort")]
    pub tokenizer_effort: u64,
    /// Heap of the words that a thread remembers.
    #[serde(default)]
    pub memo_bytes: u64,
    /// The rows are tokens already.
    #[serde(default)]
    pub prepared: bool,
}

fn most_effort() -> u64 {
    TOKENIZER_BYTES_PER_TEXT_BYTE
}

impl LoadFacts {
    /// The facts for a loader with this recipe.
    pub fn with_recipe(self, recipe: &Recipe) -> LoadFacts {
        let template_bytes = recipe.template().map_or(0, |template| template.heap_bytes());
        let (drops, by_length) = (recipe.long() == Long::Drop, recipe.is_by_length());
        LoadFacts { kind: recipe.kind(), drops, by_length, template_bytes, ..self }
    }

    /// The facts for a tokenizer whose effort was measured ([`crate::tokenizer_effort`]).
    pub fn with_effort(self, tokenizer_effort: u64) -> LoadFacts {
        LoadFacts { tokenizer_effort, ..self }
    }

    /// The facts for a tokenizer that remembers words ([`crate::TextTokenizer::memo_bytes`]).
    pub fn with_memo(self, memo_bytes: u64) -> LoadFacts {
        LoadFacts { memo_bytes, ..self }
    }

    /// Heap of [`crate::RowTexts`] (in file order), its sources not included.
    pub fn row_texts_bytes(&self) -> u64 {
        self.window_text_bytes + self.window_rows * ROW_ENTRY_BYTES + read_bytes(&self.data, self.kind)
    }
}

impl Sources {
    /// The facts for a loader in this order.
    pub fn load_facts(&self, order: Order) -> LoadFacts {
        let room = self.window_room(order);
        LoadFacts {
            data: *self.facts(),
            window_text_bytes: room.text_bytes,
            window_rows: room.rows,
            window_blocks: room.visits,
            index_bytes: self.index_bytes(),
            mixture_bytes: if self.is_mixture() { Deal::new(self.laid(), order).list_bytes(self.laid()) } else { 0 },
            kind: self.kind(),
            drops: false,
            by_length: false,
            template_bytes: 0,
            tokenizer_effort: TOKENIZER_BYTES_PER_TEXT_BYTE,
            memo_bytes: 0,
            prepared: self.is_prepared(),
        }
    }
}

/// The most heap that a loader uses, its sources and its template (see [`LoadFacts::with_recipe`]) included.
pub fn loader_heap(facts: &LoadFacts, shape: BatchShape, threads: usize, prefetch_batches: usize) -> LoaderHeap {
    let ring_entry = size_of::<std::sync::Mutex<Slot>>() as u64 + 1;
    let ring = prefetch_batches as u64 * (Slot::heap_bytes(shape) + ring_entry);
    let ring_bytes = match facts.kind {
        // An evaluation of the same has a ring: it leaves nothing out.
        Kind::Pairs if facts.drops || facts.by_length => {
            let tube = paired::tube_room(shape, prefetch_batches, facts.by_length);
            ring.max(tube.heap_bytes() + PairAssembler::heap_bytes(shape, facts.by_length))
        }
        Kind::Pairs => ring,
        Kind::Chat | Kind::Text => {
            let tube = documents::tube_room(shape, prefetch_batches, facts.by_length);
            tube.heap_bytes() + Assembler::heap_bytes(shape, facts.by_length)
        }
    };
    let thread = match facts.kind {
        _ if facts.prepared => prepared_thread_bytes(shape),
        Kind::Pairs => thread_bytes(facts, shape),
        Kind::Chat => chat_thread_bytes(facts, shape),
        Kind::Text => text_thread_bytes(facts, shape),
    };
    let row_entry = if facts.prepared { ENTRY_BYTES } else { ROW_ENTRY_BYTES };
    LoaderHeap {
        index_bytes: facts.index_bytes,
        window_bytes: facts.window_text_bytes
            + facts.window_rows * (row_entry + 4)
            + facts.window_blocks * (4 + VISIT_BYTES)
            + facts.mixture_bytes,
        read_bytes: if facts.prepared { PREPARED_READ_BYTES } else { read_bytes(&facts.data, facts.kind) },
        ring_bytes,
        tokenize_bytes: threads as u64 * thread + facts.template_bytes,
    }
}

/// Reading one block, of text, Parquet or Arrow: only one thread reads at a time.
fn read_bytes(facts: &DataFacts, kind: Kind) -> u64 {
    let text = match facts.longest_line {
        0 => 0,
        // The row itself; the parser unescapes into a buffer that doubles: old and new together are three times the text, and of
        // CSV so are the ends of the cells.
        longest => {
            let cells = 3 * (facts.most_cells.max(16) * size_of::<usize>() as u64) + 3072;
            facts.largest_block
                + facts.longest_source
                + facts.longest_target
                + 4 * longest
                + cells
                + facts.unpacking_bytes
        }
    };
    let chat = match kind {
        Kind::Chat => CHAT_BYTES_PER_TEXT_BYTE * facts.longest_source,
        Kind::Pairs | Kind::Text => 0,
    };
    // A row's texts are copied into buffers that double: old and new together are three times the text.
    let arrow = match facts.arrow_bytes {
        0 => 0,
        reading => reading + 3 * (facts.longest_source + facts.longest_target),
    };
    let columns = [&facts.source_pages, &facts.target_pages, &facts.input_pages];
    text + chat + arrow + facts.remote_bytes + columns.into_iter().map(column_bytes).sum::<u64>()
}

/// Reading one Parquet column: its dictionary, a stored page, and the page before it while the next is unpacked.
fn column_bytes(pages: &ColumnPages) -> u64 {
    if *pages == ColumnPages::default() {
        return 0;
    }
    pages.largest_stored
        + 2 * pages.largest_page
        + pages.largest_dictionary
        + pages.most_dictionary_values * DICTIONARY_ENTRY_BYTES
        + pages.most_page_values * 8
        + COLUMN_READER_BYTES
}

fn thread_bytes(load: &LoadFacts, shape: BatchShape) -> u64 {
    let facts = &load.data;
    let seen = |longest: u64, len: usize| longest.min(clip_bytes(len) as u64);
    let weight = |longest: u64, len: usize| (longest * MOST_WEIGHT as u64).min(clip_bytes(len) as u64);
    let held = |longest: u64, len: usize| seen(longest, len) + 4 * len as u64;
    let heaviest = weight(facts.longest_source, shape.source_len).max(weight(facts.longest_target, shape.target_len));
    held(facts.longest_source, shape.source_len)
        + held(facts.longest_target, shape.target_len)
        + heaviest * load.tokenizer_effort
        + load.memo_bytes
        // Of what goes through a tube, both sides once more.
        + 4 * (1 + shape.source_len + shape.target_len) as u64
        + THREAD_BYTES
}

/// Tokens are copied, of long texts a part at a time, into buffers that double; of pairs that go through a tube, both sides once more.
fn prepared_thread_bytes(shape: BatchShape) -> u64 {
    let words = PART_WORDS.max(shape.source_len + 1) + shape.source_len + 2 * (shape.target_len + 1);
    3 * (words * size_of::<u32>()) as u64 + PREPARED_THREAD_BYTES
}

/// A conversation is parsed and rendered whole, as far as it may be looked at; a template may write more than it was given,
/// so the tokenizer's share does not know the data.
fn chat_thread_bytes(load: &LoadFacts, shape: BatchShape) -> u64 {
    let seen = clip_bytes(shape.source_len + 1) as u64 + 4;
    // The text itself, and two beginnings of it, in buffers that double.
    let rendered = 3 * 3 * seen;
    CHAT_BYTES_PER_TEXT_BYTE * load.data.longest_source
        + rendered
        + seen * (load.tokenizer_effort + TOKENS_BYTES_PER_TEXT_BYTE)
        + THREAD_BYTES
}

/// A text is taken in parts of what may be looked at.
fn text_thread_bytes(load: &LoadFacts, shape: BatchShape) -> u64 {
    let facts = &load.data;
    let most = clip_bytes(shape.source_len + 1) as u64;
    let weight = (facts.longest_source * MOST_WEIGHT as u64).min(most);
    3 * facts.longest_source.min(most)
        + weight * (load.tokenizer_effort + TOKENS_BYTES_PER_TEXT_BYTE)
        + load.memo_bytes
        + THREAD_BYTES
}
