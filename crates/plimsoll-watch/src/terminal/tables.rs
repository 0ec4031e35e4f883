//! The plan's lines beside what was measured of them, and where the time went.

use plimsoll_machine::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Widget};

use super::draw::{Scene, fitting, titled};
use crate::view::PartView;
use crate::view::words::clock;

/// The width of a number of bytes, and of one that is in MiB and does not say so.
const NUMBER: u16 = 9;
const BARE: u16 = 7;
/// Below this width numbers are bare.
const NARROW: u16 = 40;
/// The width of the names of what time was spent on.
const SPENT: usize = 10;

pub(super) fn parts(buffer: &mut Buffer, area: Rect, scene: &Scene) {
    let paint = scene.paint;
    let inner = titled(buffer, area, Line::styled("plan by part", paint.strong()), paint);
    let (lines, narrow) = (usize::from(inner.height.saturating_sub(1)), inner.width < NARROW);
    let rows = shown(&scene.view.memory.parts, lines).into_iter().map(|part| {
        let over = part.used_bytes > part.planned_bytes && part.planned_bytes.is_some();
        let style = if over { paint.allowed() } else { Style::new() };
        let number = |bytes: Option<Bytes>, mark: &str| {
            let bare = |bytes: Bytes| format!("{:.1}", bytes.as_mib());
            let text = bytes.map_or("-".to_string(), |bytes| if narrow { bare(bytes) } else { bytes.to_string() });
            Cell::from(Line::from(format!("{mark}{text}")).right_aligned())
        };
        let (planned, used) = (number(part.planned_bytes, ""), number(part.used_bytes, if over { "!" } else { "" }));
        Row::new([Cell::from(part.name), planned, used]).style(style)
    });
    let [part, planned, used] = [if narrow { "MiB" } else { "part" }, "planned", "used"].map(Line::from);
    let heading = Row::new([part, planned.right_aligned(), used.right_aligned()]).style(paint.faint());
    let number = if narrow { BARE } else { NUMBER };
    let widths = [Constraint::Fill(1), Constraint::Length(number), Constraint::Length(number)];
    Table::new(rows, widths).header(heading).render(inner, buffer);
}

/// At most `lines` parts: those that would not fit become one line, the smallest first.
fn shown(parts: &[PartView], lines: usize) -> Vec<PartView> {
    if parts.len() <= lines {
        return parts.to_vec();
    }
    let size = |part: &PartView| part.planned_bytes.max(part.used_bytes);
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(size(&parts[at])));
    let kept = &order[..lines.saturating_sub(1)];
    let (kept, rest): (Vec<_>, Vec<_>) = parts.iter().enumerate().partition(|(at, _)| kept.contains(at));
    let planned = rest.iter().filter_map(|(_, part)| part.planned_bytes).sum();
    let other = PartView { name: format!("{} others", rest.len()), planned_bytes: Some(planned), used_bytes: None };
    kept.into_iter().map(|(_, part)| part.clone()).chain([other]).collect()
}

pub(super) fn time(buffer: &mut Buffer, area: Rect, scene: &Scene) {
    let (view, paint) = (scene.view, scene.paint);
    let title = [Span::styled("time", paint.strong()), Span::raw(clock(view.running_seconds))];
    let inner = titled(buffer, area, fitting(title, area.width), paint);
    Line::from(" all  late").right_aligned().render(Rect { height: 1, ..area }, buffer);
    let (all, lately) = (view.time.wall().max(1e-9), view.time_lately.wall());
    let room = usize::from(inner.width).saturating_sub(SPENT + 14);
    let lines = view.time.parts().into_iter().zip(view.time_lately.parts()).map(|((name, spent), (_, late))| {
        let share = spent / all;
        let late = if lately > 0.0 { format!("{:>4.0} %", 100.0 * late / lately) } else { format!("{:>6}", "-") };
        let full = (share * room as f64).round() as usize;
        Line::from(vec![
            Span::raw(format!("{name:<SPENT$} ")),
            Span::styled("█".repeat(full.min(room)), paint.measured()),
            Span::raw(" ".repeat(room.saturating_sub(full))),
            Span::raw(format!("{:>4.0} %{late}", 100.0 * share)),
        ])
    });
    Paragraph::new(lines.collect::<Vec<_>>()).render(inner, buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_become_one_line_with_their_sum() {
        let part = |name: &str, mib| {
            let planned_bytes = Some(Bytes::mib(mib));
            PartView { name: name.into(), planned_bytes, used_bytes: None }
        };
        let parts = [part("weights", 90), part("stacks", 1), part("activations", 60), part("reserve", 2)];
        let told = |lines| {
            let rows = shown(&parts, lines);
            rows.iter().map(|part| (part.name.clone(), part.planned_bytes.unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(told(4).len(), 4);
        let three = told(3);
        assert_eq!(three[0].0, "weights");
        assert_eq!(three[1..], [("activations".into(), Bytes::mib(60)), ("2 others".into(), Bytes::mib(3))]);
        assert_eq!(told(1), [("4 others".to_string(), Bytes::mib(153))]);
    }
}
