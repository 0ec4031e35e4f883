//! The three lines at the top: who and how it stands, how far it is, and the figures or the reason of its end.

use plimsoll_machine::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};

use super::draw::{Scene, fitting};
use super::paint::Paint;
use crate::View;
use crate::view::Status;
use crate::view::words::{ago, clock, loss_text, rate_text, span};

/// A name is cut here.
const NAME: usize = 32;
/// A running run that is silent for so many seconds, and so many times its last step, is said to be.
const SILENT: (f64, f64) = (15.0, 3.0);

pub(super) fn draw(buffer: &mut Buffer, area: Rect, scene: &Scene) {
    let Scene { name, view, paint, .. } = *scene;
    let name: String = name.chars().take(NAME).collect();
    let mut first = vec![Span::styled(name, paint.strong()), Span::styled(standing(view), paint.status(view.status))];
    first.extend(view.latest.map(|latest| Span::raw(format!("loss {}", loss_text(latest.loss)))));
    first.extend(view.evaluated.map(|evaluated| Span::raw(format!("eval {}", loss_text(evaluated.loss)))));
    first.extend(view.tokens_per_second.map(|rate| Span::raw(rate_text(rate))));
    let pace = view.seconds_per_step.filter(|_| view.trainer.is_some());
    first.extend(pace.map(|seconds| Span::raw(format!("{} a step", span(seconds)))));
    first.extend(scene.keys.then(|| Span::styled("? keys", paint.faint())));
    let lines = [fitting(first, area.width), progress(view, area.width, paint), third(view, area.width, paint)];
    Paragraph::new(lines.to_vec()).render(area, buffer);
}

/// How it stands, and since when.
fn standing(view: &View) -> String {
    let age = view.since_unix_ms.map(|since| view.now_unix_ms.saturating_sub(since) as f64 / 1e3);
    match (view.status, age) {
        (Status::Running, Some(age)) => format!("running for {}", clock(age)),
        (Status::Running, None) => "starting".to_string(),
        (Status::Stopped, Some(age)) => format!("stopped {}", ago(age)),
        (Status::Finished, Some(age)) => format!("finished {}", ago(age)),
        (Status::Dead, Some(age)) => format!("dead for {}", ago(age).trim_end_matches(" ago")),
        (Status::Stopped, None) => "stopped".to_string(),
        (Status::Finished, None) => "finished".to_string(),
        (Status::Dead, None) => "dead".to_string(),
    }
}

/// `step 120 of 400  ██████░░░░░░  30.0 %  ETA 1:23`
fn progress(view: &View, width: u16, paint: Paint) -> Line<'static> {
    let (step, total) = (view.step, view.total_steps);
    if total == 0 {
        return Line::from(format!("step {step}"));
    }
    let share = (step as f64 / total as f64).clamp(0.0, 1.0);
    // Not 100 % before the last step is done.
    let percent = (share * 1000.0).floor() / 10.0;
    let before = format!("step {step} of {total}  ");
    let eta = view.eta_seconds.map_or(String::new(), |left| format!("  ETA {}", clock(left)));
    let after = format!("  {percent:.1} %{eta}");
    let room = usize::from(width).saturating_sub(before.chars().count() + after.chars().count());
    let full = (share * room as f64).floor() as usize;
    Line::from(vec![
        Span::raw(before),
        Span::styled("█".repeat(full), paint.measured()),
        Span::styled("░".repeat(room - full), paint.faint()),
        Span::raw(after),
    ])
}

/// Why it ended, where it has; then what it works with.
fn third(view: &View, width: u16, paint: Paint) -> Line<'static> {
    let why = match (view.status, &view.why) {
        (Status::Stopped | Status::Finished | Status::Dead, Some(why)) => Some(why.as_str()),
        (Status::Dead, None) if view.last_unix_ms.is_none() => Some("it left no journal"),
        (Status::Dead, None) => Some("nobody works on it, and the journal tells of no end"),
        (Status::Running, _) if view.last_unix_ms.is_none() => Some("no journal yet: the run is being planned"),
        _ => None,
    };
    let why = why.map(|why| Span::styled(why.to_string(), paint.status(view.status)));
    fitting(why.into_iter().chain(figures(view)), width)
}

/// The most telling first: what does not fit is left out.
fn figures(view: &View) -> Vec<Span<'static>> {
    let memory = &view.memory;
    let mut figures = Vec::new();
    let mut add = |text: String| figures.push(Span::raw(text));
    let usual = view.latest.map_or(0.0, |latest| SILENT.1 * latest.seconds);
    if view.status == Status::Running && view.silent_seconds() > usual.max(SILENT.0) {
        add(format!("silent for {}", clock(view.silent_seconds())));
    }
    if let Some(swap) = memory.swap_bytes.filter(|&swap| swap > Bytes::ZERO) {
        let rate = memory.swapping_bytes_per_second.map_or(String::new(), |rate| format!(" ({rate}/s)"));
        add(format!("swap {swap}{rate}"));
    }
    if let Some(trainer) = &view.trainer {
        let start = if trainer.start > 1 { format!(", start {}", trainer.start) } else { String::new() };
        add(format!("{}{start}", trainer.name));
        if let Some(batch) = trainer.batch {
            add(format!("micro-batch {batch} x {}", trainer.accumulation.unwrap_or(1)));
        }
    }
    if let Some(choices) = view.choices {
        add(format!("micro-batch {} x {}", choices.micro_batch, choices.accumulation));
    }
    if let Some(vram) = memory.vram_bytes {
        add(format!("VRAM {vram}"));
    }
    if let Some(headroom) = memory.headroom_bytes {
        add(format!("headroom {headroom}"));
    }
    if let Some(stall) = memory.stall_some {
        add(format!("stall {stall:.1} %"));
    }
    if let Some(choices) = view.choices {
        add(format!("{} blocks computed twice", choices.recompute));
    }
    if let Some(latest) = view.latest {
        if latest.lr != 0.0 {
            add(format!("lr {:.1e}", latest.lr));
        }
        if let Some(norm) = latest.grad_norm {
            add(format!("gradient {norm:.2}"));
        }
    }
    if let Some(free) = memory.disk_free_bytes {
        add(format!("disk {free} free"));
    }
    if let Some(run) = &view.run {
        if run.effective_batch > 0 {
            add(format!("batch {}", run.effective_batch));
        }
        if !run.is_foreign() {
            add(format!("{} threads {}", run.threads, run.simd));
        }
    }
    figures
}
