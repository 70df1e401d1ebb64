//! What depends on whether a person looks: colour, and a line that says how long something takes.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

/// How text is highlighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    colour: bool,
}

/// A meaning that has a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Bad,
    Doubtful,
    Heading,
    Quiet,
    /// One of the parties of a timeline.
    Party(u8),
}

impl Style {
    /// For standard output: colour on a terminal, unless `NO_COLOR` is set and not empty.
    pub(super) fn stdout() -> Self {
        Self {
            colour: io::stdout().is_terminal() && !is_dumb() && !is_set("NO_COLOR"),
        }
    }

    /// Never any colour.
    #[cfg(test)]
    pub(super) const fn plain() -> Self {
        Self { colour: false }
    }

    /// `text` in the colour of its meaning.
    pub(super) fn paint(self, tone: Tone, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Good => 32,
            Tone::Bad => 31,
            Tone::Doubtful => 33,
            Tone::Heading => 1,
            Tone::Quiet => 2,
            Tone::Party(number) => 34 + number % 3,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// One line on a terminal's standard error that is written over. Elsewhere nothing.
#[derive(Debug)]
pub(super) struct Progress {
    enabled: bool,
    shown: String,
}

impl Progress {
    /// Longest line, in characters: one that a terminal breaks cannot be taken back.
    const WIDTH: usize = 79;

    pub(super) fn stderr() -> Self {
        Self {
            enabled: io::stderr().is_terminal() && !is_dumb(),
            shown: String::new(),
        }
    }

    /// Replaces the line.
    pub(super) fn show(&mut self, text: &str) {
        let text: String = text.chars().take(Self::WIDTH).collect();
        if self.enabled && text != self.shown {
            // Losing a line of progress is no reason to stop.
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
            self.shown = text;
        }
    }

    /// Takes the line away, before something else is written.
    pub(super) fn clear(&mut self) {
        self.show("");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value != OsStr::new(""))
}

/// `text` with control characters made visible: plugins choose their names, and a terminal obeys what it is sent.
pub(super) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_made_visible() {
        assert_eq!(printable("a\x1b[31m\n\u{9b}é"), "a\\u{1b}[31m\\n\\u{9b}é");
    }

    #[test]
    fn colour_is_only_added() {
        let colourful = Style { colour: true };
        assert_eq!(colourful.paint(Tone::Bad, "x"), "\x1b[31mx\x1b[0m");
        assert_eq!(Style::plain().paint(Tone::Bad, "x"), "x");
    }
}
