//! The staging area: the batch that the loader filled, and what follows from its lengths.

use std::ops::Range;

use plimsoll_plan::batch::{BatchShape, BatchSlot, IGNORE};
use plimsoll_plan::place::aligned;
use plimsoll_plan::spec::T5Spec;

use crate::cpu::Rows;
use crate::error::EngineError;

/// A batch in the arena. All slices lie in the staging part, one after the other.
#[derive(Debug)]
pub struct Staging {
    base: *mut u32,
    words: usize,
    shape: BatchShape,
    /// Samples in the batch now.
    samples: usize,
    source_rows: usize,
    target_rows: usize,
    /// Index of the first sample in the effective batch.
    pub first: u32,
    /// Index of each sample in the effective batch, and the row at which it starts in itself.
    of_sample: [Vec<u32>; 2],
}

/// The parts of the staging area, in order.
#[derive(Clone, Copy)]
enum Part {
    Source,
    Target,
    Inputs,
    SourceLens,
    TargetLens,
    SourceStarts,
    TargetStarts,
    SourceSample,
    SourcePosition,
    TargetSample,
    TargetPosition,
}

impl Staging {
    /// Takes over `words` elements at `base`.
    ///
    /// # Safety
    /// The memory is ours alone for as long as the staging area lives.
    pub unsafe fn new(base: *mut u32, words: usize, shape: BatchShape) -> Staging {
        let of_sample = [vec![0; shape.samples], vec![0; shape.samples]];
        Staging { base, words, shape, samples: 0, source_rows: 0, target_rows: 0, first: 0, of_sample }
    }

    fn range(&self, part: Part) -> Range<usize> {
        let (source, target) = (self.shape.samples * self.shape.source_len, self.shape.samples * self.shape.target_len);
        let lens = self.shape.samples + 1;
        let sizes = [source, target, target, lens, lens, lens, lens, source, source, target, target];
        let start = sizes[..part as usize].iter().map(|n| aligned(*n)).sum::<usize>();
        start..start + sizes[part as usize]
    }

    fn get(&self, part: Part) -> &[u32] {
        let range = self.range(part);
        assert!(range.end <= self.words);
        // SAFETY: inside the staging area, which is ours; the borrow of self keeps writers away.
        unsafe { std::slice::from_raw_parts(self.base.add(range.start), range.len()) }
    }

    #[allow(clippy::mut_from_ref)]
    fn get_mut(&self, part: Part) -> &mut [u32] {
        let range = self.range(part);
        assert!(range.end <= self.words);
        // SAFETY: inside the staging area; callers hold `&mut self` or take each part once.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(range.start), range.len()) }
    }

    /// Lends the batch to the loader.
    pub fn slot(&mut self) -> BatchSlot<'_> {
        let samples = self.shape.samples;
        BatchSlot {
            source: self.get_mut(Part::Source),
            target: self.get_mut(Part::Target),
            source_lens: &mut self.get_mut(Part::SourceLens)[..samples],
            target_lens: &mut self.get_mut(Part::TargetLens)[..samples],
        }
    }

    /// Checks what the loader wrote and derives the rest.
    pub fn take(&mut self, samples: usize, first: u32, spec: &T5Spec) -> Result<(), EngineError> {
        let too_many = |what, expected, found| Err(EngineError::Batch { what, expected, found });
        if samples > self.shape.samples {
            return too_many("the number of samples", self.shape.samples, samples);
        }
        self.samples = samples;
        self.first = first;
        self.of_sample[0].iter_mut().enumerate().for_each(|(at, sample)| *sample = first + at as u32);
        self.source_rows = self.lay_out(
            samples,
            self.shape.source_len,
            "a source length",
            [Part::SourceLens, Part::SourceStarts, Part::SourceSample, Part::SourcePosition],
        )?;
        let check = |ids: &[u32], ignored: bool| match ids
            .iter()
            .find(|id| **id as usize >= spec.vocab && !(ignored && **id == IGNORE))
        {
            Some(token) => Err(EngineError::Token { token: *token, vocab: spec.vocab }),
            None => Ok(()),
        };
        check(&self.get(Part::Source)[..self.source_rows], false)?;
        self.target_rows = self.lay_out(
            samples,
            self.shape.target_len,
            "a target length",
            [Part::TargetLens, Part::TargetStarts, Part::TargetSample, Part::TargetPosition],
        )?;
        check(&self.get(Part::Target)[..self.target_rows], true)?;
        self.shift_right(spec);
        Ok(())
    }

    /// Starts of the samples and the maps of rows; returns the number of rows.
    fn lay_out(&self, samples: usize, most: usize, what: &'static str, parts: [Part; 4]) -> Result<usize, EngineError> {
        let [lens, starts, sample_of, position_of] = parts;
        let (lens, starts) = (self.get(lens), self.get_mut(starts));
        let (sample_of, position_of) = (self.get_mut(sample_of), self.get_mut(position_of));
        let mut row = 0;
        for sample in 0..samples {
            let len = lens[sample] as usize;
            if len > most || len == 0 {
                return Err(EngineError::Batch { what, expected: most, found: len });
            }
            starts[sample] = row as u32;
            for position in 0..len {
                sample_of[row] = self.first + sample as u32;
                position_of[row] = position as u32;
                row += 1;
            }
        }
        starts[samples] = row as u32;
        Ok(row)
    }

    /// The decoder's inputs: the labels, one later, behind the start token; an ignored label reads as padding.
    fn shift_right(&self, spec: &T5Spec) {
        let (target, inputs) = (self.get(Part::Target), self.get_mut(Part::Inputs));
        let position = self.get(Part::TargetPosition);
        for row in 0..self.target_rows {
            inputs[row] = match position[row] {
                0 => spec.start_id,
                _ if target[row - 1] == IGNORE => spec.pad_id,
                _ => target[row - 1],
            };
        }
    }

    /// Index of each sample in the effective batch, and the row at which it starts in itself.
    pub fn samples(&self) -> (&[u32], &[u32]) {
        (&self.of_sample[0], &self.of_sample[1])
    }

    /// Source tokens.
    pub fn source(&self) -> &[u32] {
        &self.get(Part::Source)[..self.source_rows]
    }

    /// The decoder's inputs.
    pub fn inputs(&self) -> &[u32] {
        &self.get(Part::Inputs)[..self.target_rows]
    }

    /// Labels.
    pub fn labels(&self) -> &[u32] {
        &self.get(Part::Target)[..self.target_rows]
    }

    /// Labels at which a loss is taken.
    pub fn label_count(&self) -> u64 {
        self.labels().iter().filter(|l| **l != IGNORE).count() as u64
    }

    /// First source row of each sample, and the end.
    pub fn source_starts(&self) -> &[u32] {
        &self.get(Part::SourceStarts)[..=self.samples]
    }

    /// First target row of each sample, and the end.
    pub fn target_starts(&self) -> &[u32] {
        &self.get(Part::TargetStarts)[..=self.samples]
    }

    /// The rows of the source side.
    pub fn source_map(&self) -> Rows<'_> {
        Rows {
            sample: &self.get(Part::SourceSample)[..self.source_rows],
            position: &self.get(Part::SourcePosition)[..self.source_rows],
        }
    }

    /// The rows of the target side.
    pub fn target_map(&self) -> Rows<'_> {
        Rows {
            sample: &self.get(Part::TargetSample)[..self.target_rows],
            position: &self.get(Part::TargetPosition)[..self.target_rows],
        }
    }
}
