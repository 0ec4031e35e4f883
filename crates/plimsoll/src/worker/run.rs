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
use plimsoll_recover::StopFlag;
use plimsoll_watch::{EvalResult, Event, Journal, Progress, SaveReason, StepView, Target};

use super::evaluate::{self, Evaluation, evaluate};
use super::save::{self, Restored};
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
    pub tokens: u64,
    /// Wall time of the training steps.
    pub step_seconds: f64,
    /// Wall time of everything.
    pub wall_seconds: f64,
    /// Loss of the last step.
    pub last_loss: f64,
    /// Samples of which something was cut.
    pub truncated: u64,
    /// The highest sum of peaks so far, under the present plan.
    pub peak_ram: u64,
}

pub(super) struct Run<'a> {
    pub folder: &'a Path,
    pub settings: Settings,
    pub prepared: Prepared,
    supervisor: u32,
    stop: StopFlag,
    pub engine: Engine,
    pub journal: Journal,
    progress: Progress,
    /// Updates done.
    pub step: u64,
    pub cursor: Cursor,
    pub tally: Tally,
    pub evals: Vec<EvalResult>,
    /// The evaluation of the current step is still to be done. Saved with it, so that one that was given up for a stop
    /// is the first thing that a resumed run does.
    pub eval_due: bool,
    /// Allocations on engine threads in steps after the first of this process.
    pub allocations: u64,
    /// Whether this process has done a step.
    stepped: bool,
    /// The step of the last checkpoint.
    saved_at: Option<u64>,
    /// A step or an evaluation was done since.
    unsaved: bool,
    ram: Bytes,
    looked: Instant,
}

/// How the loop ended.
enum End {
    Done,
    Stopped,
    /// The step that was begun could not be done; those before it are as they were.
    Failed(Fail),
    /// A checkpoint could not be written.
    Unsaved(Fail),
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
        let resumed = save::load(folder, &mut engine, &prepared, settings.seed)?;
        if resumed.is_none() {
            fill_weights(&mut engine, &prepared, settings.seed)?;
        }
        let journal = match journal_path.exists() {
            true => Journal::append(&journal_path)?,
            false => Journal::create(&journal_path)?,
        };
        let progress = Progress::new(prepared.steps, Target::Stderr);
        let mut run = Run {
            folder,
            settings,
            prepared,
            supervisor,
            stop,
            engine,
            journal,
            progress,
            step: 0,
            cursor: Cursor::default(),
            tally: Tally::default(),
            evals: Vec::new(),
            eval_due: false,
            allocations: 0,
            stepped: false,
            saved_at: None,
            unsaved: false,
            ram: Bytes::ZERO,
            looked: Instant::now(),
        };
        match resumed {
            Some(state) => run.go_on(state)?,
            None => run.begin()?,
        }
        Ok(run)
    }

    fn begin(&mut self) -> Result<(), Fail> {
        let plan = &self.prepared.plan;
        self.journal.record(&Event::RunStarted {
            version: env!("CARGO_PKG_VERSION").into(),
            plan: "plan.json".into(),
            total_steps: self.prepared.steps,
            effective_batch: plan.effective_batch as u64,
            threads: plan.threads as u64,
            simd: format!("{:?}", plan.simd).to_lowercase(),
            planned_ram_bytes: plan.ram.peak,
            planned_vram_bytes: Bytes::ZERO,
            facts: serde_json::Value::Null,
        })?;
        Ok(())
    }

    fn go_on(&mut self, state: Restored) -> Result<(), Fail> {
        let Restored { step, cursor, tally, evals, eval_due, path, changes } = state;
        (self.step, self.cursor, self.tally) = (step, cursor, tally);
        (self.evals, self.eval_due, self.saved_at) = (evals, eval_due, Some(step));
        render::talk(format!("going on after step {step}, from {}", path.display()));
        changes.iter().for_each(render::talk);
        self.journal.record(&Event::Resumed { step, from: path })?;
        Ok(())
    }

    pub fn go(mut self) -> Result<(), Fail> {
        let (before, began) = (self.tally.wall_seconds, Instant::now());
        let end = self.train(before, began);
        self.progress.finish();
        self.tally.wall_seconds = before + began.elapsed().as_secs_f64();
        match end? {
            End::Done => self.finish(),
            End::Stopped => self.stopped(),
            End::Failed(fail) => {
                if let Err(second) = self.save_unless_saved() {
                    render::report(&second);
                }
                Err(self.noted(fail))
            }
            End::Unsaved(fail) => Err(self.noted(fail)),
        }
    }

    fn stopped(&mut self) -> Result<(), Fail> {
        self.save_unless_saved()?;
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

    /// Notes why the run ends, and adds how it goes on unless another remedy is known.
    fn noted(&mut self, fail: Fail) -> Fail {
        let reason = fail.fact.as_ref().map_or("failed".to_string(), |fact| format!("{fact:#}"));
        let noted = self.journal.record(&Event::Stopped { step: self.step, reason }).and_then(|()| self.journal.sync());
        if let Err(second) = noted {
            render::report(&second.into());
        }
        let fail = Fail { exit: Exit::Failed, ..fail };
        if fail.hint.is_some() {
            return fail;
        }
        let from = match self.saved_at {
            Some(step) => format!("everything up to step {step} is saved"),
            None => "nothing was saved yet".to_string(),
        };
        fail.hint(format!("{from}; put it right, then go on: plimsoll resume {}", self.folder.display()))
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
        let every = |n: Option<u64>, step: u64| n.is_some_and(|n| n > 0 && step.is_multiple_of(n));
        let end = loop {
            // Evaluated first: a checkpoint holds the evaluations up to its step, and a resume from it repeats none.
            if self.eval_due {
                match self.evaluate() {
                    Ok(true) => {}
                    Ok(false) => break End::Stopped,
                    Err(fail) => break End::Failed(fail),
                }
            }
            if self.step >= self.prepared.steps {
                break End::Done;
            }
            if every(self.settings.save_every, self.step)
                && let Err(fail) = self.save_unless_saved()
            {
                break End::Unsaved(fail);
            }
            if self.stop.requested() {
                break End::Stopped;
            }
            let before = heap::allocations(Role::Engine);
            let (report, truncated) = match self.update(&mut loader) {
                Ok(Some(done)) => done,
                Ok(None) => break End::Stopped,
                Err(fail) => break End::Failed(fail),
            };
            if self.stepped {
                self.allocations += heap::allocations(Role::Engine) - before;
            }
            (self.step, self.unsaved) = (self.step + 1, true);
            self.cursor = loader.cursor();
            self.tally.tokens += report.tokens;
            self.tally.step_seconds += report.seconds;
            self.tally.last_loss = report.loss;
            self.tally.truncated += truncated;
            self.tally.wall_seconds = wall_before + began.elapsed().as_secs_f64();
            self.show(&report)?;
            self.stepped = true;
            if !report.loss.is_finite() {
                return Err(self.not_finite(format!("the loss of step {} is {}", self.step, report.loss))?);
            }
            let last = self.step == self.prepared.steps;
            self.eval_due = self.prepared.eval.is_some() && (last || every(self.settings.eval_every, self.step));
        };
        heap::on_behalf(Role::Loader, || drop(loader));
        Ok(end)
    }

    /// One update: every micro-batch of the effective batch. None: asked to stop on the way; what was begun is dropped.
    fn update(&mut self, loader: &mut Loader) -> Result<Option<(StepReport, u64)>, Fail> {
        let start = Instant::now();
        let plan = &self.prepared.plan;
        let factor = self.settings.schedule.factor(self.step, self.prepared.steps);
        let lr = self.settings.optimizer.lr().map(|lr| lr * factor);
        let (mut tokens, mut truncated, mut samples) = (0, 0, 0);
        let mut data_seconds = 0.0;
        let mut step = MicroStep { update: self.step, samples: 0, first_sample: 0, lr };
        for micro in 0..plan.accumulation {
            if micro > 0 && self.stop.requested() {
                return Ok(None);
            }
            let asked = Instant::now();
            let facts = loader.next(self.engine.slot())?;
            data_seconds += asked.elapsed().as_secs_f64();
            step = MicroStep { samples: facts.samples, first_sample: samples, ..step };
            self.engine.micro_step(step)?;
            samples += facts.samples as u32;
            tokens += facts.source_tokens + facts.target_tokens;
            truncated += facts.truncated as u64;
        }
        let (loss, grad_norm) = self.engine.update(step)?;
        let seconds = start.elapsed().as_secs_f64();
        let (loss, lr) = (loss.mean(), lr.unwrap_or(0.0));
        Ok(Some((StepReport { loss, lr, grad_norm, tokens, seconds, data_seconds }, truncated)))
    }

    fn show(&mut self, report: &StepReport) -> Result<(), Fail> {
        if !self.stepped || self.looked.elapsed().as_secs_f64() > LOOK_SECONDS {
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
            data_seconds: report.data_seconds,
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
    pub(super) fn look(&mut self) {
        let root = Root::system();
        self.looked = Instant::now();
        let (Ok(ours), Ok(theirs)) = (own_memory(&root), process_memory(&root, self.supervisor)) else { return };
        self.ram = ours.rss + theirs.rss;
        self.tally.peak_ram = self.tally.peak_ram.max((ours.peak + theirs.peak).0);
    }

    /// Saves after the current step, unless there is nothing that is not saved.
    pub(super) fn save_unless_saved(&mut self) -> Result<(), Fail> {
        if !self.unsaved {
            return Ok(());
        }
        if !self.engine.weights_are_finite() {
            let fact = format!("the weights after step {} are not all finite numbers; they are not saved", self.step);
            return Err(self.not_finite(fact)?);
        }
        let start = Instant::now();
        let (path, bytes) = save::save(self)?;
        (self.saved_at, self.unsaved) = (Some(self.step), false);
        let (seconds, reason) = (start.elapsed().as_secs_f64(), SaveReason::Steps);
        let step = self.step;
        self.journal.record(&Event::Saved { step, path, bytes, seconds, waited_seconds: seconds, reason })?;
        Ok(())
    }

    /// Numbers that got out of hand: noted, and said with what is left.
    fn not_finite(&mut self, fact: String) -> Result<Fail, Fail> {
        self.journal.record(&Event::Warning { step: self.step, message: fact.clone() })?;
        self.journal.sync()?;
        let left = match self.saved_at {
            Some(step) => format!("the last checkpoint, of step {step}, is good"),
            None => "there is no checkpoint".to_string(),
        };
        let fail = Fail::new(Exit::Failed, anyhow::anyhow!(fact));
        Ok(fail.hint(format!("lower the learning rate, or clip gradients with clip_norm; {left}")))
    }

    /// Does the evaluation that is due; whether it was done, or given up for a stop.
    fn evaluate(&mut self) -> Result<bool, Fail> {
        let Some(sources) = self.prepared.eval.clone() else { return Ok(true) };
        let (rows, stop) = (Some(evaluate::ROWS_IN_A_RUN), &self.stop);
        let found = evaluate(&mut self.engine, &sources, &self.prepared.tokenizer, rows, &|| stop.requested())?;
        let Some(found) = found else { return Ok(false) };
        let Evaluation { loss, bleu, exact, seconds, .. } = found;
        let step = self.step;
        self.journal.record(&Event::Eval { step, loss, bleu, exact, seconds })?;
        self.progress.note(&format!("step {step}: {found}"));
        self.evals.push(EvalResult { step, loss, bleu, exact, seconds });
        (self.eval_due, self.unsaved) = (false, true);
        Ok(true)
    }
}

/// What one update came to.
struct StepReport {
    loss: f64,
    lr: f64,
    grad_norm: Option<f64>,
    tokens: u64,
    seconds: f64,
    data_seconds: f64,
}
