//! A foreign trainer's whole life under guard: start after start, until it is done, stopped, or beyond help.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use plimsoll_launch::checkpoints::Found;
use plimsoll_launch::course::{self, Death, Then};
use plimsoll_launch::ladder::Stand;
use plimsoll_launch::{Command, Settings};
use plimsoll_machine::{Bytes, Root};
use plimsoll_recover::leaf::Leaf;
use plimsoll_recover::{Events, RunLock, Terms, TreeOutcome, guard_tree, protect, shell_word};
use plimsoll_watch::{Event, Journal, Summary};

use super::charge::Charge;
use super::keeper::{Climb, Watch, Wished, newest};
use super::logs::{self, Logs};
use super::ready::Ready;
use super::{forecast, inquest};
use crate::guard::first_calm;
use crate::render::{self, Exit, Fail, OrFail};

/// How long there must be room before a run that gave way steps up again.
const CALM: Duration = Duration::from_secs(600);

/// A run.
struct Guard<'a> {
    run: &'a Path,
    charge: Charge,
    events: Events,
    lock: i32,
    oom_score: i32,
    /// The settings that hold over the command's own.
    over: Settings,
    /// Those of before it gave way to a neighbour, and what it then needed.
    before: Option<(Settings, Bytes)>,
    deaths: Vec<Death>,
    /// Checkpoints that cannot be loaded.
    passed_over: Vec<PathBuf>,
    warmed_up: bool,
    began: Instant,
    peak: Bytes,
    peak_vram: Bytes,
}

/// Runs a foreign trainer to its end; `over` are the settings that were planned, `going_on` says that it ran before.
pub fn guard(
    run: &Path,
    charge: Charge,
    over: Settings,
    going_on: bool,
    lock: &RunLock,
    events: Events,
) -> Result<(), Fail> {
    plimsoll_recover::shed();
    let oom_score = protect::protect_self().score_before;
    let mut guard = Guard {
        run,
        charge,
        events,
        lock: lock.number(),
        oom_score,
        over,
        before: None,
        deaths: Vec::new(),
        passed_over: Vec::new(),
        warmed_up: false,
        began: Instant::now(),
        peak: Bytes::ZERO,
        peak_vram: Bytes::ZERO,
    };
    guard.train(going_on)
}

impl Guard<'_> {
    fn train(&mut self, going_on: bool) -> Result<(), Fail> {
        let mut going_on = going_on;
        loop {
            let ready = Ready::new(self.run, &self.charge, &self.over, going_on.then_some(&self.passed_over[..]))?;
            self.warm_up(&ready, false)?;
            let attempt = logs::next_attempt(self.run);
            let (outcome, mut watch) = self.one_start(&ready, attempt)?;
            self.peak = self.peak.max(watch.peak);
            self.peak_vram = self.peak_vram.max(watch.peak_vram);
            if let Some(done) = self.judge(&ready, attempt, &outcome, &mut watch)? {
                return done;
            }
            going_on = true;
            if self.events.pending()?.is_some() {
                return Err(self.stopped());
            }
        }
    }

    /// Compiles outside of any limit what is compiled on first use.
    fn warm_up(&mut self, ready: &Ready, again: bool) -> Result<(), Fail> {
        let code: Vec<&str> = ready.command.layers().filter_map(|layer| layer.needs.warm_up.as_deref()).collect();
        if code.is_empty() || (self.warmed_up && !again) {
            return Ok(());
        }
        self.warmed_up = true;
        let Some(python) = python_of(&ready.command, &self.charge.folder) else { return Ok(()) };
        for code in code {
            render::talk("plimsoll: compiling what is compiled on first use, outside of the limit");
            let mut process = Process::new(&python);
            process.arg("-c").arg(code).current_dir(&self.charge.folder).stdin(std::process::Stdio::null());
            process.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            // What cannot be compiled says so when it is used.
            let _ = process.status();
        }
        Ok(())
    }

    fn one_start(&mut self, ready: &Ready, attempt: u64) -> Result<(TreeOutcome, Watch), Fail> {
        for line in ready.write_copies(&self.charge)? {
            render::talk(format!("plimsoll: {line}"));
        }
        let (logs, [out, err]) = Logs::make(self.run, attempt, !self.charge.quiet)?;
        let mut leaf = Leaf::make(&Root::system()).ok();
        let limit = self.limit();
        if let (Some(leaf), Some(limit)) = (&mut leaf, limit)
            && let Err(error) = leaf.limit(limit, Bytes::ZERO)
        {
            render::talk(format!("plimsoll: the trainer's cgroup has no limit: {error}"));
        }
        let words = with_rank_logs(ready, self.run, attempt);
        self.say(ready, &words, attempt, limit.filter(|_| leaf.is_some()));
        let mut process = Process::new(&words[0]);
        process.args(&words[1..]).current_dir(&self.charge.folder).envs(&ready.edited.env);
        for layer in ready.command.layers() {
            let unset = layer.env.iter().filter(|(name, _)| std::env::var_os(name).is_none());
            process.envs(unset);
        }
        // Output that is held back says nothing of a death.
        if std::env::var_os("PYTHONUNBUFFERED").is_none() {
            process.env("PYTHONUNBUFFERED", "1");
        }
        process.stdout(out.into_parts().0).stderr(err.into_parts().0);
        let climb = self.before.as_ref().map(|(_, room)| Climb { room: *room, calm: first_calm(CALM) });
        let mut watch = Watch::new(self.run, &self.charge, ready, leaf, logs, climb);
        watch.limit = limit.filter(|_| watch.leaf.is_some());
        self.note_start(&mut watch, ready, &words, attempt, limit);
        let within = self
            .charge
            .stop_within
            .unwrap_or_else(|| ready.command.layers().map(|layer| layer.stop.within_seconds).max().unwrap_or(30));
        let terms = Terms {
            door: watch.leaf.as_ref().and_then(|leaf| leaf.door().ok()),
            lock: Some(self.lock),
            oom_score: Some(self.oom_score),
            stop_within: Some(Duration::from_secs(within)),
            news: false,
        };
        let kin = watch.kin();
        let outcome = guard_tree(&mut process, &mut self.events, terms, &kin, &mut watch).map_err(|error| {
            let program = words[0].clone();
            Fail::new(Exit::BadInput, error).hint(format!("`{program}` must be a program that can be started"))
        })?;
        let Watch { logs, listener, .. } = &mut watch;
        logs.drain(listener);
        watch.note_progress();
        // One that ended before the first look is known by its cgroup alone, page cache included.
        if watch.peak == Bytes::ZERO {
            watch.peak = watch.leaf.as_ref().and_then(Leaf::peak).unwrap_or_default();
        }
        watch.look_at_checkpoints();
        watch.verify(true);
        if !outcome.left_behind.is_empty() && !outcome.killed {
            let left: Vec<String> = outcome.left_behind.iter().map(u32::to_string).collect();
            render::talk(format!("plimsoll: ended what it left behind: processes {}", left.join(", ")));
        }
        if !outcome.undead.is_empty() {
            let left: Vec<String> = outcome.undead.iter().map(u32::to_string).collect();
            return Err(Fail::new(
                Exit::Failed,
                anyhow::anyhow!("processes {} of the trainer do not end", left.join(", ")),
            )
            .hint("they wait for a disk or a driver; nothing else is started before they are gone"));
        }
        Ok((outcome, watch))
    }

    /// The most that the trainer may take.
    fn limit(&self) -> Option<Bytes> {
        forecast::room(self.charge.ram, None).0
    }

    fn say(&self, ready: &Ready, words: &[String], attempt: u64, limit: Option<Bytes>) {
        render::talk(format!("plimsoll: start {attempt}: {}", ready.command.name()));
        for change in &ready.changes {
            render::talk(format!("plimsoll:   {change}"));
        }
        if let Some(from) = &ready.from {
            let step = from.step.map_or(String::new(), |step| format!(" (step {step})"));
            render::talk(format!("plimsoll:   goes on from {}{step}", from.path.display()));
        }
        if let Some(remark) = &ready.remark {
            render::talk(format!("plimsoll:   {remark}"));
        }
        if words != self.charge.words {
            render::talk(format!(
                "plimsoll:   {}",
                words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
            ));
        }
        for (name, value) in &ready.edited.env {
            render::talk(format!("plimsoll:   {name}={value}"));
        }
        if let Some(limit) = limit {
            render::talk(format!("plimsoll:   its cgroup is limited to {limit}"));
        }
    }

    fn note_start(&self, watch: &mut Watch, ready: &Ready, words: &[String], attempt: u64, limit: Option<Bytes>) {
        let started = watch.witness.started().clone();
        watch.first_words.push(Event::WorkerStarted {
            pid: 0,
            nspid: Vec::new(),
            attempt,
            cap: limit,
            cgroup: started.cgroup,
            boot_id: started.boot_id.unwrap_or_default(),
            vmstat_oom_kill: started.vmstat_oom_kill,
        });
        let value = |value| serde_json::to_value(value).unwrap_or_default();
        watch.first_words.push(Event::Launched {
            attempt,
            trainer: ready.command.name(),
            words: words.to_vec(),
            env: ready.edited.env.clone(),
            settings: ready.settings.iter().map(|(knob, to)| (knob.name().to_string(), value(to))).collect(),
            changes: ready.changes.clone(),
            from: ready.from.as_ref().map(|from| from.path.clone()),
        });
        if let Some(from) = &ready.from {
            watch.first_words.push(Event::Resumed { step: from.step.unwrap_or(0), from: from.path.clone() });
        }
    }

    /// What follows from an end; `None`: another start.
    fn judge(
        &mut self,
        ready: &Ready,
        attempt: u64,
        outcome: &TreeOutcome,
        watch: &mut Watch,
    ) -> Result<Option<Result<(), Fail>>, Fail> {
        if watch.wished == Some(Wished::StepUp) && outcome.stopped_by.is_none() {
            if let Some((before, _)) = self.before.take() {
                self.over = before;
            }
            render::talk("plimsoll: there is room again; going on with the settings of before");
            let why = "there is room again".to_string();
            watch.note(&Event::Decided { decision: "step_up".into(), why, cap: None, inputs: serde_json::Value::Null });
            return Ok(None);
        }
        let failure = inquest::inquire(self.run, attempt, ready, outcome, watch);
        let (saved, checkpoints) = newest(&ready.command, &self.charge);
        let saved_step = saved.as_ref().and_then(|found| found.step);
        let death = Death {
            kind: failure.kind.clone(),
            settings: ready.settings.clone(),
            step: watch.listener.told().step,
            saved: order(&saved),
            checkpoints,
        };
        self.deaths.push(death);
        let knobs = ready.knobs(&self.charge);
        let stand = Stand {
            settings: &ready.settings,
            can: &knobs,
            exact_accumulation: ready.command.layers().any(|layer| layer.can.exact_accumulation),
            world_fixed: ready.command.layers().any(|layer| layer.can.world_fixed),
            on_card: watch.peak_vram > Bytes::ZERO,
            evaluating: watch.listener.told().evaluating,
            longest: forecast::longest_of(&ready.command, &self.charge.folder),
            allow: &self.charge.allow,
        };
        let then = course::course(&self.deaths, &stand);
        if !matches!(then, Then::Done | Then::Stopped) {
            inquest::announce(watch, &failure, saved_step);
        }
        let go_on = format!("go on: plimsoll resume {}", self.run.display());
        let decided = |decision: &str, why: &str| Event::Decided {
            decision: decision.to_string(),
            why: why.to_string(),
            cap: None,
            inputs: serde_json::json!({ "deaths": self.deaths.len() }),
        };
        Ok(match then {
            Then::Done => {
                self.finish(ready, watch)?;
                Some(Ok(()))
            }
            Then::Stopped => {
                let step = watch.listener.told().step.unwrap_or(0);
                let reason = "it was asked to stop".to_string();
                watch.note(&Event::Stopped { step, reason });
                render::talk(format!("plimsoll: stopped; {go_on}"));
                Some(Err(Fail::silent(Exit::Stopped)))
            }
            Then::Again { why, pause } => {
                watch.note(&decided("restart", &why));
                render::talk(format!("plimsoll: starting again: {why}"));
                if self.rest(Duration::from_secs(pause))? {
                    return Ok(Some(Err(self.stopped())));
                }
                None
            }
            Then::Down { rung, neighbour } => {
                let kind = if rung.same_result { "same result" } else { "other result, allowed" };
                watch.note(&decided("step_down", &format!("{} ({kind})", rung.says)));
                render::talk(format!("plimsoll: one step down: {} ({kind})", rung.says));
                // Killed below its own limit: others had taken what was missing.
                let below = watch.limit.is_some_and(|limit| watch.peak.0 < limit.0 / 10 * 9);
                let squeezed = below && failure.kind.is_of_the_host();
                if (neighbour || squeezed) && self.before.is_none() {
                    self.before = Some((self.over.clone(), watch.peak + Bytes(watch.peak.0 / 8)));
                }
                self.over.extend(rung.set);
                None
            }
            Then::WarmUp => {
                watch.note(&decided("warm_up", "a compiler was killed; compiling outside of the limit"));
                self.warm_up(ready, true)?;
                None
            }
            Then::Older => {
                let path = ready.from.as_ref().map(|from| from.path.clone());
                let path = path.or_else(|| saved.map(|found| found.path));
                watch.note(&decided("older", "the checkpoint cannot be loaded"));
                render::talk("plimsoll: going on from an older checkpoint");
                self.passed_over.extend(path);
                None
            }
            Then::GiveUp { why } => {
                watch.note(&decided("give_up", &why.to_string()));
                render::talk(format!("plimsoll: giving up: {why}"));
                let can = course::abilities(&ready.command, &knobs, watch.peak_vram > Bytes::ZERO);
                for advice in plimsoll_launch::failure::advice(&failure, Some(&ready.settings), &can) {
                    render::talk(format!("plimsoll:   {}", advice.text));
                }
                render::talk(format!("plimsoll: the whole story: plimsoll doctor {}", self.run.display()));
                Some(Err(Fail::silent(Exit::Failed)))
            }
        })
    }

    fn finish(&self, ready: &Ready, watch: &mut Watch) -> Result<(), Fail> {
        let told = watch.listener.told().clone();
        let steps = told.step.unwrap_or(0);
        let seconds = self.began.elapsed().as_secs_f64();
        let final_loss = told.loss.unwrap_or(f64::NAN);
        watch.note(&Event::Finished { steps, final_loss, seconds, peak_ram_bytes: self.peak, early: None });
        let question = forecast::Question {
            command: &ready.command,
            settings: &ready.settings,
            folder: &self.charge.folder,
            shape: self.charge.shape.as_deref(),
            length: self.charge.length,
            resume: ready.from.is_some(),
            on_card: Some(watch.peak_vram > Bytes::ZERO),
            elsewhere: false,
        };
        let estimate = forecast::forecast(question)?.ok();
        if let Some(estimate) = &estimate {
            forecast::remember(estimate, watch.peak, watch.peak_vram);
        }
        let mut summary = Summary {
            steps,
            final_loss,
            planned_ram_bytes: estimate.as_ref().map_or(Bytes::ZERO, |estimate| estimate.host.safe),
            peak_ram_bytes: self.peak,
            peak_vram_bytes: self.peak_vram,
            wall_seconds: seconds,
            ..Summary::default()
        };
        summary.more.insert("trainer".into(), ready.command.trainer.name.clone().into());
        summary.more.insert("last_start_peak_ram_bytes".into(), watch.peak.0.into());
        if let Some(estimate) = &estimate {
            summary.more.insert("computed_ram_bytes".into(), estimate.raw.0.0.into());
            summary.more.insert("expected_ram_bytes".into(), estimate.host.expected.0.into());
        }
        summary.more.insert("starts".into(), (self.deaths.len() as u64).into());
        if let Some(batch) = ready.effective_batch() {
            summary.more.insert("effective_batch".into(), batch.into());
        }
        let text = serde_json::to_vec_pretty(&summary).or_failed()?;
        plimsoll_recover::atomic_write(&self.run.join("summary.json"), &text)?;
        let vram = if self.peak_vram > Bytes::ZERO { format!(", {} of VRAM", self.peak_vram) } else { String::new() };
        render::talk(format!("plimsoll: done; the highest use was {} of RAM{vram}", self.peak));
        Ok(())
    }

    fn stopped(&self) -> Fail {
        render::talk(format!("plimsoll: stopped; go on: plimsoll resume {}", self.run.display()));
        if let Ok(mut journal) = Journal::append(&self.run.join("journal.jsonl")) {
            let _ = journal.record(&Event::Stopped { step: 0, reason: "it was asked to stop".to_string() });
        }
        Fail::silent(Exit::Stopped)
    }

    /// Waits; whether somebody asked us to stop meanwhile.
    fn rest(&mut self, pause: Duration) -> Result<bool, Fail> {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if self.events.rest(until)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A checkpoint's place in the order of writing.
fn order(found: &Option<Found>) -> Option<u64> {
    let found = found.as_ref()?;
    let written = found.written.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Some(written.as_millis() as u64)
}

/// The words with those that make a launcher write a log for each rank, where the user has not said where.
fn with_rank_logs(ready: &Ready, run: &Path, attempt: u64) -> Vec<String> {
    let mut words = ready.edited.words.clone();
    let Some(launcher) = &ready.command.launcher else { return words };
    let Some(first) = launcher.rank_logs.first() else { return words };
    let said = |word: &String| word == first || word.starts_with(&format!("{first}="));
    if words.iter().any(said) {
        return words;
    }
    // The command runs elsewhere than we do.
    let run = fs_err::canonicalize(run).unwrap_or_else(|_| run.to_path_buf());
    let folder = logs::rank_folder(&run, attempt);
    let shown = folder.display().to_string();
    let new = launcher.rank_logs.iter().map(|word| word.replace("{folder}", &shown));
    // Behind the program and its own verb, before everything else; edits of a launcher's words come later still.
    let at = ready.command.own.min(words.len());
    words.splice(at..at, new);
    words
}

/// The Python that runs a command.
pub fn python_of(command: &Command, folder: &Path) -> Option<PathBuf> {
    let first = command.words.get(command.program)?;
    let name = first.rsplit('/').next().unwrap_or(first);
    if name.starts_with("python") {
        return Some(PathBuf::from(first));
    }
    // A launcher is a script that names its Python in its first line.
    let path = match first.contains('/') {
        true => folder.join(first),
        false => {
            std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(first)).find(|path| path.is_file())?
        }
    };
    let text = fs_err::read(&path).ok()?;
    let line = text.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let python = String::from_utf8_lossy(line).trim().to_string();
    python.contains("python").then(|| PathBuf::from(python))
}
