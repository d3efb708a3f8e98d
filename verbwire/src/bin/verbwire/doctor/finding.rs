//! What the doctor has to say: one sentence by layer and weight, and what to do about it.

use std::fmt;

/// Where the cause is, from below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    /// Cards, cables, ports, switches, and what the network does to packets.
    Hardware,
    /// The kernel's modules, device files, libraries and limits.
    Driver,
    /// Addresses, firewalls, connecting, HELLO and calls.
    Protocol,
}

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// It works less well than it could, or may not work one day.
    Warning,
    /// Something cannot work.
    Problem,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) layer: Layer,
    pub(super) level: Level,
    /// The rule's name, for programs that read the findings.
    pub(super) rule: &'static str,
    pub(super) what: String,
    pub(super) action: Option<String>,
}

impl Finding {
    pub(super) fn new(
        layer: Layer,
        level: Level,
        rule: &'static str,
        what: impl Into<String>,
    ) -> Self {
        Self { layer, level, rule, what: printable(&what.into()), action: None }
    }

    /// What to do about it.
    pub(super) fn advise(mut self, action: impl Into<String>) -> Self {
        self.action = Some(printable(&action.into()));
        self
    }
}

/// Files and peers may hold what moves a terminal's cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

impl Layer {
    pub(super) const ALL: [Self; 3] = [Self::Hardware, Self::Driver, Self::Protocol];
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hardware => "hardware",
            Self::Driver => "driver",
            Self::Protocol => "protocol",
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_of_a_file_or_a_peer_reaches_the_terminal_as_a_command() {
        let finding =
            Finding::new(Layer::Driver, Level::Note, "x", "a\u{1b}[2Jb\nc").advise("d\re");
        assert_eq!(finding.what, "a\u{fffd}[2Jb\u{fffd}c");
        assert_eq!(finding.action.as_deref(), Some("d\u{fffd}e"));
    }
}
