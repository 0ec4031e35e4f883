//! What happened, the latest at the bottom, long lines wrapped; scrolled back with the keys.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};

use super::draw::{Scene, fitting, titled};
use super::keys::Mood;
use super::paint::Paint;
use crate::view::words::when;
use crate::view::{Counts, EventLine};

pub(super) fn draw(buffer: &mut Buffer, area: Rect, scene: &Scene, mood: &mut Mood) {
    let paint = scene.paint;
    let lines = lines(scene, area.width);
    let page = usize::from(area.height.saturating_sub(1));
    mood.page = page;
    mood.back = mood.back.min(lines.len().saturating_sub(page));
    let mut title = vec![Span::styled("events", paint.strong())];
    if mood.back > 0 {
        title.push(Span::raw(format!("{} lines below", mood.back)));
    }
    title.extend(counts(&scene.view.counts).into_iter().map(Span::raw));
    let inner = titled(buffer, area, fitting(title, area.width), paint);
    let end = lines.len() - mood.back;
    let shown = lines[end.saturating_sub(page)..end].to_vec();
    Paragraph::new(shown).render(inner, buffer);
}

/// What happened how often, where it did.
fn counts(counts: &Counts) -> Vec<String> {
    let named = [
        (counts.incidents, "died"),
        (counts.restarts, "restarted"),
        (counts.skipped, "skipped"),
        (counts.not_saved, "not saved"),
        (counts.saved, "saved"),
        (counts.mirrored, "mirrored"),
        (counts.mirror_troubles, "mirror troubles"),
        (counts.warnings, "warnings"),
        (counts.unreadable, "unreadable lines"),
    ];
    named.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect()
}

/// All events as lines of this width.
pub(super) fn lines(scene: &Scene, width: u16) -> Vec<Line<'static>> {
    let events = &scene.view.events;
    let whens: Vec<String> = events.iter().map(|event| when(event.unix_ms, scene.view.now_unix_ms)).collect();
    let column = whens.iter().map(String::len).max().unwrap_or(0);
    let room = usize::from(width).saturating_sub(column + 3).max(10);
    let mut lines = Vec::new();
    for (event, when) in events.iter().zip(&whens) {
        let style = scene.paint.tone(event.tone);
        let mut before = format!("{when:>column$} {} ", Paint::mark(event.tone));
        for text in wrapped(&told(event), room) {
            lines.push(Line::from(vec![Span::styled(before, scene.paint.faint()), Span::styled(text, style)]));
            before = " ".repeat(column + 3);
        }
    }
    lines
}

fn told(event: &EventLine) -> String {
    event.step.map_or_else(|| event.text.clone(), |step| format!("step {step}: {}", event.text))
}

/// Text in lines of at most `room` columns, broken between words where that can be.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word = word;
        loop {
            let line = lines.last_mut().expect("there is always a line");
            let gap = usize::from(!line.is_empty());
            if width(line) + gap + width(word) <= room {
                if gap > 0 {
                    line.push(' ');
                }
                line.push_str(word);
                break;
            }
            if !line.is_empty() {
                lines.push(String::new());
                continue;
            }
            // A word longer than a line is cut where the line ends.
            let mut end = word.len();
            let mut used = 0;
            for (at, letter) in word.char_indices() {
                used += width(letter.encode_utf8(&mut [0; 4]));
                if used > room {
                    end = at.max(word.chars().next().map_or(0, char::len_utf8));
                    break;
                }
            }
            line.push_str(&word[..end]);
            word = &word[end..];
            if word.is_empty() {
                break;
            }
        }
    }
    lines
}

fn width(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_wrapped_between_words_and_long_words_are_cut() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("s3://bucket/prefix/run and more", 10), ["s3://bucke", "t/prefix/r", "un and", "more"]);
        assert_eq!(wrapped("日本語の文", 5), ["日本", "語の", "文"]);
        assert_eq!(wrapped("", 5), [""]);
    }
}
