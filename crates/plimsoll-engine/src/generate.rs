//! Generation: prompts are encoded once, then every new token is one decoding step, greedy or with beams.
//!
//! It runs inside the places that the plan gave its tape, and cuts the staging area as the plan sized it. What it takes
//! from the heap grows with hypotheses and new tokens, never with the vocabulary. Prompts do not see each other:
//! how they are grouped changes the last bits of a sum at most, because products of few rows are summed in another order.
//! It knows ids, no text.

mod beam;
mod rank;
mod sample;

use plimsoll_plan::generation::GenerateShape;
use plimsoll_plan::place::aligned;
use plimsoll_plan::program::PlacedGeneration;
use plimsoll_plan::spec::ModelSpec;
use rayon::prelude::*;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::execute::{Beam, Prompts};
use beam::{Candidate, Rules, Search};

/// How tokens are chosen. Fields and meanings are those of Hugging Face's `generate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Hypotheses per prompt, at most the planned number; 1 is greedy.
    pub beams: usize,
    /// Most new tokens, at most the planned number.
    pub max_new: usize,
    /// Scores of finished hypotheses are divided by their length to this power.
    pub length_penalty: f32,
    /// Stop as soon as there are as many finished hypotheses as beams, even if a running one could still beat them.
    pub early_stopping: bool,
    /// Tokens are drawn; with one beam.
    pub sampling: Option<Sampling>,
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this; above 0.
    pub temperature: f32,
    /// Only so many of the likeliest; 0: all.
    pub top_k: usize,
    /// Only the likeliest that come to this share; 1: all.
    pub top_p: f32,
    /// Key of the draws.
    pub seed: u64,
}

impl GenerateOptions {
    /// The likeliest token at each step.
    pub fn greedy(max_new: usize) -> GenerateOptions {
        GenerateOptions::beam(1, max_new)
    }

    /// Beam search with length penalty 1, without early stopping.
    pub fn beam(beams: usize, max_new: usize) -> GenerateOptions {
        GenerateOptions { beams, max_new, length_penalty: 1.0, early_stopping: false, sampling: None }
    }
}

/// What the model says to one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Without the start token; with the end token, if it came to one.
    pub tokens: Vec<u32>,
    /// Log-probability of the tokens; of a beam, divided by the length to the power of the length penalty.
    pub score: f32,
}

/// The staging area as generation cuts it.
struct Area<'a> {
    /// Tokens of the prompts, and of each row its prompt and position.
    tokens: &'a mut [u32],
    sample: &'a mut [u32],
    position: &'a mut [u32],
    /// First row of each prompt, and the end.
    starts: &'a mut [u32],
    /// Position of each prompt's first input of the decoding step.
    first: &'a mut [u32],
    /// The last token of each hypothesis.
    last: &'a mut [u32],
    /// Zeros, one per hypothesis.
    zeros: &'a mut [u32],
    /// Position of each hypothesis' token.
    at: &'a mut [u32],
    /// Which cache row holds each position of each hypothesis, now and after the step.
    origin: &'a mut [u32],
    spare: &'a mut [u32],
}

impl<'a> Area<'a> {
    fn cut(mut words: &'a mut [u32], shape: &GenerateShape) -> Area<'a> {
        let (source, rows) = (shape.prompts * shape.source_len, shape.prompts * shape.beams);
        let mut take = |len: usize| {
            let (part, rest) = std::mem::take(&mut words).split_at_mut(aligned(len));
            words = rest;
            &mut part[..len]
        };
        Area {
            tokens: take(source),
            sample: take(source),
            position: take(source),
            starts: take(shape.prompts + 1),
            first: take(shape.prompts),
            last: take(rows),
            zeros: take(rows),
            at: take(rows),
            origin: take(rows * shape.max_new),
            spare: take(rows * shape.max_new),
        }
    }

    /// Lays the prompts out, row by row. T5's answers begin with the start token; a decoder's first input is the last token
    /// of the prompt, so that only what is before it is laid out.
    fn fill(&mut self, group: &[Vec<u32>], beams: usize, spec: &ModelSpec) {
        let mut row = 0;
        for (index, prompt) in group.iter().enumerate() {
            self.starts[index] = row as u32;
            let (before, last) = match spec {
                ModelSpec::T5(spec) => (&prompt[..], spec.start_id),
                ModelSpec::Decoder(_) => (&prompt[..prompt.len() - 1], prompt[prompt.len() - 1]),
                ModelSpec::Series(_) => unreachable!("series are not generated"),
            };
            for (position, token) in before.iter().enumerate() {
                self.tokens[row] = *token;
                self.sample[row] = index as u32;
                self.position[row] = position as u32;
                row += 1;
            }
            self.first[index] = before.len() as u32;
            // One hypothesis to begin with; where there will be more, they take its place.
            for at in [index, index * beams] {
                self.last[at] = last;
            }
        }
        self.starts[group.len()] = row as u32;
        self.zeros.fill(0);
    }
}

impl Engine {
    /// Answers the prompts (ids, with the end token), in groups of the planned size. Overwrites the batch in the slot.
    pub fn generate(&mut self, prompts: &[Vec<u32>], options: &GenerateOptions) -> Result<Vec<Vec<u32>>, EngineError> {
        let answers = self.generate_scored(prompts, options)?;
        Ok(answers.into_iter().map(|answer| answer.tokens).collect())
    }

    /// As `generate`, with the score of each answer.
    pub fn generate_scored(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
    ) -> Result<Vec<Answer>, EngineError> {
        let generation = self.program.generation.as_ref().ok_or(EngineError::NotPlanned { what: "generation" })?;
        let shape = generation.shape;
        check(&shape, prompts, options, self.program.spec.vocab())?;
        if options.max_new == 0 {
            return Ok(vec![Answer::default(); prompts.len()]);
        }
        self.staging.forget();
        let parts = self.program.parts;
        // SAFETY: the staging part of our arena, which no tensor overlaps. `&mut self` keeps the loader away from it, and a
        // frame that is given prompts or hypotheses reads it only through these slices.
        let words = unsafe {
            let at = self.arena.base().add(parts.store + parts.transient + parts.workspace);
            std::slice::from_raw_parts_mut(at.cast::<u32>(), parts.staging)
        };
        let mut area = Area::cut(words, &shape);
        let mut answers = Vec::with_capacity(prompts.len());
        for group in prompts.chunks(shape.prompts) {
            // In the first step the hypotheses of a prompt are all the same: one stands for all.
            area.fill(group, 1, &self.program.spec);
            self.encode(generation, &area, group.len());
            match options.beams {
                1 => self.one_by_one(generation, &mut area, group.len(), options, &mut answers),
                _ => self.beam_search(generation, &mut area, group.len(), options, &mut answers),
            }
        }
        Ok(answers)
    }

    fn encode(&self, generation: &PlacedGeneration, area: &Area, prompts: usize) {
        let rows = area.starts[prompts] as usize;
        let mut frame = self.frame(&generation.placed);
        frame.prompts = Some(Prompts {
            tokens: &area.tokens[..rows],
            starts: &area.starts[..=prompts],
            sample: &area.sample[..rows],
            position: &area.position[..rows],
        });
        frame.run(&generation.placed.tape.ops[..generation.split]);
    }

    /// Runs the decoding step for the first `prompts` prompts with `beams` hypotheses each; returns their logits.
    fn decode<'e>(
        &'e self,
        generation: &'e PlacedGeneration,
        area: &mut Area,
        prompts: usize,
        beams: usize,
        position: usize,
    ) -> &'e [f32] {
        let rows = prompts * beams;
        for row in 0..rows {
            area.origin[row * generation.shape.max_new + position] = row as u32;
            area.at[row] = area.first[row / beams] + position as u32;
        }
        let mut frame = self.frame(&generation.placed);
        frame.beam = Some(Beam {
            tokens: &area.last[..rows],
            map: &area.zeros[..rows],
            origin: &*area.origin,
            position,
            at: &area.at[..rows],
            beams,
            source_starts: &area.starts[..=prompts],
        });
        frame.run(&generation.placed.tape.ops[generation.split..]);
        &self.frame(&generation.placed).read(generation.logits)[..rows * self.program.spec.vocab()]
    }

    /// One hypothesis per prompt: the likeliest token each time, or one that is drawn.
    fn one_by_one(
        &self,
        generation: &PlacedGeneration,
        area: &mut Area,
        prompts: usize,
        options: &GenerateOptions,
        answers: &mut Vec<Answer>,
    ) {
        let (spec, simd, first) = (&self.program.spec, self.cores.simd, answers.len());
        answers.resize_with(first + prompts, Answer::default);
        let answers = &mut answers[first..];
        let ended = |answer: &Answer| answer.tokens.last().is_some_and(|token| spec.ends(*token));
        for position in 0..options.max_new {
            // Whatever ended at the end of the group costs no more.
            let Some(live) = answers.iter().rposition(|a| !ended(a)).map(|i| i + 1) else { break };
            let logits = self.decode(generation, area, live, 1, position);
            for (row, (answer, logits)) in answers.iter_mut().zip(logits.chunks_exact(spec.vocab())).enumerate() {
                area.last[row] = spec.pad_id();
                if !ended(answer) {
                    let token = match &options.sampling {
                        None => rank::first_of_largest(simd, logits),
                        Some(how) => sample::draw(simd, logits, how, (first + row) as u32, position as u32),
                    };
                    answer.score += rank::normaliser(simd, logits).log_probability(logits[token as usize]);
                    answer.tokens.push(token);
                    area.last[row] = token;
                }
            }
        }
    }

    fn beam_search(
        &self,
        generation: &PlacedGeneration,
        area: &mut Area,
        prompts: usize,
        options: &GenerateOptions,
        answers: &mut Vec<Answer>,
    ) {
        let (spec, simd) = (&self.program.spec, self.cores.simd);
        let (width, stride) = (options.beams, generation.shape.max_new);
        let ends = match spec {
            ModelSpec::T5(spec) => vec![spec.eos_id],
            ModelSpec::Decoder(spec) => spec.eos_ids.clone(),
            ModelSpec::Series(_) => Vec::new(),
        };
        let (rules, vocab) = (Rules::new(options, ends), spec.vocab());
        let most = prompts * width;
        let mut searches: Vec<Search> = (0..prompts).map(|_| Search::default()).collect();
        // `made[position, row]`: the token that the row's hypothesis got there, its input one position later.
        let mut made = vec![0u32; most * options.max_new];
        let mut scores = vec![0.0f32; most];
        let mut ranked = vec![Candidate::default(); most * 2 * width];
        let mut next = Vec::with_capacity(width);
        let mut beams = 1;
        for position in 0..options.max_new {
            let Some(live) = searches.iter().rposition(|s| !s.done).map(|i| i + 1) else { break };
            let logits = self.decode(generation, area, live, beams, position);
            let ranked = &mut ranked[..live * beams * 2 * width];
            ranked.par_chunks_mut(2 * width).with_max_len(1).enumerate().for_each(|(row, top)| {
                let logits = &logits[row * vocab..][..vocab];
                rank::continuations(simd, row, logits, scores[row], top);
            });
            let per_prompt = ranked.chunks_exact_mut(beams * 2 * width);
            for (prompt, (search, candidates)) in searches.iter_mut().zip(per_prompt).enumerate() {
                let rows = prompt * width..(prompt + 1) * width;
                if search.done {
                    // Its rows are computed for nothing, from whatever their own cache rows hold.
                    rows.for_each(|row| area.spare[row * stride..][..=position].fill(row as u32));
                    continue;
                }
                candidates.sort_unstable_by(Candidate::order);
                let origin = &*area.origin;
                let tokens = |last: &Candidate| {
                    let past = &origin[last.row as usize * stride..][..=position];
                    let earlier = past.iter().skip(1).enumerate().map(|(at, row)| made[at * most + *row as usize]);
                    earlier.chain([last.token]).collect()
                };
                search.advance(&rules, position + 1, &candidates[..2 * width], tokens, &mut next);
                for (row, chosen) in rows.zip(&next) {
                    area.last[row] = chosen.token;
                    made[position * most + row] = chosen.token;
                    scores[row] = chosen.score;
                    let past = &area.origin[chosen.row as usize * stride..][..=position];
                    area.spare[row * stride..][..=position].copy_from_slice(past);
                }
            }
            std::mem::swap(&mut area.origin, &mut area.spare);
            beams = width;
        }
        answers.extend(searches.into_iter().map(Search::answer));
    }
}

/// Refuses what the plan has no room for, before anything runs.
fn check(
    shape: &GenerateShape,
    prompts: &[Vec<u32>],
    options: &GenerateOptions,
    vocab: usize,
) -> Result<(), EngineError> {
    let within = |what, least: usize, expected: usize, found: usize| match (least..=expected).contains(&found) {
        true => Ok(()),
        false => Err(EngineError::Batch { what, expected, found }),
    };
    within("the number of beams (at least 1)", 1, shape.beams, options.beams)?;
    within("the number of new tokens", 0, shape.max_new, options.max_new)?;
    for prompt in prompts {
        within("the length of a prompt (at least 1)", 1, shape.source_len, prompt.len())?;
        if let Some(token) = prompt.iter().find(|token| **token as usize >= vocab) {
            return Err(EngineError::Token { token: *token, vocab });
        }
    }
    Ok(())
}
