//! The timeline: of a journal's lines, those that mattered. Pure.
//!
//! Steps, saves and evaluations that went as they should are left out; the same trouble many times in a row is one
//! entry with a count.

use plimsoll_machine::Bytes;
use plimsoll_recover::cause::Confidence;
use plimsoll_watch::{Event, Record};

use super::attempts::attempts;
use super::diagnosis::Happening;
use super::sanitize::clean;
use super::when::Span;
use super::words;

/// What mattered, in order.
pub fn timeline(records: &[Record]) -> Vec<Happening> {
    let mut out: Vec<Happening> = Vec::new();
    let all = attempts(records);
    let mut step = 0;
    let mut plan = None;
    let mut pressed = false;
    let foreign = records.iter().any(|record| matches!(record.event, Event::Launched { .. }));
    for (nth, attempt) in all.iter().enumerate() {
        for record in attempt.records {
            step = step_of(&record.event).unwrap_or(step);
            let told = if foreign { tell_foreign(&record.event) } else { None };
            let Some((what, text)) = told.or_else(|| tell(&record.event, &mut plan, &mut pressed)) else { continue };
            let at = Happening { unix_ms: record.unix_ms, step: Some(step), what, text: clean(&text), times: 1 };
            match out.last_mut() {
                Some(last) if repeats(last, &at) => {
                    (last.times, last.step, last.text) = (last.times + 1, at.step, at.text);
                }
                _ => out.push(at),
            }
        }
        // The next attempt begins although this one has no end: nobody was left to write it.
        let decided = matches!(attempt.records.last().map(|record| &record.event), Some(Event::Decided { .. }));
        if let (super::attempts::End::Open, Some(next)) = (attempt.end, all.get(nth + 1))
            && !decided
        {
            let until = attempt.worked_until();
            let text =
                format!("the journal falls silent for {}{}", Span::between(until, next.began()), booted(attempt, next));
            out.push(Happening { unix_ms: until, step: Some(step), what: "gap", text, times: 1 });
        }
    }
    out
}

/// Mirror trouble, skipped steps and warnings come in rows.
fn repeats(last: &Happening, next: &Happening) -> bool {
    last.what == next.what && (last.text == next.text || last.what == "skipped") && next.what != "start"
}

fn booted(before: &super::attempts::Attempt<'_>, after: &super::attempts::Attempt<'_>) -> &'static str {
    let id = |attempt: &super::attempts::Attempt<'_>| match attempt.worker() {
        Some(Event::WorkerStarted { boot_id, .. }) if !boot_id.is_empty() => Some(boot_id.clone()),
        _ => None,
    };
    match (id(before), id(after)) {
        (Some(before), Some(after)) if before != after => "; the machine booted in between",
        _ => "",
    }
}

/// The step that an event leaves the run at.
fn step_of(event: &Event) -> Option<u64> {
    match *event {
        Event::Step { step, .. }
        | Event::Skipped { step, .. }
        | Event::Resumed { step, .. }
        | Event::Stopped { step, .. }
        | Event::Incident { step, .. } => Some(step),
        // A panic does not know where the run is.
        Event::Failed { step, .. } if step > 0 => Some(step),
        Event::RunStarted { .. } => Some(0),
        Event::Finished { steps, .. } => Some(steps),
        _ => None,
    }
}

/// What is told otherwise of somebody else's trainer.
fn tell_foreign(event: &Event) -> Option<(&'static str, String)> {
    Some(match event {
        Event::RunStarted { plan, effective_batch, version, .. } => {
            let batch =
                if *effective_batch > 0 { format!(", {effective_batch} samples an update") } else { String::new() };
            ("start", format!("the run starts: {plan}{batch}, version {version}"))
        }
        Event::WorkerStarted { pid, attempt, cap, .. } => {
            let cap = cap.map_or(String::new(), |cap| format!(", with at most {cap} of RAM"));
            let process = if *pid > 0 { format!(", process {pid}") } else { String::new() };
            ("start", format!("start {attempt}{process}{cap}"))
        }
        Event::Incident { told, confidence, .. } if !told.is_empty() => {
            let sure = match words::confidence(confidence) {
                Confidence::Unproven => String::new(),
                sure => format!(" ({})", sure.name()),
            };
            ("death", format!("it ends: {told}{sure}"))
        }
        Event::Finished { .. } => ("finish", "it is done".to_string()),
        _ => return None,
    })
}

/// The shape of a plan that a later plan is compared with.
type Shape = (u64, u64, u64, bool);

fn tell(event: &Event, plan: &mut Option<Shape>, pressed: &mut bool) -> Option<(&'static str, String)> {
    Some(match event {
        Event::RunStarted { total_steps, version, planned_ram_bytes, .. } => (
            "start",
            format!("the run starts: {total_steps} steps, {planned_ram_bytes} of RAM planned, version {version}"),
        ),
        Event::WorkerStarted { pid, attempt, cap, .. } if *attempt > 1 || cap.is_some() => {
            let cap = cap.map_or(String::new(), |cap| format!(", with at most {cap} of RAM"));
            ("start", format!("start {attempt} of the worker, process {pid}{cap}"))
        }
        Event::Planned { ram_bytes, micro_batch, accumulation, recompute, snapshot, .. } => {
            let shape = (*micro_batch, *accumulation, *recompute, *snapshot);
            let before = plan.replace(shape)?;
            if before == shape {
                return None;
            }
            let text = format!(
                "the plan changes to {ram_bytes}: micro-batch {micro_batch} (was {}) x {accumulation}, {recompute} \
                 blocks computed twice (was {})",
                before.0, before.2
            );
            ("plan", text)
        }
        Event::Resumed { step, .. } => ("resume", format!("it goes on after step {step}")),
        Event::Skipped { step, what, in_a_row } => {
            ("skipped", format!("step {step} is skipped: its {what} is not finite ({in_a_row} in a row)"))
        }
        Event::NotSaved { step, reason } => ("not_saved", format!("no checkpoint of step {step}: {reason}")),
        Event::Saved { step, reason: plimsoll_watch::SaveReason::Pressure, bytes, .. } => {
            ("pressure", format!("saved step {step} ({bytes}) because memory or disk was running out"))
        }
        Event::Pressure { answer, why, .. } => {
            // The first word of a run is that all is well.
            if answer == "fine" && !std::mem::replace(pressed, false) {
                return None;
            }
            *pressed = answer != "fine";
            ("pressure", format!("{}: {why}", pressure_word(answer)))
        }
        Event::Incident { kind, told, confidence, .. } => {
            let told = if told.is_empty() { words::named(kind).to_string() } else { told.clone() };
            // The words for what is unproven say so themselves.
            let sure = match words::confidence(confidence) {
                Confidence::Unproven => String::new(),
                sure => format!(" ({})", sure.name()),
            };
            ("death", format!("the worker ends: {told}{sure}"))
        }
        Event::Decided { decision, why, cap, .. } => {
            let limit = cap.map_or(String::new(), |cap| format!(", with at most {cap} of RAM"));
            ("decision", format!("{}{limit}: {why}", decision_word(decision, *cap)))
        }
        Event::Failed { message, place, .. } => {
            let place = place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
            ("failed", format!("the worker's last words{place}: {message}"))
        }
        Event::MirrorTrouble { message } => ("mirror", format!("the mirror cannot be reached: {message}")),
        Event::Warning { message, .. } => ("warning", message.clone()),
        Event::Stopped { step, reason } => ("stop", format!("it stops after step {step}: {reason}")),
        Event::Finished { steps, early: Some(why), .. } => {
            ("finish", format!("it ends early, after step {steps}: {why}"))
        }
        Event::Finished { steps, .. } => ("finish", format!("all {steps} steps are done")),
        Event::Launched { trainer, changes, .. } => {
            let changes = if changes.is_empty() { String::new() } else { format!(" with {}", changes.join(", ")) };
            ("start", format!("{trainer} is started{changes}"))
        }
        Event::Verified { asked, seen, fine: false, .. } => {
            ("warning", format!("not as asked: {asked} was asked for, but: {seen}"))
        }
        Event::Step { .. }
        | Event::Progress { .. }
        | Event::Tree { .. }
        | Event::Verified { .. }
        | Event::Eval { .. }
        | Event::Saved { .. }
        | Event::WorkerStarted { .. }
        | Event::Sample { .. }
        | Event::Mirrored { .. }
        | Event::Unknown => return None,
    })
}

fn pressure_word(answer: &str) -> &str {
    match answer {
        "fine" => "the pressure is gone",
        "save_now" => "pressure: save now",
        "shrink" => "pressure: plan smaller",
        "stop" => "pressure: stop",
        "grow" => "room again: plan larger",
        other => other,
    }
}

/// A decision in words.
pub fn decision_word(decision: &str, cap: Option<Bytes>) -> &str {
    match (decision, cap) {
        ("restart", _) => "started again from the last checkpoint",
        ("replan", Some(_)) => "planned smaller, same effective batch, and started again",
        ("replan", None) => "planned anew, same effective batch, and started again",
        ("give_up", _) => "gave up",
        ("step_down", _) => "went one step down and started again",
        ("step_up", _) => "went back up and started again",
        ("warm_up", _) => "compiled outside of the limit and started again",
        ("older", _) => "went back to an older checkpoint",
        (other, _) => other,
    }
}
