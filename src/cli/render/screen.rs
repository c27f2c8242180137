//! Where text goes: data to stdout, everything else to stderr. Text that a terminal would obey never reaches one.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::tcgetwinsize;
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::cli::render::human::Table;
use crate::protocol::result::Stream;
use crate::protocol::text::{Sanitizer, clipped, inert_json, one_line, sanitized};

/// Width of a terminal that does not tell it.
const COLUMNS: usize = 80;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Color {
    /// On terminals, unless `NO_COLOR` is set.
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Tint {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
}

impl Tint {
    fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Red => "1;31",
            Self::Green => "32",
            Self::Yellow => "1;33",
            Self::Blue => "34",
            Self::Magenta => "35",
            Self::Cyan => "1;36",
        }
    }

    /// The text must be sanitized and have a single line.
    pub fn paint(self, text: &str) -> String {
        format!("\x1b[{}m{text}\x1b[0m", self.code())
    }
}

pub(in crate::cli) struct Screen {
    out: Channel,
    err: Channel,
    /// stderr shows a progress line that is erased before anything else is shown.
    in_progress: bool,
}

/// One of the two standard streams.
struct Channel {
    terminal: bool,
    color: bool,
    guest: Sanitizer,
    /// The guest's text so far did not end with a line break.
    mid_line: bool,
}

impl Channel {
    fn new(terminal: bool, color: Color) -> Self {
        let wanted = match color {
            Color::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            Color::Always => true,
            Color::Never => false,
        };
        Self { terminal, color: wanted, guest: Sanitizer::default(), mid_line: false }
    }

    fn tinted(&self, tint: Tint, text: &str) -> String {
        if self.color { tint.paint(text) } else { text.to_owned() }
    }
}

impl Screen {
    pub fn new(color: Color) -> Self {
        Self {
            out: Channel::new(io::stdout().is_terminal(), color),
            err: Channel::new(io::stderr().is_terminal(), color),
            in_progress: false,
        }
    }

    /// Whether stderr is a terminal, so that a person reads it.
    pub fn is_watched(&self) -> bool {
        self.err.terminal
    }

    /// Whether stdout and stderr are both terminals, so that a person sees them side by side.
    pub fn is_one_terminal(&self) -> bool {
        self.out.terminal && self.err.terminal
    }

    /// Whether stderr may have colours.
    pub fn colors_watched(&self) -> bool {
        self.err.color
    }

    /// Whether stdout may have colours.
    pub fn colors_data(&self) -> bool {
        self.out.color
    }

    /// The text in colour, for stdout. It must not come from a guest.
    pub fn tinted(&self, tint: Tint, text: &str) -> String {
        self.out.tinted(tint, text)
    }

    /// A line of data. It may hold guest text and Belljar's own colours, so the caller sanitizes the guest text.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.end_line(Stream::Stdout)?;
        self.raw(text.as_bytes())?;
        self.raw(b"\n")
    }

    /// A line of a guest on stdout.
    pub fn guest_line(&mut self, text: &str) -> Result<(), Failure> {
        self.end_line(Stream::Stdout)?;
        self.guest(Stream::Stdout, text)?;
        self.end_line(Stream::Stdout)
    }

    /// Names with values; a value may come from a guest, so it is sanitized.
    pub fn facts(&mut self, facts: &[(&str, String)]) -> Result<(), Failure> {
        for (name, value) in facts {
            let name = self.tinted(Tint::Dim, &format!("{name:<10}"));
            self.line(&format!("{name}  {}", one_line(value)))?;
        }
        Ok(())
    }

    /// A table with its head, on stdout.
    pub fn table(&mut self, table: &Table) -> Result<(), Failure> {
        for (index, line) in table.lines().iter().enumerate() {
            let line = if index == 0 { self.tinted(Tint::Bold, line) } else { line.clone() };
            self.line(&line)?;
        }
        Ok(())
    }

    /// A document or a line of a stream, for programs.
    pub fn json<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        self.line(&json_text(value)?)
    }

    /// Writes bytes to stdout unchanged.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.erase_progress()?;
        write(Stream::Stdout, bytes)
    }

    fn channel(&mut self, stream: Stream) -> &mut Channel {
        match stream {
            Stream::Stdout => &mut self.out,
            Stream::Stderr => &mut self.err,
        }
    }

    /// Output of the guest. It is sanitized for a terminal and passed on unchanged to anything else.
    pub fn guest(&mut self, stream: Stream, text: &str) -> Result<(), Failure> {
        self.erase_progress()?;
        let channel = self.channel(stream);
        let mut clean = String::new();
        let text_shown = if channel.terminal {
            channel.guest.feed(text, &mut clean);
            clean.as_str()
        } else {
            text
        };
        if let Some(last) = text_shown.as_bytes().last() {
            channel.mid_line = *last != b'\n';
        }
        let mid_line = channel.mid_line;
        self.share_line(mid_line);
        write(stream, text_shown.as_bytes())
    }

    /// The same for output that is no text: what is no terminal gets its bytes.
    pub fn guest_bytes(&mut self, stream: Stream, text: &str, bytes: Option<&[u8]>) -> Result<(), Failure> {
        match bytes.filter(|_| !self.channel(stream).terminal) {
            Some(bytes) => {
                self.erase_progress()?;
                self.channel(stream).mid_line = bytes.last() != Some(&b'\n');
                write(stream, bytes)
            }
            None => self.guest(stream, text),
        }
    }

    /// If stdout and stderr are both terminals, they are most likely the same one and share the current line.
    fn share_line(&mut self, mid_line: bool) {
        if self.out.terminal && self.err.terminal {
            (self.out.mid_line, self.err.mid_line) = (mid_line, mid_line);
        }
    }

    /// Ends a line that the guest began, so that the next text on this stream begins a line of its own.
    pub fn end_line(&mut self, stream: Stream) -> Result<(), Failure> {
        self.erase_progress()?;
        let channel = self.channel(stream);
        channel.guest = Sanitizer::default();
        if std::mem::take(&mut channel.mid_line) {
            self.share_line(false);
            return write(stream, b"\n");
        }
        Ok(())
    }

    /// A line for people, dim.
    pub fn note(&mut self, text: &str) -> Result<(), Failure> {
        self.say(None, text)
    }

    pub fn warn(&mut self, text: &str) -> Result<(), Failure> {
        self.say(Some((Tint::Yellow, "warning")), text)
    }

    pub fn error(&mut self, text: &str) -> Result<(), Failure> {
        self.say(Some((Tint::Red, "error")), text)
    }

    fn say(&mut self, label: Option<(Tint, &str)>, text: &str) -> Result<(), Failure> {
        self.end_line(Stream::Stderr)?;
        let text = sanitized(text);
        let line = match label {
            Some((tint, label)) => format!("{}: {text}\n", self.err.tinted(tint, label)),
            None => format!("{}\n", self.err.tinted(Tint::Dim, &text)),
        };
        write(Stream::Stderr, line.as_bytes())
    }

    /// Lines for people, on stderr. They may hold Belljar's own colours, so the caller sanitizes the rest.
    pub fn block(&mut self, text: &str) -> Result<(), Failure> {
        self.end_line(Stream::Stderr)?;
        write(Stream::Stderr, format!("{text}\n").as_bytes())
    }

    /// A question; the answer is typed behind it.
    pub fn prompt(&mut self, text: &str) -> Result<(), Failure> {
        self.end_line(Stream::Stderr)?;
        self.err.mid_line = true;
        self.share_line(true);
        write(Stream::Stderr, self.err.tinted(Tint::Bold, text).as_bytes())
    }

    /// The answer was typed, and its Enter has ended the line.
    pub fn was_answered(&mut self) {
        self.err.mid_line = false;
        self.share_line(false);
    }

    /// Shows a line that is erased before anything else is shown, also before the next progress; empty text erases it.
    /// Only on a terminal. The text is cut where the line ends, since only one line of the terminal is erased.
    pub fn progress(&mut self, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return self.erase_progress();
        }
        if !self.err.terminal || self.err.mid_line {
            return Ok(());
        }
        self.in_progress = true;
        let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        // The last column stays free, because some terminals begin a new line behind it.
        let text = clipped(&one_line(text), if columns == 0 { COLUMNS } else { columns }.saturating_sub(1));
        let line = format!("\r\x1b[2K{}", self.err.tinted(Tint::Dim, &text));
        write(Stream::Stderr, line.as_bytes())
    }

    fn erase_progress(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.in_progress) { write(Stream::Stderr, b"\r\x1b[2K") } else { Ok(()) }
    }

    /// Reports the failure of a command.
    pub fn failure(&mut self, failure: &Failure, json: bool) {
        if !failure.is_quiet() {
            // If stderr is closed, too, the failure cannot be reported.
            let _ = self.try_failure(failure, json);
        }
    }

    fn try_failure(&mut self, failure: &Failure, json: bool) -> Result<(), Failure> {
        if json {
            return self.block(&json_text(&failure.json())?);
        }
        self.error(&failure.message)?;
        let Some(hint) = &failure.hint else { return Ok(()) };
        let label = self.err.tinted(Tint::Cyan, "hint");
        write(Stream::Stderr, format!("\n{label}: {}\n", sanitized(hint)).as_bytes())
    }
}

/// A value on one line, for programs. A terminal does not obey it, because a person may read it there.
fn json_text<T: Serialize + ?Sized>(value: &T) -> Result<String, Failure> {
    let text =
        serde_json::to_string(value).map_err(|e| Failure::new(format!("failed to write JSON: {e}")))?;
    Ok(inert_json(&text))
}

fn write(stream: Stream, bytes: &[u8]) -> Result<(), Failure> {
    let outcome = match stream {
        Stream::Stdout => {
            let mut out = io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Stream::Stderr => io::stderr().lock().write_all(bytes),
    };
    outcome.map_err(|e| Failure::write(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_terminal_obeys_json() {
        let failure = Failure::new("a\u{9b}31m\u{7f}\u{202e}b");
        let text = json_text(&failure.json()).unwrap();
        assert!(text.contains(r"a\u009b31m\u007f\u202eb"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), failure.json());
    }
}
