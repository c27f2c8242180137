//! The terminal of a person who types into a command of a session.

use std::io::{IsTerminal as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustix::termios;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::client::follow::StreamPosition;
use crate::cli::client::http::{Client, Events};
use crate::cli::client::session_key::SessionKey;
use crate::cli::failure::Failure;
use crate::cli::keyboard::{KeyboardMode, READ_BYTES, keys};
use crate::protocol::api::{CellState, CellView};
use crate::protocol::command::{NewCommand, TerminalSize, Typed};
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::TYPED_BYTES;
use crate::protocol::result::ExecutionResult;
use crate::security_controls;

const ESCAPE: char = '\u{1b}';
const BELL: char = '\u{7}';

/// Whether a person sits at a terminal.
pub(super) fn is_there() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

fn size() -> TerminalSize {
    match termios::tcgetwinsize(std::io::stdout()) {
        Ok(found) if found.ws_row > 0 && found.ws_col > 0 => {
            TerminalSize { rows: found.ws_row, columns: found.ws_col }
        }
        _ => TerminalSize::default(),
    }
}

/// Takes out what a program in a sandbox has no business with in a person's terminal: the control strings (titles, the
/// clipboard, queries of settings, pictures). Movements, colours and modes stay.
#[derive(Default)]
struct ControlStrings {
    state: Scan,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Scan {
    #[default]
    Text,
    Escape,
    /// Behind `ESC %`, which chooses another encoding, in which other bytes begin control strings.
    Encoding,
    String,
    EscapeInString,
}

impl ControlStrings {
    fn filter(&mut self, text: &str) -> String {
        if !security_controls::holds("control_strings_stay_out") {
            return text.to_owned();
        }
        let mut kept = String::with_capacity(text.len());
        for letter in text.chars() {
            self.state = match (self.state, letter) {
                // Terminals ignore DEL inside of an escape.
                (Scan::Text | Scan::Escape | Scan::Encoding, ESCAPE) | (Scan::Escape, '\u{7f}') => {
                    Scan::Escape
                }
                (Scan::Escape, '%') | (Scan::Encoding, '\u{7f}') => Scan::Encoding,
                // The beginnings of DCS, SOS, OSC, PM and APC, in both forms, and of the title of screen and tmux.
                (
                    Scan::Text | Scan::Escape | Scan::Encoding,
                    '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}',
                )
                | (Scan::Escape, 'P' | 'X' | ']' | '^' | '_' | 'k') => Scan::String,
                // CAN and SUB end an escape. Terminals differ in whether a letter beyond ASCII ends it, so that the
                // letter is shown without the ESC before it.
                (Scan::Text, _) | (Scan::Escape | Scan::Encoding, '\u{18}' | '\u{1a}' | '\u{80}'..) => {
                    kept.push(letter);
                    Scan::Text
                }
                // Terminals obey other controls inside of an escape, and the escape goes on behind them.
                (Scan::Escape | Scan::Encoding, '\0'..='\u{1f}') => {
                    kept.push(letter);
                    self.state
                }
                (Scan::Escape, _) => {
                    kept.extend([ESCAPE, letter]);
                    Scan::Text
                }
                // CAN and SUB end a control string, too, so that a file without its end does not blank all that follows.
                // What chooses an encoding is left out, so that it stays UTF-8.
                (Scan::String | Scan::EscapeInString, BELL | '\u{9c}' | '\u{18}' | '\u{1a}')
                | (Scan::EscapeInString, '\\')
                | (Scan::Encoding, _) => Scan::Text,
                (Scan::String | Scan::EscapeInString, ESCAPE) => Scan::EscapeInString,
                (Scan::String | Scan::EscapeInString, _) => Scan::String,
            };
        }
        kept
    }
}

/// Runs the command in the person's terminal until it ends.
pub(super) async fn type_into(
    client: &Client,
    session: &SessionKey,
    mut command: NewCommand,
) -> Result<Box<ExecutionResult>, Failure> {
    let resized = resizes()?;
    command.tty = Some(size());
    if let Ok(name) = std::env::var("TERM") {
        command.env.entry("TERM".to_owned()).or_insert(name);
    }
    let path = format!("/v1/sessions/{session}/commands?stream=true");
    let events: Events = client.events(&path, Some(&command)).await?;
    pass_on(client, session, events, None, StreamPosition::after(0), resized).await
}

/// Goes on in the terminal of a command that runs, after all that it has written is shown again.
pub(super) async fn attach(
    client: &Client,
    session: &SessionKey,
    command: CellNumber,
) -> Result<Box<ExecutionResult>, Failure> {
    let path = format!("/v1/sessions/{session}/commands/{command}");
    let view: CellView = client.get(&path).await?.parse()?;
    if view.state == CellState::Done {
        return Err(Failure::new(format!("command {command} has ended"))
            .hint(format!("`belljar logs {session} --cell {command}` shows what it wrote")));
    }
    // A size that differs makes a program draw its screen anew, and a command without a terminal refuses to be told.
    let resized = resizes()?;
    let (here, resize) = (size(), format!("{path}/resize"));
    let smaller = TerminalSize { columns: here.columns.saturating_sub(1).max(1), ..here };
    client.post(&resize, &smaller).await?;
    let events_path = format!("/v1/sessions/{session}/events?after={}", view.events_after);
    let events: Events = client.events::<()>(&events_path, None).await?;
    client.post(&resize, &here).await?;
    pass_on(client, session, events, Some(command), StreamPosition::after(view.events_after), resized).await
}

/// New sizes of the terminal. They are listened for before the first size is taken, so that none is missed.
fn resizes() -> Result<Signal, Failure> {
    signal(SignalKind::window_change()).map_err(|e| Failure::io("failed to listen for signals", &e))
}

/// Passes keys on to a command, and what it writes to the person's terminal, until it ends. Without a number, the first
/// event tells it.
async fn pass_on(
    client: &Client,
    session: &SessionKey,
    mut events: Events,
    mut number: Option<CellNumber>,
    mut trail: StreamPosition,
    mut resized: Signal,
) -> Result<Box<ExecutionResult>, Failure> {
    let raw = KeyboardMode::all_keys()?;
    let (mut keys, mut controls) = (keys(), ControlStrings::default());
    loop {
        let event = tokio::select! {
            biased;
            Some(typed) = keys.recv(), if number.is_some() => {
                let mut typed = typed;
                while typed.len() + READ_BYTES <= TYPED_BYTES && let Ok(more) = keys.try_recv() {
                    typed.extend(more);
                }
                tell(client, session, number, "type", &Typed { data_base64: BASE64.encode(typed) }).await;
                continue;
            }
            _ = resized.recv(), if number.is_some() => {
                tell(client, session, number, "resize", &size()).await;
                continue;
            }
            event = events.next() => event,
        };
        let event = match event {
            Ok(Some(event)) => event,
            Err(failure) if number.is_none() || failure.problem.is_some() => return Err(failure),
            Ok(None) if number.is_none() => {
                return Err(Failure::new("the daemon ended the stream before it told of the command"));
            }
            Ok(None) | Err(_) => {
                let again = number.map_or_else(String::new, |number| {
                    format!("`belljar sh -s {session} --attach {number}`")
                });
                let hint = format!("it goes on: {again} comes back to it");
                events = trail.resume(client, session, &hint).await?;
                continue;
            }
        };
        trail.saw(event.seq);
        let command = *number.get_or_insert_with(|| event.body.cell().unwrap_or_default());
        if event.body.cell() != Some(command) {
            continue;
        }
        match event.body {
            EventBody::Output { text, .. } => show(&controls.filter(&text))?,
            EventBody::CellQueued { commands_ahead: 1.., .. } => {
                let sentence = event.body.sentence().map(|sentence| sentence.text).unwrap_or_default();
                show(&format!("{sentence}\r\n"))?;
            }
            EventBody::CellFinished { result } => {
                drop(raw);
                return Ok(result);
            }
            _ => {}
        }
    }
}

fn show(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|e| Failure::io("failed to write to the terminal", &e))
}

/// Tells the daemon something about the terminal. A daemon that is away for a moment, or a command that has just ended,
/// costs what was typed, and the stream of events tells the rest.
async fn tell<T: serde::Serialize>(
    client: &Client,
    session: &SessionKey,
    command: Option<CellNumber>,
    what: &str,
    body: &T,
) {
    if let Some(command) = command {
        let _ = client.post(&format!("/v1/sessions/{session}/commands/{command}/{what}"), body).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_strings_do_not_reach_the_terminal_however_they_are_cut() {
        let shown = "a\u{1b}]52;c;aGk=\u{7}b\u{1b}[31mc\u{1b}P$qm\u{1b}\\d\u{9d}0;title\u{9c}e\u{1b}[?1049hf\u{1b}\u{1b}]0;x\u{1b}[m\u{7}g";
        for size in [1, 2, 3, shown.len()] {
            let mut controls = ControlStrings::default();
            let letters: Vec<char> = shown.chars().collect();
            let kept: String = letters
                .chunks(size)
                .map(|piece| controls.filter(&piece.iter().collect::<String>()))
                .collect();
            assert_eq!(kept, "ab\u{1b}[31mcde\u{1b}[?1049hfg");
        }
    }

    #[test]
    fn what_terminals_pass_over_inside_of_an_escape_does_not_hide_a_control_string() {
        for (shown, expected) in [
            ("a\u{1b}\0]52;c;aGk=\u{7}b", "a\0b"),
            ("a\u{1b}\u{7f}]52;c;aGk=\u{7}b", "ab"),
            ("a\u{1b}\n]52;c;aGk=\u{7}b", "a\nb"),
            ("a\u{1b}\r\0\u{7f}P$qm\u{1b}\\b", "a\r\0b"),
            ("a\u{1b}\u{9d}0;title\u{9c}b", "ab"),
            ("a\u{1b}\0\u{9d}0;title\u{9c}b", "a\0b"),
            ("a\u{1b}ktitle\u{1b}\\b", "ab"),
            ("a\u{1b}%@b", "ab"),
            ("a\u{1b}\0%\u{7f}\n@b", "a\0\nb"),
            ("a\u{1b}%\u{1b}]52;c;aGk=\u{7}b", "ab"),
            ("a\u{1b}]52;c;aGk=\u{18}b\u{1b}Px\u{1a}c", "abc"),
            // No ESC is left before what would begin a control string.
            ("a\u{1b}\u{18}]b", "a\u{18}]b"),
            ("a\u{1b}\u{1a}]b", "a\u{1a}]b"),
            ("a\u{1b}é]b", "aé]b"),
            ("a\u{1b}\u{85}]b", "a\u{85}]b"),
            // Other escapes stay.
            ("a\u{1b}\n[31mb", "a\n\u{1b}[31mb"),
            ("a\u{1b}(Bb\u{1b}7", "a\u{1b}(Bb\u{1b}7"),
        ] {
            assert_eq!(ControlStrings::default().filter(shown), expected, "{shown:?}");
            let mut controls = ControlStrings::default();
            let by_letter: String =
                shown.chars().map(|letter| controls.filter(&letter.to_string())).collect();
            assert_eq!(by_letter, expected, "{shown:?}, letter by letter");
        }
    }
}
