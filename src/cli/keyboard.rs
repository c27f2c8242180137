//! The keyboard of a person at a terminal, key by key.

use std::io::Read as _;

use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use tokio::sync::mpsc;

use super::failure::Failure;

/// Bytes that are read from the keyboard at once, and how many such pieces wait to be taken.
pub(in crate::cli) const READ_BYTES: usize = 4096;
const READS_WAITING: usize = 16;

/// The terminal passes keys on as they are typed, until this is dropped, also by a panic. What was typed and not read by
/// then is dropped, and so are answers of the terminal to what was written to it.
pub(in crate::cli) struct KeyboardMode {
    before: Termios,
}

impl KeyboardMode {
    /// Every key is passed on, Ctrl-C too.
    pub fn all_keys() -> Result<Self, Failure> {
        Self::new(Termios::make_raw)
    }

    /// Keys need no Enter and are not shown; Ctrl-C is a key as well, so that the terminal is put back after it.
    pub fn single_keys() -> Result<Self, Failure> {
        Self::new(|modes| modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG))
    }

    fn new(change: impl FnOnce(&mut Termios)) -> Result<Self, Failure> {
        let failed = |error: rustix::io::Errno| Failure::io("failed to set up the terminal", &error.into());
        let before = termios::tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut changed = before.clone();
        change(&mut changed);
        termios::tcsetattr(std::io::stdin(), OptionalActions::Flush, &changed).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for KeyboardMode {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.before);
    }
}

/// Reads keys on a thread of its own, which ends with the process.
pub(in crate::cli) fn keys() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(READS_WAITING);
    std::thread::spawn(move || {
        let mut buffer = [0; READ_BYTES];
        while let Ok(count) = std::io::stdin().lock().read(&mut buffer) {
            if count == 0 || sender.blocking_send(buffer[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}
