//! The loop of a run: update, record, save, evaluate, until it is done or asked to stop.
//!
//! Its memory was planned and taken before it starts; what it writes between steps (journal, checkpoints) is on its own
//! lines in the plan. A journal that cannot be written is said once and stops nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::Cursor;
use plimsoll_data::series::Part;
use plimsoll_engine::cuda::CudaOptions;
use plimsoll_engine::{NotFinite, Snapshot, Stepper, Updates};
use plimsoll_machine::Bytes;
use plimsoll_plan::choose::Plan;
use plimsoll_plan::program::Program;
use plimsoll_plan::tape::Role as TensorRole;
use plimsoll_recover::cause::Kind;
use plimsoll_recover::{News, NewsWriter, StopFlag};
use plimsoll_watch::{EvalResult, Event, Journal, Moment, Progress, SaveReason, StepView, Target};

use super::early_stop;
use super::evaluate::{self, Evaluation, evaluate};
use super::evaluate_series::evaluate_series;
use super::feed::Feed;
use super::last_words;
use super::samples::Looks;
use super::save::{self, Layout, Restored};
use super::saver::{Saver, out_of_hand, worth_waiting};
use super::update::{Ahead, Outcome, StepReport};
use super::weights::fill_weights;
use crate::heap::{self, Role};
use crate::prepare::{Prepared, RunData, Texts, Windows, kernel_folder};
use crate::render::{self, Exit, Fail};
use crate::settings::Settings;

/// What is counted over a run, and saved with it.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Tally {
    /// Real tokens.
    pub tokens: u64,
    /// Wall time of the training steps.
    pub step_seconds: f64,
    /// Of it, waiting for data.
    #[serde(default)]
    pub data_seconds: f64,
    /// Wall time of everything.
    pub wall_seconds: f64,
    /// Loss of the last step that changed weights.
    pub last_loss: f64,
    /// Samples of which something was cut.
    pub truncated: u64,
    /// Rows that were left out.
    #[serde(default)]
    pub dropped: u64,
    /// Steps that changed no weight, because loss or gradient was not finite.
    #[serde(default)]
    pub skipped: u64,
    /// The highest sum of peaks so far, under the present plan.
    pub peak_ram: u64,
    /// The highest use of the card, under the present plan.
    #[serde(default)]
    pub peak_vram: u64,
}

pub(super) struct Run<'a> {
    pub folder: &'a Path,
    pub settings: Settings,
    pub prepared: Prepared,
    pub stop: StopFlag,
    news: Option<NewsWriter>,
    pub engine: Stepper,
    pub layout: Arc<Layout>,
    pub journal: Journal,
    pub progress: Progress,
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
    /// Steps in a row that changed nothing.
    pub skips: u64,
    /// The step of the last checkpoint.
    pub saved_at: Option<u64>,
    /// The step of the last one that was made while stopping.
    pub exit_step: Option<u64>,
    /// A step was done since the last checkpoint.
    pub unsaved: bool,
    /// The weights hold numbers that are not finite.
    pub poisoned: bool,
    /// The journal could not be written, and this was said.
    mute: bool,
    pub saver: Saver,
    pub looks: Looks,
    /// Wall time of the training steps of this process.
    pub own_step_seconds: f64,
    /// How far the next update has come.
    pub ahead: Ahead,
}

/// How the loop ended.
enum End {
    Done,
    Stopped,
    /// The step that was begun could not be done; those before it are as they were.
    Failed(Fail),
    /// Weights are not what any step made them; nothing can be saved.
    Lost(Fail),
}

/// What the supervisor and the plan leave to the run.
pub(super) struct Start<'a> {
    pub folder: &'a Path,
    pub settings: Settings,
    pub prepared: Prepared,
    pub program: Program,
    pub supervisor: u32,
    pub stop: StopFlag,
    pub news: Option<NewsWriter>,
}

impl<'a> Run<'a> {
    pub fn start(from: Start<'a>) -> Result<Run<'a>, Fail> {
        let Start { folder, settings, prepared, program, supervisor, stop, news } = from;
        let updates =
            Updates { optimizer: prepared.job.optimizer.clone(), clip_norm: settings.clip_norm, seed: settings.seed };
        tell(news.as_ref(), &planned(&prepared.plan, &program));
        let snapshot = prepared.plan.snapshot.then(|| Snapshot::take(&program)).transpose()?;
        let card = CudaOptions { cache: Some(kernel_folder()), ..CudaOptions::default() };
        let mut engine = Stepper::start(program, Some(updates), &card)?;
        let layout = Arc::new(Layout::of(&engine, &prepared));
        let mut looks = Looks::new(supervisor);
        let at_start = looks.sample(Moment::Start, 0, folder, &prepared.plan);
        let resumed = save::load(folder, &mut engine, &prepared, &layout, settings.seed)?;
        if resumed.is_none() {
            fill_weights(&mut engine, &prepared, settings.seed)?;
        }
        // From here on there is a run: what was refused until now has left the journal as it was.
        tell(news.as_ref(), &News::Ready);
        let journal = Journal::append(&folder.join("journal.jsonl"))?;
        let progress = Progress::new(prepared.steps, Target::Stderr);
        let mut run = Run {
            folder,
            settings,
            prepared,
            stop,
            news,
            engine,
            layout,
            journal,
            progress,
            step: 0,
            cursor: Cursor::default(),
            tally: Tally::default(),
            evals: Vec::new(),
            eval_due: false,
            allocations: 0,
            stepped: false,
            skips: 0,
            saved_at: None,
            exit_step: None,
            unsaved: false,
            poisoned: false,
            mute: false,
            saver: Saver::new(snapshot),
            looks,
            own_step_seconds: 0.0,
            ahead: Ahead::Nothing,
        };
        match resumed {
            Some(state) => run.go_on(state),
            None => run.begin(),
        }
        run.note_plan();
        run.note(&at_start);
        run.sample(Moment::ModelLoaded);
        Ok(run)
    }

    fn note_plan(&mut self) {
        let plan = &self.prepared.plan;
        let event = Event::Planned {
            ram_bytes: plan.ram.peak,
            budget_bytes: plan.ram.budget,
            smallest_bytes: plan.smallest,
            micro_batch: plan.micro_batch as u64,
            accumulation: plan.accumulation as u64,
            recompute: plan.choices.recompute as u64,
            snapshot: plan.snapshot,
            parts: plan.ram.parts.iter().map(|part| (part.name.clone(), part.bytes)).collect(),
        };
        self.note(&event);
    }

    fn begin(&mut self) {
        let plan = &self.prepared.plan;
        let event = Event::RunStarted {
            version: env!("CARGO_PKG_VERSION").into(),
            plan: "plan.json".into(),
            total_steps: self.prepared.steps,
            effective_batch: plan.effective_batch as u64,
            threads: plan.threads as u64,
            simd: format!("{:?}", plan.simd).to_lowercase(),
            planned_ram_bytes: plan.ram.peak,
            planned_vram_bytes: plan.vram.peak,
            facts: serde_json::Value::Null,
        };
        self.note(&event);
    }

    fn go_on(&mut self, state: Restored) {
        let Restored { step, cursor, tally, evals, eval_due, exit_step, path, changes } = state;
        (self.step, self.cursor, self.tally) = (step, cursor, tally);
        (self.evals, self.eval_due, self.saved_at, self.exit_step) = (evals, eval_due, Some(step), exit_step);
        render::talk(format!("going on after step {step}, from {}", path.display()));
        changes.iter().for_each(render::talk);
        self.note(&Event::Resumed { step, from: path });
    }

    /// Puts an event into the journal.
    pub(super) fn note(&mut self, event: &Event) {
        if let Err(error) = self.journal.record(event)
            && !std::mem::replace(&mut self.mute, true)
        {
            self.progress.note(&format!("the journal cannot be written: {error}; the run goes on without it"));
        }
    }

    /// Tells the supervisor something.
    pub(super) fn tell(&self, news: &News) {
        tell(self.news.as_ref(), news);
    }

    pub(super) fn warn(&mut self, message: String) {
        self.progress.note(&message);
        self.note(&Event::Warning { step: self.step, message });
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
                if let Err(second) = self.save_unless_saved(SaveReason::Exit) {
                    render::report(&second);
                }
                Err(self.noted(fail))
            }
            End::Lost(fail) => {
                self.collect(true);
                Err(self.noted(fail))
            }
        }
    }

    /// Saves for a stop. A run that is only to hand over, and cannot save for want of room, goes on instead.
    fn may_stop(&mut self) -> bool {
        if !self.stop.handing_over() {
            return true;
        }
        match self.save_unless_saved(SaveReason::Exit) {
            Err(fail) if worth_waiting(&fail) => {
                self.note_not_saved(self.step, &fail);
                self.stop.decline_to_hand_over();
                false
            }
            // Whatever else is wrong comes up again where it is told.
            _ => true,
        }
    }

    fn stopped(&mut self) -> Result<(), Fail> {
        if let Err(fail) = self.save_unless_saved(SaveReason::Exit) {
            return Err(self.noted(fail));
        }
        let handing_over = self.stop.handing_over();
        let reason = if handing_over { "to go on under another plan" } else { "asked to stop" };
        self.note(&Event::Stopped { step: self.step, reason: reason.into() });
        let _ = self.journal.sync();
        if !handing_over {
            let saved = if self.step > 0 { "saved" } else { "nothing to save yet" };
            render::talk(format!(
                "stopped after step {} of {}, {saved}; go on: plimsoll resume {}",
                self.step,
                self.prepared.steps,
                self.folder.display()
            ));
        }
        Err(Fail::silent(Exit::Stopped))
    }

    /// Notes why the run ends, and adds how it goes on unless another remedy is known.
    pub(super) fn noted(&mut self, fail: Fail) -> Fail {
        let message = fail.fact.as_ref().map_or("failed".to_string(), |fact| format!("{fact:#}"));
        self.note(&Event::Failed { step: self.step, message, place: None });
        let kind = if self.poisoned { Some(Kind::NonFinite) } else { last_words::kind_of(&fail) };
        kind.into_iter().for_each(|kind| self.tell(&News::Failing { kind }));
        let _ = self.journal.sync();
        let fail = Fail { exit: Exit::Failed, ..fail };
        if self.poisoned {
            return fail.hint(out_of_hand(self.saved_at));
        }
        if fail.hint.is_some() {
            return fail;
        }
        let from = match self.saved_at {
            Some(step) => format!("everything up to step {step} is saved"),
            None => "nothing was saved yet".to_string(),
        };
        fail.hint(format!("{from}; put it right, then go on: plimsoll resume {}", self.folder.display()))
    }

    fn train(&mut self, wall_before: f64, began: Instant) -> Result<End, Fail> {
        let Prepared { data, plan, .. } = &self.prepared;
        let mut feed = Feed::start(data, plan, self.engine.program().shape, self.cursor)?;
        self.between_phases();
        let end = loop {
            // Saved before it is evaluated: a run that dies there goes on with the evaluation.
            if let Err(fail) = self.save_if_due() {
                break End::Lost(fail);
            }
            if self.eval_due {
                match self.evaluate() {
                    Ok(true) => {}
                    Ok(false) if self.may_stop() => break End::Stopped,
                    Ok(false) => continue,
                    Err(fail) => break End::Failed(fail),
                }
            }
            if self.step >= self.prepared.steps || self.ends_early().is_some() {
                break End::Done;
            }
            // An update that the card is at already comes first.
            if !self.ahead.is_launched() && self.stop.requested() && self.may_stop() {
                break End::Stopped;
            }
            let before = heap::allocations(Role::Engine);
            let report = match self.update(&mut feed) {
                Ok(Some(done)) => done,
                Ok(None) => break End::Stopped,
                Err(fail) => break End::Failed(fail),
            };
            if self.stepped {
                self.allocations += heap::allocations(Role::Engine) - before;
            }
            if report.what == Outcome::Torn {
                break End::Lost(self.torn());
            }
            (self.step, self.unsaved) = (self.step + 1, true);
            self.cursor = report.cursor;
            self.count(&report);
            self.tally.wall_seconds = wall_before + began.elapsed().as_secs_f64();
            self.show(&report);
            if let Some(fail) = self.out_of_patience(&report) {
                break End::Failed(fail);
            }
            if !std::mem::replace(&mut self.stepped, true) {
                self.sample(Moment::FirstStep);
                self.tell(&News::Stepping { step: self.step });
            }
            let last = self.step == self.prepared.steps;
            self.eval_due = self.prepared.data.evaluates() && (last || every(self.settings.eval_every, self.step));
        };
        heap::on_behalf(Role::Loader, || drop(feed));
        Ok(end)
    }

    fn count(&mut self, report: &StepReport) {
        let tally = &mut self.tally;
        tally.tokens += report.tokens;
        tally.step_seconds += report.seconds;
        self.own_step_seconds += report.seconds;
        tally.data_seconds += report.data_seconds;
        tally.truncated += report.truncated;
        tally.dropped += report.dropped;
        match report.what {
            Outcome::Done => (tally.last_loss, self.skips) = (report.loss, 0),
            // Of these there are only as many as the scale can be halved.
            Outcome::Skipped(NotFinite::ScaledGradient) => tally.skipped += 1,
            Outcome::Skipped(_) | Outcome::Torn => {
                tally.skipped += 1;
                self.skips += 1;
            }
        }
    }

    fn show(&mut self, report: &StepReport) {
        self.look_after_step(report.seconds);
        let tokens_per_second = self.tally.tokens as f64 / self.tally.step_seconds.max(1e-9);
        let ram_bytes = self.looks.ram;
        self.note(&Event::Step {
            step: self.step,
            loss: report.loss,
            lr: report.lr,
            grad_norm: report.grad_norm,
            tokens: report.tokens,
            seconds: report.seconds,
            data_seconds: report.data_seconds,
            tokens_per_second: report.tokens as f64 / report.seconds.max(1e-9),
            ram_bytes,
        });
        if let Outcome::Skipped(what) = report.what {
            let (step, in_a_row) = (self.step, self.skips);
            self.note(&Event::Skipped { step, what: told(what).to_string(), in_a_row });
            self.progress.note(&format!("step {step}: the {} is not finite; no weight is changed by it", told(what)));
        }
        self.progress.step(&StepView {
            step: self.step,
            loss: report.loss,
            tokens_per_second,
            unit: self.prepared.data.unit(),
            ram_used: ram_bytes,
            ram_planned: self.prepared.plan.ram.peak,
        });
    }

    /// The end of a run whose steps change nothing any more.
    fn out_of_patience(&mut self, report: &StepReport) -> Option<Fail> {
        let Outcome::Skipped(what) = report.what else { return None };
        if what == NotFinite::ScaledGradient || self.skips < self.settings.max_skips {
            return None;
        }
        let fact =
            format!("the {} is not finite for {} steps in a row, up to step {}", told(what), self.skips, self.step);
        Some(self.not_finite(fact))
    }

    /// Weights that some gradients of a step have changed before another was found not finite.
    fn torn(&mut self) -> Fail {
        let step = self.step + 1;
        self.poisoned = true;
        self.tell(&News::Torn { step });
        let fact = format!("a gradient of step {step} is not finite, and others have changed weights already");
        Fail::new(Exit::Failed, anyhow::anyhow!(fact))
    }

    /// Numbers that got out of hand: noted, and said with what is left.
    pub(super) fn not_finite(&mut self, fact: String) -> Fail {
        self.poisoned = true;
        self.note(&Event::Warning { step: self.step, message: fact.clone() });
        Fail::new(Exit::Failed, anyhow::anyhow!(fact))
    }

    /// Does the evaluation that is due; whether it was done, or given up for a stop.
    fn evaluate(&mut self) -> Result<bool, Fail> {
        if !self.prepared.data.evaluates() {
            return Ok(true);
        }
        self.between_phases();
        let (engine, stop) = (&mut self.engine, || self.stop.requested());
        let found = match &self.prepared.data {
            RunData::Texts(Texts { eval: Some(sources), tokenizer, recipe, .. }) => {
                evaluate(engine, sources, tokenizer, recipe, Some(evaluate::ROWS_IN_A_RUN), &stop)?
            }
            RunData::Texts(_) => return Ok(true),
            RunData::Series(Windows { series, .. }) => evaluate_series(engine, series, Part::Validation, &stop)?,
        };
        let Some(found) = found else { return Ok(false) };
        let step = self.step;
        self.progress.note(&format!("step {step}: {found}"));
        let Evaluation { loss, bleu, exact, scores, seconds, .. } = found;
        self.note(&Event::Eval { step, loss, bleu, exact, scores: scores.clone(), seconds });
        self.evals.push(EvalResult { step, loss, bleu, exact, scores, seconds });
        early_stop::forget_matrices(&mut self.evals, early_stop::measure(&self.settings));
        self.eval_due = false;
        self.sample(Moment::Eval);
        Ok(true)
    }
}

fn tell(to: Option<&NewsWriter>, news: &News) {
    to.into_iter().for_each(|writer| writer.tell(news));
}

/// What the supervisor needs to know of a plan.
fn planned(plan: &Plan, program: &Program) -> News {
    let words = program.store_words(TensorRole::Weight) + program.store_words(TensorRole::Optimizer);
    let checkpoint = Bytes(words as u64 * 4);
    News::Planned { ram: plan.ram.peak, smallest: plan.smallest, checkpoint }
}

fn told(what: NotFinite) -> &'static str {
    match what {
        NotFinite::Loss => "loss",
        NotFinite::Gradient => "gradient",
        NotFinite::ScaledGradient => "gradient at the loss scale of f16, which is halved now,",
    }
}

/// Whether something that is done every so many steps is done after this one.
pub(super) fn every(n: Option<u64>, step: u64) -> bool {
    n.is_some_and(|n| n > 0 && step.is_multiple_of(n))
}
