//! Attention on a card: which kernel, and its arguments.

use plimsoll_plan::op::{AttentionShape, Cols, Place, Side};
use plimsoll_plan::place::aligned;
use plimsoll_plan::tape::Id;

use super::call::{Call, Drop};
use super::card::Address;
use super::error::CudaError;
use super::execute::{BLOCK, Run, walk};
use super::lt::Number;
use super::staged::{Array, Count};

/// What the forward pass read and left.
#[derive(Clone, Copy)]
pub(super) struct Forward {
    /// Queries, keys, values.
    pub of: [Cols; 3],
    pub bias: Option<Id>,
    pub out: Id,
    pub lse: Id,
}

/// The arguments of all attention kernels (`attention.cuh`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attention {
    pub of: [Address; 3],
    pub out: Address,
    lse: Address,
    pub dout: Address,
    pub into: [Address; 3],
    bias: Address,
    dbias_partial: Address,
    dbias: Address,
    dots: Address,
    q_starts: Address,
    k_starts: Address,
    documents: Address,
    sample: Address,
    offset: Address,
    pub strides: [u32; 3],
    pub into_strides: [u32; 3],
    heads: u32,
    kv_heads: u32,
    d: u32,
    scale: f32,
    causal: u32,
    window: u32,
    max_queries: u32,
    max_keys: u32,
    place: u32,
    threshold: u32,
    drop_scale: f32,
    tile: u32,
}

const _: () = assert!(size_of::<Attention>() == 216);

/// Which kernels an op runs.
#[derive(Clone, Copy)]
struct Choice {
    file: &'static str,
    /// Forward, gradient of queries, gradient of keys and values.
    names: [&'static str; 3],
    tile: usize,
    threads: usize,
    /// Shared memory of each.
    shared: [usize; 3],
    /// Whether these are the kernels of tensor cores.
    cores: bool,
}

/// What decides between the kernels, beside the shape.
#[derive(Clone, Copy)]
struct Wish {
    bias: bool,
    bias_gradient: bool,
    dropout: bool,
}

impl Run<'_> {
    /// The kernels of tensor cores, where card, numbers and places are such that they can be.
    fn tensor_cores(&self, shape: &AttentionShape, all: &[Cols], wish: Wish) -> Option<Choice> {
        let capability = self.machine.card.capability();
        let there = match self.act() {
            Number::Bf16 => capability >= (8, 0),
            Number::F16 => true,
            Number::F32 => false,
        };
        let whole = all.iter().all(|cols| cols.start.is_multiple_of(8) && cols.stride.is_multiple_of(8));
        let stages = if capability >= (8, 0) { 2 } else { 1 };
        // The plain kernels take a maximum before they scale.
        let any = wish.bias || wish.dropout || shape.scale <= 0.0;
        let file = match (shape.d_kv, any) {
            (64, false) => "attention_mma_64",
            (64, true) => "attention_mma_any_64",
            (128, false) => "attention_mma_128",
            (128, true) => "attention_mma_any_128",
            _ => return None,
        };
        let (tile, threads, row) = (64, 128, 2 * shape.d_kv);
        let line = if any { stages * 4 * (tile + 64) } else { 0 };
        let drops = if any { stages * 8 * tile } else { 0 };
        let diagonals = if wish.bias_gradient { 4 * (tile * 72 + shape.max_keys + tile) } else { 0 };
        let shared = [
            row * (tile + stages * 128) + line,
            row * (2 * tile + stages * 128) + 4 * tile + line + diagonals,
            row * (2 * tile + stages * 128) + stages * 512 + line + drops,
        ];
        let fits = shared.iter().all(|bytes| *bytes <= self.machine.card.shared_most() as usize);
        let names = ["attention_forward_mma", "attention_backward_q_mma", "attention_backward_kv_mma"];
        let choice = Choice { file, names, tile, threads, shared, cores: true };
        (there && whole && fits).then_some(choice)
    }

    fn choice(&self, shape: &AttentionShape, all: &[Cols], wish: Wish) -> Result<Choice, CudaError> {
        if let Some(choice) = self.tensor_cores(shape, all, wish) {
            return Ok(choice);
        }
        let (d, most) = (shape.d_kv, self.machine.card.shared_most() as usize);
        let plain = |tile: usize, names: [&'static str; 3]| {
            let (row, square) = (tile * (d + 1), tile * (tile + 1));
            let bias = if wish.bias_gradient { shape.max_keys + tile } else { 0 };
            let shared = [2 * row + square + 3 * tile, 4 * row + 2 * square + bias, 4 * row + 2 * square];
            let shared = shared.map(|words| 4 * words);
            Choice { file: "attention", names, tile, threads: BLOCK, shared, cores: false }
        };
        let wide = plain(32, ["attention_forward_32", "attention_backward_q_32", "attention_backward_kv_32"]);
        let narrow = plain(16, ["attention_forward_16", "attention_backward_q_16", "attention_backward_kv_16"]);
        let fits = |choice: &Choice| choice.shared.iter().all(|bytes| *bytes <= most);
        [(wide, 128), (narrow, 256)]
            .into_iter()
            .find(|(choice, widest)| d <= *widest && fits(choice))
            .map(|(choice, _)| choice)
            .ok_or(CudaError::Unsupported { op: "attention with heads this wide" })
    }

    /// Documents of a side in a part that launches are sized for. As many as might be there would mean blocks that begin and end for
    /// nothing: a packed sample of 1024 tokens might be 128 documents, and often is a few.
    fn documents(&self, side: Side) -> usize {
        if side == Side::Source { self.documents } else { self.program.part_samples }
    }

    fn arguments(&self, shape: &AttentionShape, forward: Forward, drop: Option<Place>) -> Attention {
        let starts =
            |side: Side| self.array(if side == Side::Source { Array::SourceStarts } else { Array::TargetStarts });
        let documents = if shape.queries == Side::Source { Count::Documents } else { Count::Samples };
        let Drop { place, threshold, scale: drop_scale, .. } = Drop::of(drop, 0, 0);
        Attention {
            of: forward.of.map(|cols| self.columns(cols)),
            out: self.at(forward.out),
            lse: self.at(forward.lse),
            bias: forward.bias.map_or(0, |id| self.at(id)),
            q_starts: starts(shape.queries),
            k_starts: starts(shape.keys),
            documents: self.layout.count(self.part, documents),
            sample: self.array(Array::DocumentSample),
            offset: self.array(Array::DocumentOffset),
            strides: forward.of.map(|cols| cols.stride as u32),
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            d: shape.d_kv as u32,
            scale: shape.scale,
            causal: u32::from(shape.causal),
            window: shape.window.unwrap_or(0) as u32,
            max_queries: shape.max_queries as u32,
            max_keys: shape.max_keys as u32,
            place,
            threshold,
            drop_scale,
            ..Attention::default()
        }
    }

    /// The grid of a kernel: tiles of a side's rows and heads. The kernels of tensor cores have heads first, and causal
    /// ones a slot more for each document.
    fn grid(&self, shape: &AttentionShape, choice: &Choice, side: Side, heads: usize) -> (usize, usize) {
        let documents = self.documents(side);
        let slots = AttentionShape::slots(self.rows(side), documents, choice.tile);
        match (choice.cores, shape.causal) {
            (true, true) => (heads, slots + documents),
            (true, false) => (heads, slots),
            (false, _) => (slots, heads),
        }
    }

    pub(super) fn attention(
        &mut self,
        shape: &AttentionShape,
        forward: Forward,
        drop: Option<Place>,
    ) -> Result<(), CudaError> {
        if let Some(each) = shape.samples_at_a_time(self.samples(), &self.form, 1) {
            return self.attention_by_products(shape, self.arguments(shape, forward, drop), each);
        }
        let wish = Wish { bias: forward.bias.is_some(), bias_gradient: false, dropout: drop.is_some() };
        let choice = self.choice(shape, &forward.of, wish)?;
        let call = Call::new().with(self.arguments(shape, forward, drop)).at(self.step());
        let grid = self.grid(shape, &choice, shape.queries, shape.heads);
        let kernel = self.kernel(choice.file, choice.names[0]);
        self.launch(kernel, grid, choice.threads, choice.shared[0], call)
    }

    pub(super) fn attention_backward(
        &mut self,
        shape: &AttentionShape,
        forward: Forward,
        dout: Id,
        into: [Cols; 3],
        dbias: Option<Id>,
        drop: Option<Place>,
    ) -> Result<(), CudaError> {
        if let Some(each) = shape.samples_at_a_time(self.samples(), &self.form, 2) {
            let arguments = Attention {
                dout: self.at(dout),
                into: into.map(|cols| self.columns(cols)),
                into_strides: into.map(|cols| cols.stride as u32),
                dots: self.scratch(),
                ..self.arguments(shape, forward, drop)
            };
            return self.attention_backward_by_products(shape, arguments, each);
        }
        let all = [forward.of, into].concat();
        let wish = Wish { bias: forward.bias.is_some(), bias_gradient: dbias.is_some(), dropout: drop.is_some() };
        let choice = self.choice(shape, &all, wish)?;
        let Choice { file, names, tile, threads, shared, cores } = choice;
        let (rows, key_rows) = (self.rows(shape.queries), self.rows(shape.keys));
        let dots = self.scratch();
        let partial = dots + 4 * aligned(rows * shape.heads) as u64;
        let arguments = Attention {
            dout: self.at(dout),
            into: into.map(|cols| self.columns(cols)),
            into_strides: into.map(|cols| cols.stride as u32),
            dots,
            dbias_partial: dbias.map_or(0, |_| partial),
            dbias: dbias.map_or(0, |id| self.at(id)),
            tile: tile as u32,
            ..self.arguments(shape, forward, drop)
        };
        let call = || Call::new().with(arguments);
        let step = self.step();
        if !cores {
            let grid = ((rows * shape.heads).div_ceil(8), 1);
            self.launch(self.kernel(file, "attention_dots"), grid, BLOCK, 0, call())?;
        }
        let grid = self.grid(shape, &choice, shape.queries, shape.heads);
        self.launch(self.kernel(file, names[1]), grid, threads, shared[1], call().at(step))?;
        if cores {
            // By the most rows, as planned: fewer would take more parts, and other sums.
            let splits = shape.kv_splits(self.placed.rows.of(shape.keys), &self.form);
            let bias = dbias.map_or(0, |_| shape.bias_partial_words(rows, rows.div_ceil(shape.max_queries.max(1))));
            let parts = if splits > 1 { partial + 4 * aligned(bias) as u64 } else { 0 };
            let grid = self.grid(shape, &choice, shape.keys, shape.kv_heads * splits);
            let split = call().at(step).at(parts).u32(splits);
            self.launch(self.kernel(file, names[2]), grid, threads, shared[2], split)?;
            if splits > 1 {
                let grid = walk(key_rows * shape.kv_heads * shape.d_kv);
                let sum = call().at(parts).u32(splits);
                self.launch(self.kernel(file, "attention_kv_sum"), grid, BLOCK, 0, sum)?;
            }
        } else {
            let grid = self.grid(shape, &choice, shape.keys, shape.kv_heads);
            self.launch(self.kernel(file, names[2]), grid, threads, shared[2], call().at(step))?;
        }
        if dbias.is_some() {
            let grid = (shape.span().div_ceil(32), shape.heads);
            self.launch(self.kernel("attention", "attention_bias_sum"), grid, BLOCK, 0, call())?;
        }
        Ok(())
    }
}
