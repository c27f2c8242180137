//! Pictures that a cell showed: each is saved, and shown in place where the terminal can do that.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::cli::client::session_key::SessionKey;
use crate::protocol::result::ExecutionResult;

const PNG: &str = "image/png";
const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Larger pictures are saved, but not sent to a terminal.
const SHOWN_BYTES: usize = 8 * 1024 * 1024;
/// Most bytes that kitty accepts in one piece.
const KITTY_CHUNK: usize = 4096;

/// How a terminal displays pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Kitty,
    Iterm2,
}

impl Protocol {
    /// The protocol of the terminal, as the environment variables that terminals set tell.
    pub fn of_terminal(env: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let is = |name: &str, words: &[&str]| env(name).is_some_and(|value| words.contains(&value.as_str()));
        // Neither protocol works inside of a terminal multiplexer.
        if env("TMUX").is_some() || env("STY").is_some() {
            return None;
        }
        if env("KITTY_WINDOW_ID").is_some() || is("TERM", &["xterm-kitty", "xterm-ghostty"]) {
            return Some(Self::Kitty);
        }
        let iterm = is("TERM_PROGRAM", &["iTerm.app", "WezTerm"]) || is("LC_TERMINAL", &["iTerm2"]);
        iterm.then_some(Self::Iterm2)
    }

    /// The sequence that makes the terminal show the picture. The bytes are encoded as base64 here, so nothing that
    /// the guest sent can end the sequence.
    pub fn sequence(self, png: &[u8]) -> String {
        let data = STANDARD.encode(png);
        match self {
            Self::Iterm2 => format!("\x1b]1337;File=inline=1;size={}:{data}\x07\n", png.len()),
            Self::Kitty => {
                let mut sequence = String::new();
                let mut head = "a=T,f=100,";
                let mut rest = data.as_str();
                loop {
                    let (chunk, after) = rest.split_at_checked(KITTY_CHUNK).unwrap_or((rest, ""));
                    let more = if after.is_empty() { "m=0" } else { "m=1" };
                    sequence.extend(["\x1b_G", head, more, ";", chunk, "\x1b\\"]);
                    (head, rest) = ("", after);
                    if rest.is_empty() {
                        break sequence + "\n";
                    }
                }
            }
        }
    }
}

/// The pictures of a result that really are PNG files.
pub fn pictures(result: &ExecutionResult) -> Vec<Vec<u8>> {
    let displays = result.displays.iter().map(|display| &display.mime);
    displays.chain(result.result.as_ref().map(|value| &value.mime)).filter_map(picture).collect()
}

fn picture(mime: &Map<String, Value>) -> Option<Vec<u8>> {
    let text = mime.get(PNG)?.as_str()?;
    let compact: String = text.split_ascii_whitespace().collect();
    STANDARD.decode(compact).ok().filter(|bytes| bytes.starts_with(PNG_SIGNATURE))
}

/// Writes `SESSION-CELL-N.png` into a folder of the user.
pub fn save(
    folder: &Path,
    session: &SessionKey,
    cell: u64,
    number: usize,
    png: &[u8],
) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let path = folder.join(format!("{session}-{cell}-{number}.png"));
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?.write_all(png)?;
    Ok(path)
}

pub fn fits_terminal(png: &[u8]) -> bool {
    png.len() <= SHOWN_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn terminal(env: &[(&str, &str)]) -> Option<Protocol> {
        Protocol::of_terminal(&|name| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn terminals_say_what_they_can() {
        assert_eq!(terminal(&[("TERM", "xterm-kitty")]), Some(Protocol::Kitty));
        assert_eq!(terminal(&[("TERM_PROGRAM", "iTerm.app")]), Some(Protocol::Iterm2));
        assert_eq!(terminal(&[("LC_TERMINAL", "iTerm2"), ("TMUX", "/t")]), None);
        assert_eq!(terminal(&[("TERM", "xterm-256color")]), None);
    }

    #[test]
    fn sequences_hold_the_whole_picture() {
        assert_eq!(Protocol::Iterm2.sequence(b"abc"), "\x1b]1337;File=inline=1;size=3:YWJj\x07\n");
        assert_eq!(Protocol::Kitty.sequence(b"abc"), "\x1b_Ga=T,f=100,m=0;YWJj\x1b\\\n");
        let long = Protocol::Kitty.sequence(&[7; 5000]);
        let chunks: Vec<&str> = long.split("\x1b_G").skip(1).collect();
        assert_eq!(chunks.len(), 2);
        assert!(chunks[0].starts_with("a=T,f=100,m=1;") && chunks[1].starts_with("m=0;"), "{chunks:?}");
    }

    #[test]
    fn only_pictures_are_pictures() {
        let png = STANDARD.encode([PNG_SIGNATURE, b"rest"].concat());
        let found = |value: Value| picture(json!({ "image/png": value }).as_object().unwrap());
        assert_eq!(found(json!(format!("{png}\n"))).unwrap().len(), 12);
        assert_eq!(found(json!("AAAA")), None);
        assert_eq!(found(json!("\x1b]0;")), None);
        assert_eq!(found(json!(7)), None);
    }

    #[test]
    fn pictures_are_saved_for_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let session = SessionKey::parse("a").unwrap();
        let path = save(&dir.path().join("p"), &session, 3, 1, b"x").unwrap();
        assert!(path.ends_with("p/a-3-1.png"));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
