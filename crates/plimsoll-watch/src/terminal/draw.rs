//! One picture of a view: every panel in its place, and the keys over it where they were asked for.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Widget};

use super::arrange::{Panels, arrange};
use super::keys::{KEYS, Mood};
use super::paint::Paint;
use super::{charts, events, head, processes, tables};
use crate::View;

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    pub name: &'a str,
    pub view: &'a View,
    pub paint: Paint,
    /// Somebody can press keys.
    pub keys: bool,
}

impl Scene<'_> {
    /// The lines that the table of parts wants, its heading included.
    pub fn part_lines(&self) -> u16 {
        let lines = self.view.trainer.as_ref().map_or(self.view.memory.parts.len(), |trainer| trainer.processes.len());
        lines.min(100) as u16 + 1
    }

    /// What the run may take is called.
    pub fn allowed(&self) -> &'static str {
        if self.view.trainer.is_some() { "limit" } else { "budget" }
    }
}

/// Draws the scene over the whole buffer.
pub(super) fn draw(buffer: &mut Buffer, scene: &Scene, mood: &mut Mood) {
    let area = buffer.area;
    panels(buffer, &arrange(area, scene.part_lines()), scene, mood);
    if mood.keys_shown {
        keys(buffer, area, scene.paint);
    }
}

/// Draws the panels that have a place.
pub(super) fn panels(buffer: &mut Buffer, panels: &Panels, scene: &Scene, mood: &mut Mood) {
    head::draw(buffer, panels.head, scene);
    if let Some(area) = panels.loss {
        charts::loss(buffer, area, scene);
    }
    if let Some(area) = panels.memory {
        charts::memory(buffer, area, scene);
    }
    if let Some(area) = panels.parts {
        match &scene.view.trainer {
            Some(trainer) => processes::draw(buffer, area, scene, trainer),
            None => tables::parts(buffer, area, scene),
        }
    }
    if let Some(area) = panels.time {
        match &scene.view.trainer {
            Some(trainer) => processes::started(buffer, area, scene, trainer),
            None => tables::time(buffer, area, scene),
        }
    }
    if let Some(area) = panels.events {
        events::draw(buffer, area, scene, mood);
    }
}

/// A panel's title over its width, and the place below it.
pub(super) fn titled(buffer: &mut Buffer, area: Rect, mut title: Line, paint: Paint) -> Rect {
    title.push_span(" ");
    let block = Block::new().borders(Borders::TOP).border_style(paint.faint()).title(title);
    let inner = block.inner(area);
    block.render(area, buffer);
    inner
}

/// As many of the pieces as fit into `width`, with two blanks between them.
pub(super) fn fitting<'a>(pieces: impl IntoIterator<Item = ratatui::text::Span<'a>>, width: u16) -> Line<'a> {
    let mut line = Line::default();
    for piece in pieces {
        let gap = if line.spans.is_empty() { 0 } else { 2 };
        if !line.spans.is_empty() && line.width() + gap + piece.width() > usize::from(width) {
            break;
        }
        if gap > 0 {
            line.push_span("  ");
        }
        line.push_span(piece);
    }
    line
}

/// The keys, in the middle.
fn keys(buffer: &mut Buffer, area: Rect, paint: Paint) {
    let (width, height) = (44.min(area.width), (KEYS.len() as u16 + 2).min(area.height));
    let x = area.x + (area.width - width) / 2;
    let place = Rect { x, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(place, buffer);
    let lines: Vec<Line> = KEYS.iter().map(|(key, what)| Line::from(format!(" {key:<16}{what}"))).collect();
    let block = Block::bordered().title(Line::styled(" keys ", paint.strong()));
    Paragraph::new(lines).block(block).render(place, buffer);
}
