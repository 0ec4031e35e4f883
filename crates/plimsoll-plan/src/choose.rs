//! The choice: the smallest plan within 3 % of the fastest that fits, at the same effective batch.
//!
//! Every candidate is a full set of same-result choices. It is judged by the tape that the engine would run: bytes from
//! its lifetimes, seconds from its ops. Only the chosen one is placed, and the placement has the last word.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::cost::Rates;
use crate::footprint::{self, Footprint, Overheads};
use crate::program::{Job, Program, compile, tapes};
use crate::t5::Choices;
use crate::tiles::Simd;

/// Choices that the user holds fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Samples in a micro-batch.
    pub micro_batch: Option<usize>,
    /// Blocks computed again.
    pub recompute: Option<usize>,
    /// Rows of logits at a time.
    pub loss_chunk: Option<usize>,
    /// Updates inside the backward pass.
    pub optimizer_in_backward: Option<bool>,
    /// Threads of the loader.
    pub loader_threads: Option<usize>,
}

/// What a plan is made from, besides the job.
pub struct Terms<'a> {
    /// RAM that the run may use.
    pub ram: Bytes,
    /// Disk that the run may use.
    pub disk: Bytes,
    /// Checkpoints kept.
    pub keep: usize,
    /// What was measured or stated.
    pub overheads: Overheads,
    /// The machine's rates.
    pub rates: Rates,
    /// Tokens a second that one loader thread makes.
    pub loader_rate: f64,
    /// What the user holds fixed.
    pub pins: Pins,
    /// Heap of the loader for a micro-batch and a number of threads.
    pub loader: &'a dyn Fn(usize, usize) -> Bytes,
}

/// Does it fit?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Yes.
    Fits,
    /// No, by any same-result choice.
    TooBig,
}

/// One knob turned away from the fastest setting, with what it saved and cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// What was done.
    pub what: String,
    /// RAM saved.
    pub saved: i64,
    /// Time added, in percent.
    pub slower_percent: f64,
}

/// A change that would make the job fit; the planner tried it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// What to change.
    pub change: String,
    /// RAM that the job would need then.
    pub ram_peak: Bytes,
}

/// What will be done, and what it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Does it fit?
    pub verdict: Verdict,
    /// Samples per update.
    pub effective_batch: usize,
    /// Samples per micro-batch.
    pub micro_batch: usize,
    /// Micro-batches per update.
    pub accumulation: usize,
    /// Every choice.
    pub choices: Choices,
    /// Blocks of the model, to read `choices.recompute` against.
    pub blocks: usize,
    /// Compute threads.
    pub threads: usize,
    /// Instruction set level.
    pub simd: Simd,
    /// Longest source, in tokens.
    pub source_len: usize,
    /// Longest target, in tokens.
    pub target_len: usize,
    /// RAM over all processes.
    pub ram: Footprint,
    /// Video memory; empty on the CPU.
    pub vram: Footprint,
    /// Disk.
    pub disk: Footprint,
    /// Floating-point operations of one update with full lengths.
    pub flops_per_update: f64,
    /// Seconds of one update by the cost model.
    pub seconds_per_update: f64,
    /// Knobs turned, against the fastest plan without a budget.
    pub cuts: Vec<Cut>,
    /// When too big: by how much, at the least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortfall: Option<Bytes>,
    /// When too big: what would make it fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_fit: Vec<Remedy>,
}

/// Slack against the fastest plan that is traded for memory.
const SLACK: f64 = 1.03;

/// One candidate with its lower bound of RAM and its time.
#[derive(Clone, Copy)]
struct Candidate {
    choices: Choices,
    least: Bytes,
    seconds: f64,
}

struct Search<'a> {
    job: &'a Job,
    terms: &'a Terms<'a>,
    /// RAM outside the arena and the loader.
    fixed: Bytes,
    /// Threads of the loader.
    loader_threads: usize,
}

/// Loader threads that keep twice ahead of what the engine eats; one at least, and no more than the cores.
pub fn loader_threads(tokens_per_second: f64, rate_of_one: f64, cores: usize) -> usize {
    ((2.0 * tokens_per_second / rate_of_one.max(1.0)).ceil() as usize).clamp(1, cores.max(1))
}

/// The loader's threads for a job: pinned, or by the rates.
fn threads_for(job: &Job, terms: &Terms) -> usize {
    terms.pins.loader_threads.unwrap_or_else(|| {
        let choices = smallest(job, terms, 1);
        let seconds = tapes(job, &choices).work(job.effective_batch / choices.micro_batch).seconds(&terms.rates);
        let tokens = (job.effective_batch * (job.source_len + job.target_len)) as f64;
        loader_threads(tokens / seconds, terms.loader_rate, job.threads)
    })
}

impl Search<'_> {
    fn judge(&self, choices: Choices) -> Candidate {
        let tapes = tapes(self.job, &choices);
        let arena = Bytes(tapes.least(self.job) as u64 * 4);
        let loader = (self.terms.loader)(choices.micro_batch, choices.loader_threads);
        let work = tapes.work(self.job.effective_batch / choices.micro_batch);
        Candidate { choices, least: arena + loader + self.fixed, seconds: work.seconds(&self.terms.rates) }
    }

    fn blocks(&self) -> usize {
        self.job.spec.encoder_layers + self.job.spec.decoder_layers
    }

    /// Every combination but recompute, which is searched.
    fn frames(&self) -> Vec<Choices> {
        let pins = &self.terms.pins;
        let batch = self.job.effective_batch;
        let micro: Vec<usize> = match pins.micro_batch {
            Some(n) => vec![n],
            None => (1..=batch).rev().filter(|n| batch.is_multiple_of(*n)).collect(),
        };
        let mut frames = Vec::new();
        for micro_batch in micro {
            let rows = micro_batch * self.job.target_len;
            let mut chunks: Vec<usize> = match pins.loss_chunk {
                Some(n) => vec![n.min(rows)],
                None => [2048, 1024, 512, 256, 128, 64, 32].iter().map(|c: &usize| rows.min(*c)).collect(),
            };
            chunks.dedup();
            let may = self.job.may_update_in_backward(micro_batch);
            let ways: Vec<bool> = match pins.optimizer_in_backward {
                Some(on) => vec![on && may],
                None if may => vec![true, false],
                None => vec![false],
            };
            for loss_chunk in &chunks {
                for optimizer_in_backward in &ways {
                    frames.push(Choices {
                        micro_batch,
                        recompute: pins.recompute.unwrap_or(0),
                        loss_chunk: *loss_chunk,
                        optimizer_in_backward: *optimizer_in_backward,
                        loader_threads: self.loader_threads,
                    });
                }
            }
        }
        frames
    }

    /// The least recompute with which a frame's lower bound fits.
    fn least_that_fits(&self, frame: Choices) -> Option<Candidate> {
        let fits = |c: &Candidate| c.least <= self.terms.ram;
        let none = self.judge(frame);
        if fits(&none) {
            return Some(none);
        }
        if self.terms.pins.recompute.is_some() {
            return None;
        }
        let all = self.judge(Choices { recompute: self.blocks(), ..frame });
        if !fits(&all) {
            return None;
        }
        let (mut low, mut high, mut best) = (0, self.blocks(), all);
        while high - low > 1 {
            let middle = self.judge(Choices { recompute: (low + high) / 2, ..frame });
            if fits(&middle) {
                (high, best) = (middle.choices.recompute, middle);
            } else {
                low = middle.choices.recompute;
            }
        }
        Some(best)
    }

    /// The most recompute that stays within `limit` seconds: less memory for time that we are willing to give.
    fn most_within(&self, from: Candidate, limit: f64) -> Candidate {
        if self.terms.pins.recompute.is_some() || from.choices.recompute >= self.blocks() {
            return from;
        }
        let next = self.judge(Choices { recompute: from.choices.recompute + 1, ..from.choices });
        let each = next.seconds - from.seconds;
        if each <= 0.0 || from.seconds + each > limit {
            return from;
        }
        let more = ((limit - from.seconds) / each) as usize;
        let target = (from.choices.recompute + more).min(self.blocks());
        let most = self.judge(Choices { recompute: target, ..from.choices });
        if most.seconds <= limit && most.least < from.least { most } else { from }
    }
}

/// What a plan leaves to the engine: the same choices, placed.
pub struct Decision {
    /// For people and files.
    pub plan: Plan,
    /// For the engine.
    pub program: Program,
}

/// Chooses. A plan that does not fit has the verdict `TooBig`, and the program of the smallest candidate.
pub fn choose(job: &Job, terms: &Terms) -> Decision {
    let mut decision = decide(job, terms);
    if decision.plan.verdict == Verdict::TooBig {
        decision.plan.would_fit = remedies(job, terms, decision.plan.ram.peak);
    }
    decision
}

fn decide(job: &Job, terms: &Terms) -> Decision {
    let loader_threads = threads_for(job, terms);
    let fixed = {
        let smallest = compile(job, &smallest(job, terms, loader_threads));
        let whole = footprint::ram(&smallest, Bytes::ZERO, loader_threads, &terms.overheads, terms.ram);
        whole.peak.saturating_sub(Bytes(smallest.parts.words() as u64 * 4))
    };
    let search = Search { job, terms, fixed, loader_threads };
    let fitting: Vec<Candidate> = search.frames().into_iter().filter_map(|f| search.least_that_fits(f)).collect();
    let fastest = fitting.iter().map(|c| c.seconds).fold(f64::INFINITY, f64::min);
    let mut ranked: Vec<Candidate> =
        fitting.iter().filter(|c| c.seconds <= fastest * SLACK).map(|c| search.most_within(*c, fastest * SLACK)).collect();
    ranked.sort_by(|a, b| a.least.cmp(&b.least).then(a.seconds.total_cmp(&b.seconds)));
    let mut rest: Vec<Candidate> = fitting.iter().filter(|c| c.seconds > fastest * SLACK).copied().collect();
    rest.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    for candidate in ranked.into_iter().chain(rest) {
        // Placement can need a little more than its lower bound: then a little more is computed again.
        let most = if terms.pins.recompute.is_some() { candidate.choices.recompute } else { search.blocks() };
        for recompute in candidate.choices.recompute..=most.min(candidate.choices.recompute + 2) {
            let choices = Choices { recompute, ..candidate.choices };
            let program = compile(job, &choices);
            let ram = whole_ram(&program, &choices, terms);
            if ram.peak <= terms.ram {
                let disk = footprint::disk(&program, terms.keep, terms.disk);
                let verdict = if disk.peak <= terms.disk { Verdict::Fits } else { Verdict::TooBig };
                let plan = describe(job, terms, &search, choices, ram, disk, verdict);
                return Decision { plan, program };
            }
        }
    }
    let choices = smallest(job, terms, loader_threads);
    let program = compile(job, &choices);
    let ram = whole_ram(&program, &choices, terms);
    let disk = footprint::disk(&program, terms.keep, terms.disk);
    let plan = describe(job, terms, &search, choices, ram, disk, Verdict::TooBig);
    Decision { plan, program }
}

fn whole_ram(program: &Program, choices: &Choices, terms: &Terms) -> Footprint {
    let loader = (terms.loader)(choices.micro_batch, choices.loader_threads);
    footprint::ram(program, loader, choices.loader_threads, &terms.overheads, terms.ram)
}

/// The choices that need the least memory, as far as they are free.
fn smallest(job: &Job, terms: &Terms, loader_threads: usize) -> Choices {
    let pins = &terms.pins;
    let blocks = job.spec.encoder_layers + job.spec.decoder_layers;
    // A whole batch whose gradients never exist together can be smaller than one sample whose gradients are kept.
    let of = |micro_batch: usize| {
        let may = job.may_update_in_backward(micro_batch);
        Choices {
            micro_batch,
            recompute: pins.recompute.unwrap_or(blocks),
            loss_chunk: pins.loss_chunk.unwrap_or(32).min(micro_batch * job.target_len),
            optimizer_in_backward: pins.optimizer_in_backward.unwrap_or(may) && may,
            loader_threads,
        }
    };
    let sizes = pins.micro_batch.map_or(vec![1, job.effective_batch], |n| vec![n]);
    let least = |c: &Choices| tapes(job, c).least(job) as u64 * 4 + (terms.loader)(c.micro_batch, c.loader_threads).0;
    sizes.into_iter().map(of).min_by_key(least).expect("there is at least one size")
}

fn describe(job: &Job, terms: &Terms, search: &Search, choices: Choices, ram: Footprint, disk: Footprint, verdict: Verdict) -> Plan {
    let accumulation = job.effective_batch / choices.micro_batch;
    let work = tapes(job, &choices).work(accumulation);
    let shortfall = (verdict == Verdict::TooBig)
        .then(|| ram.peak.saturating_sub(ram.budget).0.max(disk.peak.saturating_sub(disk.budget).0))
        .map(Bytes);
    Plan {
        verdict,
        effective_batch: job.effective_batch,
        micro_batch: choices.micro_batch,
        accumulation,
        choices,
        blocks: search.blocks(),
        threads: job.threads,
        simd: job.simd,
        source_len: job.source_len,
        target_len: job.target_len,
        ram,
        vram: Footprint::default(),
        disk,
        flops_per_update: work.flops,
        seconds_per_update: work.seconds(&terms.rates),
        cuts: cuts(search, choices),
        shortfall,
        would_fit: Vec::new(),
    }
}

/// The knobs in which a choice differs from the fastest frame, one after the other.
fn cuts(search: &Search, chosen: Choices) -> Vec<Cut> {
    let fastest = search.frames().into_iter().map(|f| search.judge(f)).min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let Some(mut now) = fastest else { return Vec::new() };
    let mut list = Vec::new();
    let mut turn = |what: String, choices: Choices| {
        if choices == now.choices {
            return;
        }
        let next = search.judge(choices);
        let saved = now.least.0 as i64 - next.least.0 as i64;
        list.push(Cut { what, saved, slower_percent: (next.seconds / now.seconds - 1.0) * 100.0 });
        now = next;
    };
    let batch = search.job.effective_batch;
    // A smaller micro-batch brings its own largest chunk and, with accumulation, gradients that are kept.
    let mut step = Choices { recompute: 0, loader_threads: chosen.loader_threads, ..fastest.expect("looked at above").choices };
    step.micro_batch = chosen.micro_batch;
    step.optimizer_in_backward &= search.job.may_update_in_backward(chosen.micro_batch);
    step.loss_chunk = step.loss_chunk.min(chosen.micro_batch * search.job.target_len);
    turn(format!("micro-batch {} x {} accumulated", chosen.micro_batch, batch / chosen.micro_batch), step);
    step.optimizer_in_backward = chosen.optimizer_in_backward;
    let how = if chosen.optimizer_in_backward { "update in the backward pass" } else { "update after the backward pass" };
    turn(how.to_string(), step);
    step.loss_chunk = chosen.loss_chunk;
    turn(format!("loss {} rows at a time", chosen.loss_chunk), step);
    step.recompute = chosen.recompute;
    turn(format!("recompute {} of {} blocks", chosen.recompute, search.blocks()), step);
    list
}

/// Changes that would make the job fit, each tried.
fn remedies(job: &Job, terms: &Terms, needed: Bytes) -> Vec<Remedy> {
    let mut list = vec![Remedy { change: format!("a RAM budget of {}", round_up(needed)), ram_peak: needed }];
    let mut offer = |change: String, job: &Job, terms: &Terms| {
        let plan = decide(job, terms).plan;
        if plan.verdict == Verdict::Fits {
            list.push(Remedy { change, ram_peak: plan.ram.peak });
        }
        plan.verdict == Verdict::Fits
    };
    if terms.pins != Pins::default() {
        offer("no pinned choices".into(), job, &Terms { pins: Pins::default(), overheads: terms.overheads, rates: terms.rates, loader: terms.loader, ..*terms });
    }
    let is_adamw = matches!(job.optimizer, crate::train::OptimizerSpec::AdamW { .. });
    if is_adamw {
        let other = Job { optimizer: crate::train::OptimizerSpec::adafactor(1e-3), ..job.clone() };
        offer("optimizer adafactor (another result)".into(), &other, terms);
    }
    if job.clip {
        offer("no clip_norm (another result)".into(), &Job { clip: false, ..job.clone() }, terms);
    }
    if job.eval.is_some() {
        offer("no evaluation during the run".into(), &Job { eval: None, ..job.clone() }, terms);
    }
    // The longest lengths, by halves, that fit.
    let (mut source, mut target) = (job.source_len, job.target_len);
    while source > 8 || target > 8 {
        (source, target) = ((source / 2).max(8.min(source)), (target / 2).max(8.min(target)));
        let shorter = Job { source_len: source, target_len: target, ..job.clone() };
        if offer(format!("max_len source {source}, target {target} (another result)"), &shorter, terms) {
            break;
        }
    }
    list
}

/// Up to the next MiB, so that what is printed is enough.
fn round_up(bytes: Bytes) -> Bytes {
    Bytes(bytes.0.next_multiple_of(1 << 20) + (1 << 20))
}
