//! An event in one plain line. Words only: what follows from an event is decided elsewhere.

use std::path::Path;

use super::Tone;
use super::words::{clock, loss_text, span};
use crate::{EvalScores, Event, SaveReason};

/// A message is cut here.
const LONGEST: usize = 500;

/// An event as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub step: Option<u64>,
    pub tone: Tone,
    pub text: String,
}

/// What was there before an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    /// A plan with other choices.
    pub planned: bool,
    /// Somebody else's trainer.
    pub foreign: bool,
}

/// The line of an event; None for those that curves and figures show.
pub(super) fn told(event: &Event, before: Before) -> Option<Told> {
    use Tone::{Note, Routine, Trouble, Warning};
    let (step, tone, text) = match event {
        Event::Step { .. } | Event::Sample { .. } | Event::Unknown => return None,
        Event::Progress { .. } | Event::Tree { .. } | Event::Verified { fine: true, .. } => return None,
        Event::Verified { asked, seen, fine: false, .. } => {
            (None, Warning, format!("not as asked: {asked} was asked for, but: {seen}"))
        }
        Event::Launched { trainer, changes, from, .. } => {
            let changes = if changes.is_empty() { String::new() } else { format!(", with {}", changes.join(", ")) };
            let from = from.as_ref().map_or(String::new(), |from| format!(", from {}", name(from)));
            (None, Note, format!("{trainer} started{changes}{from}"))
        }
        Event::RunStarted { plan, effective_batch, .. } if before.foreign => {
            let batch =
                if *effective_batch > 0 { format!(", {effective_batch} samples an update") } else { String::new() };
            (None, Note, format!("run began: {plan}{batch}"))
        }
        Event::RunStarted { total_steps, effective_batch, threads, simd, .. } => {
            let text =
                format!("run began: {total_steps} steps of {effective_batch} samples, {threads} threads, {simd}");
            (None, Note, text)
        }
        Event::Resumed { step, from } => (Some(*step), Note, format!("went on after step {step}, from {}", name(from))),
        Event::Skipped { step, what, in_a_row } => {
            (Some(*step), Warning, format!("update skipped: the {what} is not finite ({in_a_row} in a row)"))
        }
        Event::Eval { step, loss, bleu, exact, scores, seconds } => {
            let bleu = bleu.map_or(String::new(), |bleu| format!(", BLEU {bleu:.1}"));
            let exact = exact.map_or(String::new(), |exact| format!(", exact {:.1} %", 100.0 * exact));
            let scores = scores.as_ref().map_or(String::new(), EvalScores::to_string);
            let text = format!("evaluated: loss {}{bleu}{exact}{scores}, in {}", loss_text(*loss), span(*seconds));
            (Some(*step), Routine, text)
        }
        Event::Saved { step, path, bytes, seconds, waited_seconds, reason } => {
            let waited = match *waited_seconds {
                none if none < 0.05 => String::new(),
                all if all >= 0.95 * seconds => String::new(),
                some => format!(", steps waited {}", span(some)),
            };
            let why = reason_text(*reason);
            // Nobody sees how long a foreign trainer saves.
            let took = if before.foreign { String::new() } else { format!(" in {}{waited}", span(*seconds)) };
            (Some(*step), Routine, format!("saved {}{why}: {bytes}{took}", name(path)))
        }
        Event::NotSaved { step, reason } => (Some(*step), Warning, format!("not saved: {reason}")),
        Event::Stopped { step, reason } => (Some(*step), Note, format!("stopped: {reason}")),
        Event::Finished { steps, final_loss, seconds, peak_ram_bytes, early } => {
            // A foreign trainer may not say its loss, or not so that we understand it.
            let unsaid = before.foreign && !final_loss.is_finite();
            let loss = if unsaid { String::new() } else { format!(", loss {}", loss_text(*final_loss)) };
            let early = early.as_ref().map_or(String::new(), |why| format!("; ended early: {why}"));
            let text = format!("finished: {steps} steps{loss}, in {}, peak {peak_ram_bytes}{early}", clock(*seconds));
            (Some(*steps), Note, text)
        }
        Event::Warning { step, message } => (Some(*step), Warning, message.clone()),
        Event::WorkerStarted { pid, attempt, cap, .. } => {
            if before.foreign {
                let cap = cap.map_or(String::new(), |cap| format!(", with at most {cap} of RAM"));
                return Some(Told { step: None, tone: Routine, text: format!("start {attempt}, process {pid}{cap}") });
            }
            let cap = cap.map_or(String::new(), |cap| format!(", under a cap of {cap}"));
            match attempt {
                0 | 1 => (None, Routine, format!("worker {pid} started{cap}")),
                nth => (None, Note, format!("worker {pid} started, start {nth}{cap}")),
            }
        }
        Event::Planned { ram_bytes, budget_bytes, micro_batch, accumulation, recompute, .. } => {
            let word = if before.planned { "plan changed" } else { "plan" };
            let text = format!(
                "{word}: {ram_bytes} of {budget_bytes}, micro-batch {micro_batch} x {accumulation}, {recompute} blocks computed twice"
            );
            (None, if before.planned { Note } else { Routine }, text)
        }
        Event::Pressure { step, answer, why, .. } => {
            let tone = match answer.as_str() {
                "fine" | "grow" => Note,
                _ => Warning,
            };
            (Some(*step), tone, format!("pressure: {}: {why}", answer.replace('_', " ")))
        }
        Event::Incident { step, saved_step, told, confidence, .. } => {
            let saved = match saved_step {
                0 => "nothing was saved".to_string(),
                step => format!("step {step} is saved"),
            };
            let who = if before.foreign { "it" } else { "worker" };
            (Some(*step), Trouble, format!("{who} died: {told} ({confidence}); {saved}"))
        }
        Event::Decided { decision, why, cap, .. } => {
            let what = match (decision.as_str(), cap) {
                ("restart", _) => "starts again".to_string(),
                ("replan", Some(cap)) => format!("plans again under {cap}"),
                ("replan", None) => "plans again".to_string(),
                ("give_up", _) => "gives up".to_string(),
                ("step_down", _) => "one step down".to_string(),
                ("step_up", _) => "back up".to_string(),
                (other, _) => other.replace('_', " "),
            };
            (None, if decision == "give_up" { Trouble } else { Note }, format!("{what}: {why}"))
        }
        Event::Failed { step, message, place } => {
            let place = place.as_ref().map_or(String::new(), |place| format!(", at {place}"));
            (Some(*step), Trouble, format!("worker failed: {message}{place}"))
        }
        Event::Mirrored { step, url, bytes, seconds } => {
            let what = step.map_or("the model".to_string(), |step| format!("step-{step}"));
            (*step, Routine, format!("mirrored {what} to {url}: {bytes} in {}", span(*seconds)))
        }
        Event::MirrorTrouble { message } => (None, Warning, format!("mirror: {message}")),
    };
    Some(Told { step, tone, text: one_line(&text) })
}

/// One line without control characters and of bounded length: messages may hold anything.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(LONGEST));
    for word in text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
            line.truncate(end);
            line.push('…');
            break;
        }
    }
    line
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn reason_text(reason: SaveReason) -> &'static str {
    match reason {
        SaveReason::Steps | SaveReason::Time => "",
        SaveReason::BeforeEval => " before an evaluation",
        SaveReason::Pressure => " under pressure",
        SaveReason::Exit => " to stop",
        SaveReason::End => " at the end",
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_machine::Bytes;

    use super::*;

    #[test]
    fn a_message_with_escapes_and_line_ends_becomes_one_harmless_line() {
        let event = Event::Warning { step: 3, message: "a\x1b[2J\r\nb\tc\u{9b}d".into() };
        assert_eq!(told(&event, Before::default()).unwrap().text, "a [2J b c d");
        let long = told(&Event::MirrorTrouble { message: "é".repeat(2000) }, Before::default()).unwrap().text;
        assert!(long.ends_with('…') && long.len() <= LONGEST + 3, "{}", long.len());
    }

    #[test]
    fn an_incident_is_told_with_cause_and_confidence_and_a_decision_with_its_cap() {
        let incident = Event::Incident {
            step: 118,
            saved_step: 100,
            kind: "kernel_oom_in_our_cgroup".into(),
            told: "killed by the kernel: its cgroup was out of memory".into(),
            confidence: "proven".into(),
            because: vec!["memory.events: oom_kill 0 -> 1".into()],
            evidence: serde_json::Value::Null,
        };
        assert_eq!(
            told(&incident, Before::default()).unwrap().text,
            "worker died: killed by the kernel: its cgroup was out of memory (proven); step 100 is saved"
        );
        let (decision, why) = ("replan".to_string(), "the limit is smaller than the plan".to_string());
        let decided = Event::Decided { decision, why, cap: Some(Bytes::mib(180)), inputs: serde_json::Value::Null };
        assert_eq!(
            told(&decided, Before::default()).unwrap().text,
            "plans again under 180 MiB: the limit is smaller than the plan"
        );
    }
}
