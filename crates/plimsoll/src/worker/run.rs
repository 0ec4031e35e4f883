//! The loop of a run: update, record, evaluate, save, until it is done or asked to stop.
//!
//! Its memory was planned and taken before it starts; what it writes between steps (journal, checkpoints) is on its own
//! lines in the plan.

use std::path::Path;
use std::time::Instant;

use plimsoll_data::{Cursor, Loader, LoaderSettings};
use plimsoll_engine::{Engine, MicroStep, Updates};
use plimsoll_machine::{Bytes, Root, own_memory, process_memory};
use plimsoll_plan::program::Program;
use plimsoll_recover::{StopFlag, atomic_write};
use plimsoll_watch::{Event, Journal, Progress, StepView, Summary, Target};

use super::evaluate::{self, evaluate};
use super::save;
use super::weights::fill_weights;
use crate::heap::{self, Role};
use crate::prepare::{PREFETCH, Prepared, loader_hook};
use crate::render::{self, Exit, Fail};
use crate::settings::Settings;

/// Seconds between two looks at the memory of the run.
const LOOK_SECONDS: f64 = 0.5;

/// What is counted over a run, and saved with it.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Tally {
    /// Real tokens.
    tokens: u64,
    /// Wall time of the training steps.
    step_seconds: f64,
    /// Wall time of everything.
    wall_seconds: f64,
    /// Loss of the last step.
    last_loss: f64,
    /// Samples of which something was cut.
    truncated: u64,
    /// The highest sum of peaks so far.
    peak_ram: u64,
}

pub(super) struct Run<'a> {
    pub folder: &'a Path,
    pub settings: Settings,
    pub prepared: Prepared,
    supervisor: u32,
    stop: StopFlag,
    pub engine: Engine,
    journal: Journal,
    progress: Progress,
    /// Updates done.
    pub step: u64,
    pub cursor: Cursor,
    pub tally: Tally,
    pub evals: Vec<plimsoll_watch::EvalResult>,
    began: Instant,
    /// Allocations on engine threads in steps after the first.
    allocations: u64,
    saved_at: Option<u64>,
    ram: Bytes,
    looked: Instant,
}

/// How the loop ended.
enum End {
    Done,
    Stopped,
}

impl<'a> Run<'a> {
    pub fn start(
        folder: &'a Path,
        settings: Settings,
        prepared: Prepared,
        program: Program,
        supervisor: u32,
        stop: StopFlag,
    ) -> Result<Run<'a>, Fail> {
        let updates =
            Updates { optimizer: settings.optimizer.clone(), clip_norm: settings.clip_norm, seed: settings.seed };
        let mut engine = Engine::start(program, Some(updates))?;
        let journal_path = folder.join("journal.jsonl");
        let resumed = save::load(folder, &mut engine, &prepared)?;
        let mut journal;
        let (mut step, mut cursor, mut tally, mut evals) = (0, Cursor::default(), Tally::default(), Vec::new());
        match resumed {
            Some(state) => {
                (step, cursor, tally, evals) = (state.step, state.cursor, state.tally, state.evals);
                journal = Journal::append(&journal_path)?;
                journal.record(&Event::Resumed { step, from: state.path.clone() })?;
                render::talk(format!("going on after step {step}, from {}", state.path.display()));
                if state.simd != prepared.plan.simd {
                    render::talk("this machine has another instruction set: losses agree to rounding, not to the bit");
                }
            }
            None => {
                fill_weights(&mut engine, &prepared, settings.seed)?;
                journal = if journal_path.exists() {
                    Journal::append(&journal_path)?
                } else {
                    Journal::create(&journal_path)?
                };
                let plan = &prepared.plan;
                journal.record(&Event::RunStarted {
                    version: env!("CARGO_PKG_VERSION").into(),
                    plan: "plan.json".into(),
                    total_steps: prepared.steps,
                    effective_batch: plan.effective_batch as u64,
                    threads: plan.threads as u64,
                    simd: format!("{:?}", plan.simd).to_lowercase(),
                    planned_ram_bytes: plan.ram.peak,
                    planned_vram_bytes: Bytes::ZERO,
                    facts: serde_json::Value::Null,
                })?;
            }
        }
        let progress = Progress::new(prepared.steps, Target::Stderr);
        let now = Instant::now();
        Ok(Run {
            folder,
            settings,
            prepared,
            supervisor,
            stop,
            engine,
            journal,
            progress,
            step,
            cursor,
            tally,
            evals,
            began: now,
            allocations: 0,
            saved_at: None,
            ram: Bytes::ZERO,
            looked: now,
        })
    }

    pub fn go(mut self) -> Result<(), Fail> {
        let (before, began) = (self.tally.wall_seconds, self.began);
        let end = self.train(before, began)?;
        self.progress.finish();
        self.tally.wall_seconds = before + began.elapsed().as_secs_f64();
        match end {
            End::Stopped => {
                if self.saved_at != Some(self.step) && self.step > 0 {
                    self.save()?;
                }
                self.journal.record(&Event::Stopped { step: self.step, reason: "asked to stop".into() })?;
                self.journal.sync()?;
                let saved = if self.step > 0 { "saved" } else { "nothing to save yet" };
                render::talk(format!(
                    "stopped after step {} of {}, {saved}; go on: plimsoll resume {}",
                    self.step,
                    self.prepared.steps,
                    self.folder.display()
                ));
                Err(Fail::silent(Exit::Stopped))
            }
            End::Done => self.finish(),
        }
    }

    fn loader(&self) -> Result<Loader, Fail> {
        let plan = &self.prepared.plan;
        let settings = LoaderSettings {
            shape: self.engine.program().shape,
            effective_batch: plan.effective_batch,
            threads: plan.choices.loader_threads,
            prefetch_batches: PREFETCH,
            cursor: self.cursor,
            limit: None,
            on_thread_start: Some(loader_hook()),
        };
        let Prepared { sources, tokenizer, order, .. } = &self.prepared;
        let (sources, order, tokenizer) = (sources.clone(), *order, tokenizer.clone());
        Ok(heap::on_behalf(Role::Loader, || Loader::start(sources, order, tokenizer, settings))?)
    }

    fn train(&mut self, wall_before: f64, began: Instant) -> Result<End, Fail> {
        let mut loader = self.loader()?;
        let end = loop {
            if self.step >= self.prepared.steps {
                break End::Done;
            }
            if self.stop.requested() {
                break End::Stopped;
            }
            let first = self.step_seen();
            let before = heap::allocations(Role::Engine);
            let Some((report, truncated)) = self.update(&mut loader)? else { break End::Stopped };
            if !first {
                self.allocations += heap::allocations(Role::Engine) - before;
            }
            self.step += 1;
            self.cursor = loader.cursor();
            self.tally.tokens += report.tokens;
            self.tally.step_seconds += report.seconds;
            self.tally.last_loss = report.loss;
            self.tally.truncated += truncated;
            self.tally.wall_seconds = wall_before + began.elapsed().as_secs_f64();
            self.show(&report)?;
            if !report.loss.is_finite() {
                let fail =
                    Fail::new(Exit::Failed, anyhow::anyhow!("the loss of step {} is {}", self.step, report.loss));
                return Err(fail.hint("lower the learning rate, or clip gradients with clip_norm; the last checkpoint is from before this step"));
            }
            let every = |n: Option<u64>| n.is_some_and(|n| n > 0 && self.step.is_multiple_of(n));
            let last = self.step == self.prepared.steps;
            let (save, eval) = (every(self.settings.save_every), every(self.settings.eval_every));
            // Evaluated first: a checkpoint holds the evaluations up to its step, and a resume from it repeats none.
            if eval || (last && self.prepared.eval.is_some()) {
                self.evaluate()?;
            }
            if save && !last {
                self.save()?;
            }
        };
        heap::on_behalf(Role::Loader, || drop(loader));
        Ok(end)
    }

    fn step_seen(&self) -> bool {
        self.ram == Bytes::ZERO
    }

    /// One update: every micro-batch of the effective batch. None: asked to stop on the way; what was begun is dropped.
    fn update(&mut self, loader: &mut Loader) -> Result<Option<(StepReport, u64)>, Fail> {
        let start = Instant::now();
        let plan = &self.prepared.plan;
        let factor = self.settings.schedule.factor(self.step, self.prepared.steps);
        let lr = self.settings.optimizer.lr().map(|lr| lr * factor);
        let (mut tokens, mut truncated, mut samples) = (0, 0, 0);
        let mut step = MicroStep { update: self.step, samples: 0, first_sample: 0, lr };
        for micro in 0..plan.accumulation {
            if micro > 0 && self.stop.requested() {
                return Ok(None);
            }
            let facts = loader.next(self.engine.slot())?;
            step = MicroStep { samples: facts.samples, first_sample: samples, ..step };
            self.engine.micro_step(step)?;
            samples += facts.samples as u32;
            tokens += facts.source_tokens + facts.target_tokens;
            truncated += facts.truncated as u64;
        }
        let (loss, grad_norm) = self.engine.update(step)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Some((StepReport { loss: loss.mean(), lr: lr.unwrap_or(0.0), grad_norm, tokens, seconds }, truncated)))
    }

    fn show(&mut self, report: &StepReport) -> Result<(), Fail> {
        if self.step_seen() || self.looked.elapsed().as_secs_f64() > LOOK_SECONDS {
            self.look();
        }
        let tokens_per_second = self.tally.tokens as f64 / self.tally.step_seconds.max(1e-9);
        self.journal.record(&Event::Step {
            step: self.step,
            loss: report.loss,
            lr: report.lr,
            grad_norm: report.grad_norm,
            tokens: report.tokens,
            seconds: report.seconds,
            tokens_per_second: report.tokens as f64 / report.seconds.max(1e-9),
            ram_bytes: self.ram,
        })?;
        self.progress.step(&StepView {
            step: self.step,
            loss: report.loss,
            tokens_per_second,
            ram_used: self.ram,
            ram_planned: self.prepared.plan.ram.peak,
        });
        Ok(())
    }

    /// Reads the run's memory: what is used now, and the sum of the peaks.
    fn look(&mut self) {
        let root = Root::system();
        self.looked = Instant::now();
        let (Ok(ours), Ok(theirs)) = (own_memory(&root), process_memory(&root, self.supervisor)) else { return };
        self.ram = ours.rss + theirs.rss;
        self.tally.peak_ram = self.tally.peak_ram.max((ours.peak + theirs.peak).0);
    }

    fn save(&mut self) -> Result<(), Fail> {
        let start = Instant::now();
        let (path, bytes) = save::save(self)?;
        self.saved_at = Some(self.step);
        self.journal.record(&Event::Saved { step: self.step, path, bytes, seconds: start.elapsed().as_secs_f64() })?;
        Ok(())
    }

    fn evaluate(&mut self) -> Result<(), Fail> {
        let Some(sources) = self.prepared.eval.clone() else { return Ok(()) };
        let found = evaluate(&mut self.engine, &sources, &self.prepared.tokenizer, Some(evaluate::ROWS_IN_A_RUN))?;
        self.journal.record(&Event::Eval {
            step: self.step,
            loss: found.loss,
            bleu: found.bleu,
            exact: found.exact,
            seconds: found.seconds,
        })?;
        self.progress.note(&format!("step {}: {found}", self.step));
        self.evals.push(plimsoll_watch::EvalResult {
            step: self.step,
            loss: found.loss,
            bleu: found.bleu,
            exact: found.exact,
            seconds: found.seconds,
        });
        Ok(())
    }

    /// The last checkpoint, the model, the summary, and what to do next.
    fn finish(mut self) -> Result<(), Fail> {
        self.save()?;
        let model = self.folder.join("model");
        save::save_final(&self, &model)?;
        // Reads a block of the data: before the last look, so that the summary's peak covers it.
        let example = self.prepared.example().unwrap_or_else(|| "...".into());
        self.look();
        let plan = &self.prepared.plan;
        let summary = self.summary();
        atomic_write(&self.folder.join("summary.json"), summary.to_json().as_bytes())?;
        self.journal.record(&Event::Finished {
            steps: self.step,
            final_loss: self.tally.last_loss,
            seconds: self.tally.wall_seconds,
            peak_ram_bytes: summary.peak_ram_bytes,
        })?;
        self.journal.sync()?;
        if self.tally.truncated > 0 {
            render::talk(format!("{} samples were longer than planned and were cut", self.tally.truncated));
        }
        render::talk(format!(
            "done: {} steps in {:.1} s, {:.0} tokens/s, loss {:.4}",
            self.step, self.tally.wall_seconds, summary.tokens_per_second, self.tally.last_loss
        ));
        let (planned, peak) = (plan.ram.peak, summary.peak_ram_bytes);
        let share = peak.0 as f64 / planned.0.max(1) as f64 * 100.0;
        render::talk(format!(
            "RAM: planned {planned}, measured peak {peak} ({share:.1} % of the plan), budget {}",
            plan.ram.budget
        ));
        render::talk(format!("model: {}", model.display()));
        render::talk(format!("try it: plimsoll generate {} --prompt \"{example}\"", self.folder.display()));
        Ok(())
    }

    fn summary(&self) -> Summary {
        let plan = &self.prepared.plan;
        let flops = plan.flops_per_update * self.step as f64;
        let mut more = std::collections::BTreeMap::new();
        more.insert("truncated_samples".to_string(), self.tally.truncated.into());
        more.insert("step_seconds".to_string(), self.tally.step_seconds.into());
        Summary {
            steps: self.step,
            final_loss: self.tally.last_loss,
            tokens_per_second: self.tally.tokens as f64 / self.tally.step_seconds.max(1e-9),
            planned_ram_bytes: plan.ram.peak,
            peak_ram_bytes: Bytes(self.tally.peak_ram),
            wall_seconds: self.tally.wall_seconds,
            evals: self.evals.clone(),
            engine_allocations_after_first_step: Some(self.allocations),
            loader_heap_peak_bytes: Some(Bytes(heap::peak(Role::Loader))),
            loader_heap_planned_bytes: Some(self.prepared.loader_planned),
            gflops: Some(flops / self.tally.step_seconds.max(1e-9) / 1e9),
            more,
            ..Summary::default()
        }
    }
}

/// What one update came to.
struct StepReport {
    loss: f64,
    lr: f64,
    grad_norm: Option<f64>,
    tokens: u64,
    seconds: f64,
}

impl Prepared {
    /// A prompt from the data, to try the model with.
    fn example(&self) -> Option<String> {
        let sources = self.eval.as_ref().unwrap_or(&self.sources);
        let mut rows = plimsoll_data::RowTexts::new(sources.clone());
        let (source, _) = rows.pair(0).ok()?;
        let short: String = source.chars().take(120).collect();
        Some(short.replace(['\n', '"'], " "))
    }
}
