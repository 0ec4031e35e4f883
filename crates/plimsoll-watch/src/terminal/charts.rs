//! Loss by step and memory by running time, as curves with their latest figures in the title.

use plimsoll_machine::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Rect};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph, Widget};

use super::draw::{Scene, fitting, titled};
use super::paint::{ALLOWED, EVALUATED, MEASURED, PLANNED};
use crate::view::words::{clock, loss_text};
use crate::view::{Memory, PlanFrom};

/// From this height on the ends of x have a line of their own.
const WITH_X: u16 = 9;
/// A budget so many times above everything else would press the rest flat, and is told in words.
const FAR: f64 = 3.0;
/// The mark of measured curves, as it stands in titles.
const DOTS: char = '⠒';

type Points = Vec<(f64, f64)>;

pub(super) fn loss(buffer: &mut Buffer, area: Rect, scene: &Scene) {
    let (view, paint) = (scene.view, scene.paint);
    let (train, eval) = (&view.losses, &view.evals);
    let mut title = vec![Span::styled(format!("{DOTS} loss"), paint.measured())];
    if !eval.is_empty() {
        title.push(Span::styled(format!("{EVALUATED} evaluation"), paint.evaluated()));
    }
    let inner = titled(buffer, area, fitting(title, area.width), paint);
    let Some(y) = range(train.iter().chain(eval)) else {
        let why = if view.trainer.is_some() && view.step > 0 { "the trainer tells no loss" } else { "no step yet" };
        return empty(buffer, inner, why, scene);
    };
    let steps = ends(train.iter().chain(eval));
    // The evaluations are marks, and joined only where they lie close.
    let curves = vec![
        curve(train, MEASURED, GraphType::Line).style(paint.measured()),
        curve(eval, Marker::Custom(EVALUATED), GraphType::Scatter).style(paint.evaluated()),
    ];
    let x =
        Axis::default().bounds(steps).labels(x_labels(inner, [format!("{:.0}", steps[0]), format!("{:.0}", steps[1])]));
    let labels = [y[0], (y[0] + y[1]) / 2.0, y[1]].map(loss_text);
    draw(buffer, inner, curves, x, Axis::default().bounds(y).labels(labels));
}

pub(super) fn memory(buffer: &mut Buffer, area: Rect, scene: &Scene) {
    let (memory, paint) = (&scene.view.memory, scene.paint);
    let told = |mark: char, name: &str, bytes: Option<Bytes>| bytes.map(|bytes| format!("{mark} {name} {bytes}"));
    let title = [
        told(DOTS, "RAM", memory.used_bytes).map(|text| Span::styled(text, paint.measured())),
        told(PLANNED, "plan", memory.planned_bytes).map(|text| Span::styled(text, paint.planned())),
        told(ALLOWED, scene.allowed(), memory.budget_bytes).map(|text| Span::styled(text, paint.allowed())),
        memory.seen_peak_bytes.map(|peak| Span::raw(format!("peak {peak}"))),
    ];
    let mut title: Vec<Span> = title.into_iter().flatten().collect();
    if title.is_empty() {
        title.push(Span::raw("memory"));
    }
    let inner = titled(buffer, area, fitting(title, area.width), paint);
    let end = scene.view.running_seconds.max(1.0);
    let (planned, allowed) = (planned_line(&memory.plans, end), allowed_line(memory, end));
    let all = memory.used.iter().chain(&planned).chain(&allowed);
    let top = all.map(|point| point.1).fold(0.0, f64::max);
    if top == 0.0 {
        return empty(buffer, inner, "nothing measured yet", scene);
    }
    let y = [memory_floor(memory, top), top * 1.05];
    let curves = vec![
        curve(&allowed, Marker::Custom(ALLOWED), GraphType::Line).style(paint.allowed()),
        curve(&planned, Marker::Custom(PLANNED), GraphType::Line).style(paint.planned()),
        curve(&memory.used, MEASURED, GraphType::Line).style(paint.measured()),
    ];
    let x = Axis::default().bounds([0.0, end]).labels(x_labels(inner, ["0:00".to_string(), clock(end)]));
    let labels = [y[0], (y[0] + y[1]) / 2.0, y[1]].map(|bytes| Bytes(bytes as u64).to_string());
    draw(buffer, inner, curves, x, Axis::default().bounds(y).labels(labels));
}

/// Where the axis of memory begins: at nothing, unless all that was used lies so near the top that the distance to the
/// plan could not be seen.
fn memory_floor(memory: &Memory, top: f64) -> f64 {
    let least = memory.used.iter().map(|point| point.1).fold(f64::MAX, f64::min);
    let floor = least - (top - least);
    if memory.used.is_empty() || floor < 0.4 * top { 0.0 } else { floor }
}

/// The planned peak over time.
fn planned_line(plans: &[PlanFrom], end: f64) -> Points {
    steps(plans.iter().filter_map(|plan| Some((plan.from_seconds, plan.planned_bytes?.0 as f64))), end)
}

/// The budget over time, where it is near enough to be drawn.
fn allowed_line(memory: &Memory, end: f64) -> Points {
    let planned = memory.plans.iter().filter_map(|plan| Some(plan.planned_bytes?.0 as f64));
    let used = memory.used.iter().map(|point| point.1);
    let near = FAR * planned.chain(used).fold(0.0, f64::max);
    let budgets = memory.plans.iter().filter_map(|plan| Some((plan.from_seconds, plan.budget_bytes?.0 as f64)));
    steps(budgets.filter(|budget| budget.1 <= near), end)
}

/// What holds from each moment to the next, as the corners of a line.
fn steps(from: impl Iterator<Item = (f64, f64)>, end: f64) -> Points {
    let mut line: Points = Vec::new();
    for (x, y) in from {
        if let Some(&(_, before)) = line.last() {
            line.push((x, before));
        }
        line.push((x, y));
    }
    if let Some(&(_, last)) = line.last() {
        line.push((end, last));
    }
    line
}

fn curve<'a>(points: &'a [(f64, f64)], marker: Marker, kind: GraphType) -> Dataset<'a> {
    Dataset::default().data(points).marker(marker).graph_type(kind)
}

fn draw(buffer: &mut Buffer, area: Rect, curves: Vec<Dataset>, x: Axis, y: Axis) {
    let (x, y) = (x.labels_alignment(Alignment::Right), y.labels_alignment(Alignment::Right));
    Chart::new(curves).x_axis(x).y_axis(y).legend_position(None).render(area, buffer);
}

fn empty(buffer: &mut Buffer, area: Rect, text: &str, scene: &Scene) {
    Paragraph::new(Line::styled(text.to_string(), scene.paint.faint())).render(area, buffer);
}

fn x_labels(area: Rect, ends: [String; 2]) -> Vec<String> {
    if area.height >= WITH_X { ends.to_vec() } else { Vec::new() }
}

/// From the least y to the greatest, with a little room, and never of no height.
fn range<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> Option<[f64; 2]> {
    let (low, high) = points.fold((f64::MAX, f64::MIN), |(low, high), point| (low.min(point.1), high.max(point.1)));
    if low > high {
        return None;
    }
    let room = ((high - low) * 0.02).max(high.abs() * 1e-3).max(1e-9);
    // What is never negative has no axis below nothing.
    Some([if low >= 0.0 { (low - room).max(0.0) } else { low - room }, high + room])
}

/// From the first x to the last, and never of no width.
fn ends<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> [f64; 2] {
    let (first, last) =
        points.fold((f64::MAX, f64::MIN), |(first, last), point| (first.min(point.0), last.max(point.0)));
    [first, last.max(first + 1.0)]
}
