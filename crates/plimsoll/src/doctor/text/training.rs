//! The part of the text that only somebody else's trainer has: who it is, its starts, where it stands.

use plimsoll_recover::cause::Confidence;

use super::{Colour, head, label, line, list};
use crate::doctor::diagnosis::{Start, TrainerStory};
use crate::doctor::sanitize::clean;
use crate::doctor::when::{Span, When};

/// Starts that are printed, from the front and from the end; `--json` has all.
const FRONT: usize = 3;
const BACK: usize = 5;
/// Grounds that are printed of a death that was overcome.
const GROUNDS: usize = 3;

/// Who was trained by what.
pub fn who(out: &mut String, trainer: &TrainerStory, colour: Colour) {
    head(out, "trainer", colour);
    let place = trainer.folder.as_ref().map_or(String::new(), |folder| format!(", in {}", folder.display()));
    line(out, &format!("  {}{}", trainer.name, clean(&place)));
    if !trainer.command.is_empty() {
        line(out, &format!("  {}", trainer.command));
    }
}

/// Its starts, what is not as asked, and where it stands.
pub fn what_happened(out: &mut String, trainer: &TrainerStory, colour: Colour) {
    if !trainer.starts.is_empty() {
        head(out, "starts (UTC)", colour);
    }
    let (count, mut day) = (trainer.starts.len(), String::new());
    for (at, start) in trainer.starts.iter().enumerate() {
        if count > FRONT + BACK && (FRONT..count - BACK).contains(&at) {
            if at == FRONT {
                line(out, &format!("  ... {} more (`--json` has all)", count - FRONT - BACK));
            }
            continue;
        }
        one(out, start, &mut day, at + 1 == count);
    }
    list(out, "not as asked", &trainer.not_as_asked, colour);
    stands(out, trainer, colour);
}

fn one(out: &mut String, start: &Start, day: &mut String, last: bool) {
    let when = When(start.unix_ms).to_string();
    // The date once is enough for a run of one day.
    let same = *day == when[..10];
    let shown = if same { when[11..].to_string() } else { when.clone() };
    *day = when[..10].to_string();
    let as_what = if start.changes.is_empty() { "as typed".to_string() } else { start.changes.join(", ") };
    let limit = start.limit_bytes.map_or(String::new(), |limit| format!(", at most {limit} of RAM"));
    line(out, &format!("  {}. {shown}  {as_what}{limit}", start.attempt));
    if let Some(from) = &start.from {
        let step = start.from_step.filter(|step| *step > 0).map_or(String::new(), |step| format!(" (step {step})"));
        line(out, &format!("     went on from {}{step}", clean(&from.display().to_string())));
    }
    start.env.iter().for_each(|(name, value)| line(out, &format!("     {name}={value}")));
    start.warnings.iter().for_each(|warning| line(out, &format!("     {warning}")));
    let after = format!("after {}", Span(start.seconds));
    let step = start.step.filter(|step| *step > 0).map_or(String::new(), |step| format!(", at step {step}"));
    match (start.end, &start.cause) {
        ("died", Some(cause)) => {
            let sure = match cause.confidence {
                Confidence::Unproven => String::new(),
                sure => format!(" ({})", sure.name()),
            };
            line(out, &format!("     died {after}{step}: {}{sure}", cause.told));
            // The evidence of the last death stands above.
            if !last {
                for ground in cause.because.iter().take(GROUNDS) {
                    line(out, &format!("       {}: {}", label(ground, true), ground.text));
                }
            }
        }
        ("gave_way", _) => line(out, &format!("     ended {after}{step} to step up again")),
        ("unseen", _) => line(out, &format!("     its end {after}{step} was seen by nobody")),
        ("running", _) => line(out, &format!("     runs for {}{step}", Span(start.seconds))),
        (end, _) => line(out, &format!("     {end} {after}{step}")),
    }
    if let Some(then) = &start.then {
        line(out, &format!("     then: {then}"));
    }
}

fn stands(out: &mut String, trainer: &TrainerStory, colour: Colour) {
    if trainer.settings.is_empty() && trainer.processes.is_empty() {
        return;
    }
    head(out, "as it was last set and seen", colour);
    let told = |(name, value): (&String, &serde_json::Value)| match value {
        serde_json::Value::String(text) => format!("{name} {text}"),
        value => format!("{name} {value}"),
    };
    let settings: Vec<String> = trainer.settings.iter().map(told).collect();
    if !settings.is_empty() {
        line(out, &format!("  {}", clean(&settings.join(", "))));
    }
    if let Some(ram) = trainer.ram_bytes {
        let peak = trainer.peak_ram_bytes.map_or(String::new(), |peak| format!(", the most seen was {peak}"));
        line(out, &format!("  {ram} of RAM, all processes{peak}"));
    }
    let wide = trainer.processes.iter().map(|process| process.role.len()).max().unwrap_or(0);
    for process in &trainer.processes {
        let pss = process.pss_bytes.map_or(String::new(), |pss| format!(", fair share {pss}"));
        let vram = process.vram_bytes.map_or(String::new(), |vram| format!(", {vram} on cards"));
        line(out, &format!("  {:wide$}  {} in RAM{pss}{vram}", clean(&process.role), process.rss_bytes));
    }
}
