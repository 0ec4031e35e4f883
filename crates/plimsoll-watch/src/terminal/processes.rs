//! The processes of somebody else's trainer and what each takes, in the place of a plan's lines.

use plimsoll_machine::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Widget};

use super::draw::{Scene, fitting, titled};
use crate::view::words::clock;
use crate::view::{ProcessView, TrainerView};

/// The width of a number of bytes.
const NUMBER: u16 = 9;

pub(super) fn draw(buffer: &mut Buffer, area: Rect, scene: &Scene, trainer: &TrainerView) {
    let paint = scene.paint;
    let inner = titled(buffer, area, Line::styled("processes", paint.strong()), paint);
    let on_cards = trainer.processes.iter().any(|process| process.vram_bytes.is_some());
    let rows = shown(&trainer.processes, usize::from(inner.height.saturating_sub(1)));
    let rows = rows.into_iter().map(|process| {
        let number = |bytes: Option<Bytes>| {
            Cell::from(Line::from(bytes.map_or("-".to_string(), |bytes| bytes.to_string())).right_aligned())
        };
        let mut cells = vec![Cell::from(process.role), number(Some(process.rss_bytes)), number(process.pss_bytes)];
        if on_cards {
            cells.push(number(process.vram_bytes));
        }
        Row::new(cells)
    });
    let mut names = vec!["RSS", "PSS"];
    names.extend(on_cards.then_some("VRAM"));
    let numbers = names.iter().map(|name| Line::from(*name).right_aligned());
    let heading = Row::new([Line::from("role")].into_iter().chain(numbers)).style(paint.faint());
    let widths = [Constraint::Fill(1)].into_iter().chain(names.iter().map(|_| Constraint::Length(NUMBER)));
    Table::new(rows, widths).header(heading).render(inner, buffer);
}

/// What the last start was started as: where its time goes, nobody sees.
pub(super) fn started(buffer: &mut Buffer, area: Rect, scene: &Scene, trainer: &TrainerView) {
    let paint = scene.paint;
    let title = [Span::styled(format!("start {}", trainer.start), paint.strong()), Span::raw(trainer.name.clone())];
    let inner = titled(buffer, area, fitting(title, area.width), paint);
    let as_typed = ["as typed".to_string()];
    let lines = if trainer.changes.is_empty() { &as_typed[..] } else { &trainer.changes };
    let time = Line::from(format!("{} of work in all", clock(scene.view.running_seconds)));
    let lines: Vec<Line> = lines.iter().map(|text| Line::from(text.clone())).chain([time]).collect();
    Paragraph::new(lines).render(inner, buffer);
}

/// At most `lines` processes, which are given the largest first; the others become one line with their sums.
fn shown(processes: &[ProcessView], lines: usize) -> Vec<ProcessView> {
    if processes.len() <= lines {
        return processes.to_vec();
    }
    let (kept, rest) = processes.split_at(lines.saturating_sub(1));
    let sum = |of: fn(&ProcessView) -> Option<Bytes>| rest.iter().filter_map(of).reduce(|sum, one| sum + one);
    let others = ProcessView {
        role: format!("{} others", rest.len()),
        pid: 0,
        rss_bytes: sum(|process| Some(process.rss_bytes)).unwrap_or_default(),
        pss_bytes: sum(|process| process.pss_bytes),
        vram_bytes: sum(|process| process.vram_bytes),
    };
    kept.iter().cloned().chain([others]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_do_not_fit_become_one_line_with_their_sums() {
        let one = |role: &str, mib| ProcessView {
            role: role.into(),
            pid: 1,
            rss_bytes: Bytes::mib(2 * mib),
            pss_bytes: Some(Bytes::mib(mib)),
            vram_bytes: None,
        };
        let all = [one("rank 0", 700), one("rank 1", 600), one("loader of rank 0", 30), one("launcher", 20)];
        let rows = shown(&all, 3);
        let told: Vec<(&str, Bytes, Option<Bytes>)> =
            rows.iter().map(|row| (row.role.as_str(), row.rss_bytes, row.pss_bytes)).collect();
        assert_eq!(told[2], ("2 others", Bytes::mib(100), Some(Bytes::mib(50))));
        assert_eq!((told[0].0, told[1].0, shown(&all, 4).len()), ("rank 0", "rank 1", 4));
    }
}
