//! The staging area: the batch that the loader filled, and what follows from its lengths.
//!
//! Source rows are documents behind each other; for T5 and for unpacked data a document is a sample. A tape may run over
//! a part of the batch: a [`Span`] of its samples.

use std::ops::Range;

use plimsoll_plan::batch::{BatchShape, BatchSlot, IGNORE};
use plimsoll_plan::place::aligned;
use plimsoll_plan::program::staging_arrays;
use plimsoll_plan::spec::ModelSpec;

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
    /// Index of the first sample in the effective batch.
    first: u32,
}

/// Some samples of a batch, with their documents and rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Span {
    samples: Range<usize>,
    documents: Range<usize>,
    source: Range<usize>,
    target: Range<usize>,
}

/// The arrays of the staging area, in order.
#[derive(Clone, Copy)]
enum Part {
    Source,
    Target,
    Inputs,
    SourceLens,
    TargetLens,
    SourceStarts,
    DocumentSample,
    DocumentOffset,
    TargetStarts,
    SampleDocuments,
    SourceSample,
    SourcePosition,
    SourceAt,
    TargetSample,
    TargetPosition,
}

impl Staging {
    /// Takes over `words` elements at `base`.
    ///
    /// # Safety
    /// The memory is ours alone for as long as the staging area lives.
    pub unsafe fn new(base: *mut u32, words: usize, shape: BatchShape) -> Staging {
        Staging { base, words, shape, samples: 0, first: 0 }
    }

    fn range(&self, part: Part) -> Range<usize> {
        let sizes = staging_arrays(&self.shape);
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
        let BatchShape { samples, documents, .. } = self.shape;
        BatchSlot {
            source: self.get_mut(Part::Source),
            target: self.get_mut(Part::Target),
            source_lens: &mut self.get_mut(Part::SourceLens)[..samples * documents],
            target_lens: &mut self.get_mut(Part::TargetLens)[..samples],
        }
    }

    /// There is no batch any more: the area is used for something else.
    pub fn forget(&mut self) {
        self.samples = 0;
    }

    /// Checks what the loader wrote and derives the rest.
    pub fn take(&mut self, samples: usize, first: u32, spec: &ModelSpec) -> Result<(), EngineError> {
        if samples > self.shape.samples {
            let (what, expected) = ("the number of samples", self.shape.samples);
            return Err(EngineError::Batch { what, expected, found: samples });
        }
        self.samples = samples;
        self.first = first;
        let (source, target) = match spec {
            ModelSpec::T5(_) => (self.lay_out_source(|_| 1)?, self.lay_out_target()?),
            ModelSpec::Decoder(_) => self.lay_out_decoder()?,
            ModelSpec::Series(_) => unreachable!("series have a staging area of their own"),
        };
        let vocab = spec.vocab();
        let check = |ids: &[u32], ignored: bool| match ids
            .iter()
            .find(|id| **id as usize >= vocab && !(ignored && **id == IGNORE))
        {
            Some(token) => Err(EngineError::Token { token: *token, vocab }),
            None => Ok(()),
        };
        check(&self.get(Part::Source)[..source], false)?;
        check(&self.get(Part::Target)[..target], true)?;
        if let ModelSpec::T5(spec) = spec {
            self.shift_right(target, spec.start_id, spec.pad_id);
        }
        Ok(())
    }

    /// A decoder's rows: documents fill each sample up to its rows; labels stand row for row beside the tokens.
    fn lay_out_decoder(&self) -> Result<(usize, usize), EngineError> {
        let (lens, rows) = (self.get(Part::SourceLens), self.get(Part::TargetLens));
        let mut document = 0;
        let count = |sample: usize| {
            let (begin, mut left) = (document, rows[sample] as usize);
            while left > 0 && document < lens.len() && document - begin < self.shape.documents {
                left = left.saturating_sub(lens[document] as usize);
                document += 1;
            }
            document - begin
        };
        let total = self.lay_out_source(count)?;
        let starts = self.get_mut(Part::TargetStarts);
        let mut row = 0;
        for sample in 0..self.samples {
            let (len, most) = (rows[sample] as usize, self.shape.target_len);
            if len == 0 || len > most {
                return Err(EngineError::Batch { what: "the rows of a sample", expected: most, found: len });
            }
            starts[sample] = row as u32;
            row += len;
        }
        starts[self.samples] = row as u32;
        if row != total {
            return Err(EngineError::Batch { what: "the rows of all documents", expected: row, found: total });
        }
        Ok((total, row))
    }

    /// Starts of the documents and the maps of source rows; returns the number of rows. `documents` says how many a sample
    /// has.
    fn lay_out_source(&self, mut documents: impl FnMut(usize) -> usize) -> Result<usize, EngineError> {
        let lens = self.get(Part::SourceLens);
        let (starts, first_documents) = (self.get_mut(Part::SourceStarts), self.get_mut(Part::SampleDocuments));
        let (sample_of, offset_of) = (self.get_mut(Part::DocumentSample), self.get_mut(Part::DocumentOffset));
        let (row_sample, row_position) = (self.get_mut(Part::SourceSample), self.get_mut(Part::SourcePosition));
        let row_at = self.get_mut(Part::SourceAt);
        let most = self.shape.source_len;
        let (mut row, mut document) = (0, 0);
        for sample in 0..self.samples {
            first_documents[sample] = document as u32;
            let begin = row;
            for _ in 0..documents(sample) {
                let len = lens[document] as usize;
                if len == 0 || row - begin + len > most {
                    return Err(EngineError::Batch { what: "a source length", expected: most, found: len });
                }
                starts[document] = row as u32;
                sample_of[document] = self.first + sample as u32;
                offset_of[document] = (row - begin) as u32;
                for at in 0..len {
                    row_sample[row] = self.first + sample as u32;
                    row_position[row] = (row - begin) as u32;
                    row_at[row] = at as u32;
                    row += 1;
                }
                document += 1;
            }
        }
        starts[document] = row as u32;
        first_documents[self.samples] = document as u32;
        Ok(row)
    }

    /// Starts of the samples and the maps of target rows; returns the number of rows.
    fn lay_out_target(&self) -> Result<usize, EngineError> {
        let (lens, starts) = (self.get(Part::TargetLens), self.get_mut(Part::TargetStarts));
        let (row_sample, row_position) = (self.get_mut(Part::TargetSample), self.get_mut(Part::TargetPosition));
        let mut row = 0;
        for sample in 0..self.samples {
            let (len, most) = (lens[sample] as usize, self.shape.target_len);
            if len > most || len == 0 {
                return Err(EngineError::Batch { what: "a target length", expected: most, found: len });
            }
            starts[sample] = row as u32;
            for position in 0..len {
                row_sample[row] = self.first + sample as u32;
                row_position[row] = position as u32;
                row += 1;
            }
        }
        starts[self.samples] = row as u32;
        Ok(row)
    }

    /// The decoder's inputs: the labels, one later, behind the start token; an ignored label reads as padding.
    fn shift_right(&self, rows: usize, start_id: u32, pad_id: u32) {
        let (target, inputs) = (self.get(Part::Target), self.get_mut(Part::Inputs));
        let position = self.get(Part::TargetPosition);
        for row in 0..rows {
            inputs[row] = match position[row] {
                0 => start_id,
                _ if target[row - 1] == IGNORE => pad_id,
                _ => target[row - 1],
            };
        }
    }

    /// Some samples, as far as there are so many.
    pub(crate) fn span(&self, samples: Range<usize>) -> Span {
        let samples = samples.start.min(self.samples)..samples.end.min(self.samples);
        let bounds = |part: Part, range: &Range<usize>| {
            let at = self.get(part);
            at[range.start] as usize..at[range.end] as usize
        };
        if samples.is_empty() {
            return Span::default();
        }
        let documents = bounds(Part::SampleDocuments, &samples);
        let source = bounds(Part::SourceStarts, &documents);
        let target = bounds(Part::TargetStarts, &samples);
        Span { samples, documents, source, target }
    }

    /// The whole batch.
    pub(crate) fn all(&self) -> Span {
        self.span(0..self.samples)
    }

    /// Source tokens.
    pub(crate) fn source(&self, span: &Span) -> &[u32] {
        &self.get(Part::Source)[span.source.clone()]
    }

    /// Position of each source row in its document.
    pub(crate) fn source_at(&self, span: &Span) -> &[u32] {
        &self.get(Part::SourceAt)[span.source.clone()]
    }

    /// The decoder's inputs (T5).
    pub(crate) fn inputs(&self, span: &Span) -> &[u32] {
        &self.get(Part::Inputs)[span.target.clone()]
    }

    /// Labels.
    pub(crate) fn labels(&self, span: &Span) -> &[u32] {
        &self.get(Part::Target)[span.target.clone()]
    }

    /// Labels at which a loss is taken, in the whole batch.
    pub fn label_count(&self) -> u64 {
        self.labels(&self.all()).iter().filter(|l| **l != IGNORE).count() as u64
    }

    /// First source row of each document, and the end.
    pub(crate) fn source_starts(&self, span: &Span) -> &[u32] {
        &self.get(Part::SourceStarts)[span.documents.start..=span.documents.end]
    }

    /// First target row of each sample, and the end.
    pub(crate) fn target_starts(&self, span: &Span) -> &[u32] {
        &self.get(Part::TargetStarts)[span.samples.start..=span.samples.end]
    }

    /// Sample of each document in the effective batch, and its first row there.
    pub(crate) fn documents(&self, span: &Span) -> (&[u32], &[u32]) {
        let range = span.documents.clone();
        (&self.get(Part::DocumentSample)[range.clone()], &self.get(Part::DocumentOffset)[range])
    }

    /// The rows of the source side.
    pub(crate) fn source_map(&self, span: &Span) -> Rows<'_> {
        Rows::Listed {
            sample: &self.get(Part::SourceSample)[span.source.clone()],
            position: &self.get(Part::SourcePosition)[span.source.clone()],
        }
    }

    /// The rows of the target side.
    pub(crate) fn target_map(&self, span: &Span) -> Rows<'_> {
        Rows::Listed {
            sample: &self.get(Part::TargetSample)[span.target.clone()],
            position: &self.get(Part::TargetPosition)[span.target.clone()],
        }
    }
}
