//! The view of a run in a terminal: drawn about twice a second until the viewer leaves, or once as text.
//!
//! Invariants: it cannot change a run, and it always gives the terminal back as it was: on leaving, on SIGTERM, SIGINT
//! and SIGHUP, on an error and on a panic. A terminal that is gone is not an error. It knows views, not files: whoever
//! looks at the run comes in as a closure.

mod arrange;
mod charts;
mod draw;
mod events;
mod head;
mod keys;
mod listen;
mod paint;
mod processes;
mod screen;
mod tables;

use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::{View, WatchError};
use draw::{Scene, draw};
use keys::{Mood, Step};
use listen::{Listener, News};
use paint::Paint;
use screen::Screen;

/// The time between two looks at the run.
const PAUSE: Duration = Duration::from_millis(500);
/// The width of the text form.
const TEXT_WIDTH: u16 = 100;

/// Shows the run that is called `name` until the viewer leaves. `look` gives the run as it is now.
pub fn show(name: &str, mut look: impl FnMut() -> Result<View, WatchError>) -> Result<(), WatchError> {
    let paint = Paint::from_env();
    // A long journal takes its second before the screen is taken.
    let mut view = look()?;
    let mut listener = Listener::new()?;
    let mut screen = Screen::enter()?;
    let (mut mood, mut next) = (Mood::default(), Instant::now() + PAUSE);
    loop {
        let scene = Scene { name, view: &view, paint, keys: true };
        if screen.draw(|buffer| draw(buffer, &scene, &mut mood)).is_err() {
            return Ok(());
        }
        match listener.wait(next)? {
            News::Keys(keys) => {
                if keys.into_iter().any(|key| mood.press(key) == Step::Leave) {
                    return Ok(());
                }
            }
            News::Woken => {}
            News::Ended => return Ok(()),
        }
        if Instant::now() >= next {
            view = look()?;
            next = Instant::now() + PAUSE;
        }
    }
}

/// The same view as plain text of 100 columns, with every line of the plan and the latest events.
pub fn text(name: &str, view: &View) -> String {
    let scene = Scene { name, view, paint: Paint::plain(), keys: false };
    let panels = arrange::page(TEXT_WIDTH, scene.part_lines(), events::lines(&scene, TEXT_WIDTH).len() as u16);
    let mut buffer = Buffer::empty(panels.area());
    draw::panels(&mut buffer, &panels, &scene, &mut Mood::default());
    lines(&buffer).join("\n")
}

/// What stands in a buffer, line by line, without the blanks at the ends.
fn lines(buffer: &Buffer) -> Vec<String> {
    let Rect { width, height, .. } = buffer.area;
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_string();
    (0..height).map(row).collect()
}

#[cfg(test)]
#[path = "terminal/terminal_test.rs"]
mod tests;
