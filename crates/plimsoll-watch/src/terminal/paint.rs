//! How things look. Text is in the terminal's own colours, so that light and dark ones both read well; what colour
//! says is said by a word or a mark too, for terminals without it (`NO_COLOR`).

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;

use crate::view::{Status, Tone};

/// The marks of curves, which differ without colour too.
pub(super) const MEASURED: Marker = Marker::Braille;
pub(super) const EVALUATED: char = 'o';
pub(super) const PLANNED: char = '─';
pub(super) const ALLOWED: char = '═';

/// With colour or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Paint {
    colour: bool,
}

impl Paint {
    /// With colour, unless `NO_COLOR` says otherwise.
    pub fn from_env() -> Paint {
        Paint { colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    /// Without colour.
    pub fn plain() -> Paint {
        Paint { colour: false }
    }

    #[cfg(test)]
    pub fn in_full() -> Paint {
        Paint { colour: true }
    }

    fn in_colour(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub fn measured(self) -> Style {
        self.in_colour(Color::Cyan)
    }

    pub fn evaluated(self) -> Style {
        self.in_colour(Color::Magenta).add_modifier(Modifier::BOLD)
    }

    pub fn planned(self) -> Style {
        self.in_colour(Color::Green)
    }

    pub fn allowed(self) -> Style {
        self.in_colour(Color::Red)
    }

    pub fn status(self, status: Status) -> Style {
        let colour = match status {
            Status::Running => Color::Green,
            Status::Stopped => Color::Magenta,
            Status::Finished => Color::Blue,
            Status::Dead => Color::Red,
        };
        self.in_colour(colour).add_modifier(Modifier::BOLD)
    }

    pub fn tone(self, tone: Tone) -> Style {
        match tone {
            Tone::Routine => Style::new(),
            Tone::Note => self.in_colour(Color::Blue),
            Tone::Warning => self.in_colour(Color::Magenta),
            Tone::Trouble => self.in_colour(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    /// Of an event that colour alone would set apart.
    pub fn mark(tone: Tone) -> &'static str {
        match tone {
            Tone::Routine | Tone::Note => " ",
            Tone::Warning => "!",
            Tone::Trouble => "✗",
        }
    }
}
