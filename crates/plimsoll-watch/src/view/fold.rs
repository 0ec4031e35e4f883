//! The journal's records taken in one after another, and the view that they come to.

use std::collections::{BTreeMap, VecDeque};

use plimsoll_machine::Bytes;

use super::chronicle::Chronicle;
use super::course::Course;
use super::ledger::Ledger;
use super::told::{Before, Told, one_line, told};
use super::trainer::{launched, processes};
use super::{Choices, Counts, Curve, Evaluated, Latest, RunFacts, Status, Tone, TrainerView, View};
use crate::{Event, Record};

/// Evaluations that are remembered beyond their curve, for a resume that goes back.
const EVALUATIONS: usize = 64;
/// Skipped steps that a resume can still undo.
const SKIPS: usize = 4096;

/// How the journal leaves the run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Standing {
    #[default]
    Open,
    Stopped,
    Finished,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Fold {
    standing: Standing,
    since_unix_ms: Option<u64>,
    last_unix_ms: Option<u64>,
    why: Option<String>,
    run: Option<RunFacts>,
    trainer: Option<TrainerView>,
    /// The limit of the start that is about to be told.
    cap: Option<Bytes>,
    step: u64,
    total_steps: u64,
    latest: Option<Latest>,
    evaluations: VecDeque<Evaluated>,
    losses: Curve,
    evals: Curve,
    ledger: Ledger,
    course: Course,
    counts: Counts,
    incident_kinds: BTreeMap<String, u64>,
    skips: VecDeque<u64>,
    choices: Option<Choices>,
    chronicle: Chronicle,
}

impl Fold {
    /// Takes in the next record.
    pub fn take(&mut self, record: &Record) {
        let at = record.unix_ms;
        self.course.take(record);
        self.last_unix_ms = Some(at);
        let planned = self.replans(&record.event);
        self.note(record);
        let foreign = self.run.as_ref().is_some_and(RunFacts::is_foreign);
        if let Some(told) = told(&record.event, Before { planned, foreign }) {
            self.chronicle.add(at, told);
        }
    }

    /// Takes note of a line that is no record.
    pub fn unreadable(&mut self, line: u64, found: &str) {
        self.counts.unreadable += 1;
        let text = one_line(&format!("line {line} of the journal is no record: `{found}`"));
        let at = self.last_unix_ms.unwrap_or_default();
        self.chronicle.add(at, Told { step: None, tone: Tone::Warning, text });
    }

    fn note(&mut self, record: &Record) {
        let (at, now) = (record.unix_ms, self.course.seconds());
        match &record.event {
            Event::RunStarted { version, total_steps, effective_batch, threads, simd, planned_ram_bytes, .. } => {
                let (version, simd) = (version.clone(), simd.clone());
                let (effective_batch, threads) = (*effective_batch, *threads);
                self.run = Some(RunFacts { version, effective_batch, threads, simd });
                self.total_steps = *total_steps;
                self.go_back(0);
                self.open(at);
                if self.ledger.planned().is_none() && *planned_ram_bytes > Bytes::ZERO {
                    self.ledger.plan(now, Some(*planned_ram_bytes), None);
                }
            }
            Event::Resumed { step, .. } => {
                self.go_back(*step);
                self.open(at);
            }
            Event::WorkerStarted { attempt, cap, .. } => {
                self.cap = *cap;
                self.counts.restarts += u64::from(*attempt > 1);
                self.since_unix_ms = None;
                self.open(at);
                self.ledger.forget_seen();
            }
            Event::Step { step, loss, lr, grad_norm, seconds, ram_bytes, .. } => {
                self.step = *step;
                let (step, loss, lr) = (*step, *loss, *lr);
                self.latest = Some(Latest { step, loss, lr, grad_norm: *grad_norm, seconds: *seconds });
                self.losses.put(step as f64, loss);
                self.ledger.used(now, *ram_bytes);
            }
            Event::Skipped { step, .. } => {
                self.step = (*step).max(self.step);
                self.counts.skipped += 1;
                self.skips.push_back(*step);
                if self.skips.len() > SKIPS {
                    self.skips.pop_front();
                }
            }
            Event::Eval { step, loss, bleu, exact, scores, .. } => {
                self.counts.evaluations += 1;
                self.evals.put(*step as f64, *loss);
                self.evaluations.retain(|earlier| earlier.step < *step);
                let (accuracy, macro_f1) = scores.as_ref().map_or((None, None), |s| (s.accuracy, s.macro_f1));
                let (step, loss, bleu, exact) = (*step, *loss, *bleu, *exact);
                self.evaluations.push_back(Evaluated { step, loss, bleu, exact, accuracy, macro_f1 });
                if self.evaluations.len() > EVALUATIONS {
                    self.evaluations.pop_front();
                }
            }
            Event::Planned { ram_bytes, budget_bytes, smallest_bytes, parts, .. } => {
                self.choices = choices(&record.event);
                self.ledger.plan(now, Some(*ram_bytes), Some(*budget_bytes));
                self.ledger.plan_parts(*smallest_bytes, parts);
            }
            Event::Sample { ram_bytes, seen, .. } => {
                self.ledger.used(now, *ram_bytes);
                self.ledger.see(seen);
            }
            Event::Stopped { reason, .. } => self.close(Standing::Stopped, at, Some(one_line(reason))),
            Event::Finished { steps, peak_ram_bytes, early, .. } => {
                self.step = self.step.max(*steps);
                self.ledger.peak(*peak_ram_bytes);
                self.close(Standing::Finished, at, early.as_deref().map(one_line));
            }
            Event::Incident { step, kind, told, confidence, .. } => {
                // Only the end tells what a foreign trainer did since its last word.
                if self.trainer.is_some() {
                    self.step = self.step.max(*step);
                }
                self.counts.incidents += 1;
                *self.incident_kinds.entry(one_line(kind)).or_default() += 1;
                self.why = Some(one_line(&format!("{told} ({confidence})")));
            }
            Event::Decided { decision, why, .. } if decision == "give_up" => {
                let cause = self.why.take().map_or(String::new(), |cause| format!("{cause}; "));
                self.why = Some(one_line(&format!("{cause}given up: {why}")));
            }
            Event::Failed { message, .. } => self.why = Some(one_line(message)),
            Event::Saved { .. } => self.counts.saved += 1,
            Event::NotSaved { .. } => self.counts.not_saved += 1,
            Event::Warning { .. } => self.counts.warnings += 1,
            Event::Mirrored { .. } => self.counts.mirrored += 1,
            Event::MirrorTrouble { .. } => self.counts.mirror_troubles += 1,
            Event::Progress { step, total, loss } => {
                self.step = *step;
                self.total_steps = total.unwrap_or(self.total_steps);
                if let Some(loss) = *loss {
                    self.latest = Some(Latest { step: *step, loss, lr: 0.0, grad_norm: None, seconds: 0.0 });
                    self.losses.put(*step as f64, loss);
                }
            }
            Event::Tree { ram_bytes, processes: seen } => {
                self.ledger.used(now, *ram_bytes);
                if let Some(trainer) = &mut self.trainer {
                    trainer.processes = processes(seen);
                }
            }
            Event::Launched { .. } => {
                self.trainer = launched(&record.event);
                self.ledger.plan(now, None, self.cap);
            }
            Event::Verified { fine, .. } => self.counts.warnings += u64::from(!fine),
            Event::Decided { .. } | Event::Pressure { .. } | Event::Unknown => {}
        }
    }

    /// A worker is there (again).
    fn open(&mut self, at: u64) {
        if self.standing != Standing::Open || self.since_unix_ms.is_none() {
            self.since_unix_ms = Some(at);
        }
        self.standing = Standing::Open;
        self.why = None;
    }

    fn close(&mut self, standing: Standing, at: u64, why: Option<String>) {
        (self.standing, self.since_unix_ms, self.why) = (standing, Some(at), why);
    }

    /// What came after `step` does not count.
    fn go_back(&mut self, step: u64) {
        self.step = step;
        self.losses.cut(|x| x <= step as f64);
        self.evals.cut(|x| x <= step as f64);
        self.latest = self.latest.filter(|latest| latest.step <= step);
        self.evaluations.retain(|evaluated| evaluated.step <= step);
        let before = self.skips.len();
        self.skips.retain(|&skipped| skipped <= step);
        self.counts.skipped -= (before - self.skips.len()) as u64;
    }

    /// Whether an event is a plan that has made other choices, or for another budget, than the one before it.
    fn replans(&self, event: &Event) -> bool {
        let Event::Planned { budget_bytes, .. } = event else { return false };
        self.choices.is_some() && (self.choices != choices(event) || self.ledger.budget() != Some(*budget_bytes))
    }

    /// The view of all that was taken in.
    pub fn view(&self, plan: &[(String, Bytes)], now_unix_ms: u64, alive: bool) -> View {
        let status = match self.standing {
            Standing::Stopped => Status::Stopped,
            Standing::Finished => Status::Finished,
            Standing::Open if alive => Status::Running,
            Standing::Open => Status::Dead,
        };
        let running = status == Status::Running;
        let silent = self.last_unix_ms.map_or(0, |last| now_unix_ms.saturating_sub(last)) as f64 / 1e3;
        let silent = if running { silent } else { 0.0 };
        let left = self.course.left(self.total_steps, silent).filter(|_| running && self.total_steps > 0);
        View {
            now_unix_ms,
            status,
            since_unix_ms: if status == Status::Dead { self.last_unix_ms } else { self.since_unix_ms },
            why: self.why.clone(),
            last_unix_ms: self.last_unix_ms,
            run: self.run.clone(),
            trainer: self.trainer.clone(),
            step: self.step,
            total_steps: self.total_steps,
            eta_seconds: left,
            running_seconds: self.course.seconds() + silent,
            tokens_per_second: self.course.tokens_per_second(),
            seconds_per_step: self.course.pace(),
            latest: self.latest,
            evaluated: self.evaluations.back().copied(),
            losses: self.losses.points(),
            evals: self.evals.points(),
            memory: self.ledger.view(plan),
            time: self.course.whole(),
            time_lately: self.course.lately(),
            counts: self.counts,
            incident_kinds: self.incident_kinds.clone(),
            choices: self.choices,
            events: self.chronicle.lines(),
        }
    }
}

fn choices(event: &Event) -> Option<Choices> {
    match *event {
        Event::Planned { micro_batch, accumulation, recompute, snapshot, .. } => {
            Some(Choices { micro_batch, accumulation, recompute, snapshot })
        }
        _ => None,
    }
}
