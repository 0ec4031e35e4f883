//! What the engine holds on the card, read and written from outside: parameters, their state, their gradients. All of it is
//! copied piece by piece, so that the host never holds much.

use std::io::Write;

use plimsoll_plan::device::read_form;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::tape::Id;

use super::card::Address;
use super::engine::CudaEngine;
use super::split::{halves, joined};
use crate::cpu::weights::{Weights, encode};
use crate::error::EngineError;

/// Numbers that are on their way to or from the card at a time.
const PIECE: usize = 1 << 20;

impl CudaEngine {
    /// How a parameter is stored.
    pub fn dtype(&self, index: usize) -> Dtype {
        self.program.store.dtype(self.program.store.params[index].weight)
    }

    /// A persistent tensor's first byte.
    fn at(&self, id: Id) -> Address {
        self.arena.base() + 4 * self.program.store_offsets[id.0 as usize] as u64
    }

    /// Fills a parameter from `read(first element, numbers)`, a stretch at a time.
    /// The inner result is the reader's.
    pub fn fill_param<E>(
        &mut self,
        index: usize,
        mut read: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<Result<(), E>, EngineError> {
        let (dtype, store) = (self.dtype(index), &self.program.store);
        let place = &store.params[index];
        let (weight, offset, len) = (place.weight, place.offset, place.param.elements());
        if !dtype.is_exact() {
            return self.fill_quantised(index, read);
        }
        let copy = Some(read_form(store, weight)).filter(|copy| *copy != weight);
        let mut piece = vec![0.0f32; PIECE.min(len)];
        for first in (0..len).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(len - first)];
            if let Err(e) = read(first, piece) {
                return Ok(Err(e));
            }
            match copy {
                Some(copy) if self.program.store.is_split(weight) => {
                    self.put_halves(weight, copy, offset + first, piece)?;
                }
                _ => {
                    self.put(weight, offset + first, piece)?;
                    copy.map(|copy| self.put(copy, offset + first, piece)).transpose()?;
                }
            }
        }
        Ok(Ok(()))
    }

    /// Writes numbers in two halves: the lower into the weight's own tensor, the upper into its copy.
    fn put_halves(&self, weight: Id, copy: Id, first: usize, values: &[f32]) -> Result<(), EngineError> {
        let (high, low): (Vec<u16>, Vec<u16>) = values.iter().map(|value| halves(*value)).unzip();
        self.machine.card.write(self.at(weight) + 2 * first as u64, &low)?;
        Ok(self.machine.card.write(self.at(copy) + 2 * first as u64, &high)?)
    }

    /// Numbers of a weight that lies in two halves, from `first` on.
    fn read_halves(&self, weight: Id, first: usize, out: &mut [f32]) -> Result<(), EngineError> {
        let (mut high, mut low) = (vec![0u16; out.len()], vec![0u16; out.len()]);
        let copy = read_form(&self.program.store, weight);
        self.machine.card.read(self.at(weight) + 2 * first as u64, &mut low)?;
        self.machine.card.read(self.at(copy) + 2 * first as u64, &mut high)?;
        out.iter_mut().zip(high.into_iter().zip(low)).for_each(|(out, (high, low))| *out = joined(high, low));
        Ok(())
    }

    /// A whole weight that lies in two halves.
    pub(crate) fn read_split(&self, weight: Id, out: &mut [f32]) -> Result<(), EngineError> {
        let mut pieces = out.chunks_mut(PIECE).enumerate();
        pieces.try_for_each(|(nth, piece)| self.read_halves(weight, nth * PIECE, piece))
    }

    /// Writes numbers into a tensor in its form: f32, or 16 bits.
    fn put(&self, id: Id, first: usize, values: &[f32]) -> Result<(), EngineError> {
        let (card, dtype, at) = (&self.machine.card, self.program.store.dtype(id), self.at(id));
        match dtype {
            Dtype::F32 => card.write(at + 4 * first as u64, values)?,
            _ => {
                let mut words = vec![0.0f32; dtype.words(values.len())];
                encode(self.program.simd, dtype, values.len(), 0, values, &mut words);
                // SAFETY: halves in words; as many as there are values.
                let halves = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u16>(), values.len()) };
                card.write(at + 2 * first as u64, halves)?;
            }
        }
        Ok(())
    }

    fn fill_quantised<E>(
        &mut self,
        index: usize,
        mut read: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<Result<(), E>, EngineError> {
        let (dtype, store) = (self.dtype(index), &self.program.store);
        let place = &store.params[index];
        let (id, len) = (place.weight, place.param.elements());
        let (elements, words) = (store.elements[id.0 as usize], store.tensors[id.0 as usize].words);
        let mut tensor = vec![0.0f32; words];
        let group = plimsoll_plan::dtype::GROUP;
        let mut piece = vec![0.0f32; group.min(len)];
        for first in (0..len).step_by(group) {
            let piece = &mut piece[..group.min(len - first)];
            if let Err(e) = read(first, piece) {
                return Ok(Err(e));
            }
            encode(self.program.simd, dtype, elements, place.offset + first, piece, &mut tensor);
        }
        self.machine.card.write(self.at(id), &tensor)?;
        Ok(Ok(()))
    }

    /// Words of the store from `first` on: weights, gradients, optimizer state, as they lie there.
    pub(crate) fn read_store(&self, first: usize, out: &mut [f32]) -> Result<(), EngineError> {
        assert!(first + out.len() <= self.program.parts.store);
        Ok(self.machine.card.read(self.arena.base() + 4 * first as u64, out)?)
    }

    /// Whether every trained weight is a finite number.
    pub fn weights_are_finite(&self) -> Result<bool, EngineError> {
        let mut piece = vec![0.0f32; PIECE];
        for (index, place) in self.program.store.params.iter().enumerate().filter(|(_, place)| place.trained) {
            let len = place.param.elements();
            for first in (0..len).step_by(PIECE) {
                let piece = &mut piece[..PIECE.min(len - first)];
                self.read_param(index, first, piece)?;
                if piece.iter().fold(false, |found, w| found | !w.is_finite()) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Numbers that are stored in this form from an address on, widened.
    pub(super) fn read_numbers(&self, dtype: Dtype, from: Address, out: &mut [f32]) -> Result<(), EngineError> {
        if dtype == Dtype::F32 {
            return Ok(self.machine.card.read(from, out)?);
        }
        let mut halves = vec![0u32; out.len().div_ceil(2)];
        // SAFETY: two halves a word.
        let view = unsafe { std::slice::from_raw_parts_mut(halves.as_mut_ptr().cast::<u16>(), out.len()) };
        self.machine.card.read(from, view)?;
        let words: Vec<f32> = halves.iter().map(|w| f32::from_bits(*w)).collect();
        Weights::new(&words, dtype, out.len()).decode(self.program.simd, 0, out);
        Ok(())
    }

    /// Elements of a parameter from `first` on, widened.
    pub fn read_param(&self, index: usize, first: usize, out: &mut [f32]) -> Result<(), EngineError> {
        let store = &self.program.store;
        let place = &store.params[index];
        let (card, id, dtype) = (&self.machine.card, place.weight, self.dtype(index));
        let from = place.offset + first;
        match dtype {
            Dtype::F32 if store.is_split(id) => self.read_halves(id, from, out)?,
            Dtype::F32 => card.read(self.at(id) + 4 * from as u64, out)?,
            Dtype::Bf16 | Dtype::F16 => self.read_numbers(dtype, self.at(id) + 2 * from as u64, out)?,
            Dtype::Int8 | Dtype::Nf4 => {
                let mut words = vec![0.0f32; store.tensors[id.0 as usize].words];
                card.read(self.at(id), &mut words)?;
                let elements = store.elements[id.0 as usize];
                Weights::new(&words, dtype, elements).decode(self.program.simd, from, out);
            }
        }
        Ok(())
    }

    /// Writes a trained parameter, as it is stored, piece by piece.
    pub fn write_param(&self, index: usize, sink: &mut dyn Write) -> std::io::Result<()> {
        let place = &self.program.store.params[index];
        if self.program.store.is_split(place.weight) {
            return self.write_halves(index, sink);
        }
        let width = if self.dtype(index) == Dtype::F32 { 4 } else { 2 };
        let from = self.at(place.weight) + (place.offset * width) as u64;
        self.write_bytes(from, place.param.elements() * width, sink)
    }

    /// Writes a parameter that lies in two halves as the f32 that it is, piece by piece.
    fn write_halves(&self, index: usize, sink: &mut dyn Write) -> std::io::Result<()> {
        let len = self.program.store.params[index].param.elements();
        let mut piece = vec![0.0f32; PIECE.min(len)];
        for first in (0..len).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(len - first)];
            self.read_param(index, first, piece).map_err(std::io::Error::other)?;
            // SAFETY: any four bytes of f32 are four bytes.
            sink.write_all(unsafe { std::slice::from_raw_parts(piece.as_ptr().cast::<u8>(), piece.len() * 4) })?;
        }
        Ok(())
    }

    /// Writes optimizer state `nth` of a parameter, piece by piece.
    pub fn write_state(&self, index: usize, nth: usize, sink: &mut dyn Write) -> std::io::Result<()> {
        let id = self.program.store.params[index].state[nth];
        self.write_bytes(self.at(id), self.program.store.tensors[id.0 as usize].words * 4, sink)
    }

    fn write_bytes(&self, from: Address, bytes: usize, sink: &mut dyn Write) -> std::io::Result<()> {
        let mut piece = vec![0u8; bytes.min(4 * PIECE)];
        for first in (0..bytes).step_by(4 * PIECE) {
            let piece = &mut piece[..(bytes - first).min(4 * PIECE)];
            self.machine.card.read(from + first as u64, piece).map_err(std::io::Error::other)?;
            sink.write_all(piece)?;
        }
        Ok(())
    }

    /// Optimizer state `nth` of a parameter.
    pub fn state(&self, index: usize, nth: usize) -> Result<Vec<f32>, EngineError> {
        let id = self.program.store.params[index].state[nth];
        let mut words = vec![0.0f32; self.program.store.tensors[id.0 as usize].words];
        self.machine.card.read(self.at(id), &mut words)?;
        Ok(words)
    }

    /// Fills optimizer state `nth` of a parameter from `read(first word, words)`, a stretch at a time.
    /// The inner result is the reader's.
    pub fn fill_state<E>(
        &mut self,
        index: usize,
        nth: usize,
        mut read: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<Result<(), E>, EngineError> {
        let id = self.program.store.params[index].state[nth];
        let (at, words) = (self.at(id), self.program.store.tensors[id.0 as usize].words);
        let mut piece = vec![0.0f32; PIECE.min(words)];
        for first in (0..words).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(words - first)];
            if let Err(e) = read(first, piece) {
                return Ok(Err(e));
            }
            self.machine.card.write(at + 4 * first as u64, piece)?;
        }
        Ok(Ok(()))
    }

    /// The summed gradient of a parameter, where gradients are kept.
    pub fn gradient(&self, index: usize) -> Result<Option<Vec<f32>>, EngineError> {
        let place = &self.program.store.params[index];
        let Some(id) = self.program.store.gradients[place.weight.0 as usize] else { return Ok(None) };
        let mut values = vec![0.0f32; place.param.elements()];
        self.machine.card.read(self.at(id) + 4 * place.offset as u64, &mut values)?;
        Ok(Some(values))
    }
}
