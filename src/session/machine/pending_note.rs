//! What the next results have to say of what happened to the sandbox before.

use crate::protocol::result::Mode;
use crate::session::notices;

/// A note that stays until a cell of the main line has told it, because that goes on with the variables.
#[derive(Default)]
pub(super) struct PendingNote {
    text: Option<String>,
    /// Why a snapshot could not be loaded, until a cell of the main line has ended that tells it: whatever else happens before
    /// that takes the place of the text, and not of this.
    not_loaded: Option<String>,
    /// Commands have no variables: one of them tells that the sandbox is a new one, and the next ones go on in it.
    was_told_by_command: bool,
    /// Whether there can be variables of earlier cells, or of what the session began with: they end with a sandbox.
    has_variables: bool,
}

impl PendingNote {
    pub fn of(text: Option<String>, not_loaded: Option<String>, has_variables: bool) -> Self {
        Self { text, not_loaded, has_variables, was_told_by_command: false }
    }

    pub fn set(&mut self, text: String) {
        (self.text, self.was_told_by_command) = (Some(text), false);
    }

    pub fn sandbox_is_gone(&mut self, reason: &str) {
        self.set(notices::new_sandbox(reason, self.has_variables));
    }

    pub fn woke(&mut self, text: String) {
        self.set(text);
        (self.has_variables, self.not_loaded) = (true, None);
    }

    pub fn did_not_wake(&mut self, reason: String) {
        (self.not_loaded, self.was_told_by_command) = (Some(reason), false);
    }

    /// A cell of the main line has ended, which had all that there was to say.
    pub fn is_told(&mut self) {
        self.not_loaded = None;
    }

    /// A reset begins. Before a replay, the variables of before are still those that it is to make again.
    pub fn is_reset(&mut self, replay: bool) {
        *self = Self::of(None, None, self.has_variables && replay);
    }

    /// Takes the note out, so that another one that has it in it takes its place.
    pub fn take(&mut self) -> Option<String> {
        self.text.take()
    }

    /// What the result of a cell or command of this mode, which begins now, has to say.
    pub fn told_by(&mut self, mode: Mode) -> Option<String> {
        self.has_variables |= mode.has_variables();
        match mode {
            mode if mode.is_in_line() => {
                let told = self.whole();
                self.text = None;
                told
            }
            Mode::Command if std::mem::replace(&mut self.was_told_by_command, true) => None,
            _ => self.whole(),
        }
    }

    fn whole(&self) -> Option<String> {
        match &self.not_loaded {
            Some(reason) => Some(notices::not_woken(self.text.as_deref(), reason)),
            None => self.text.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_command_tells_what_happened_and_so_does_the_next_cell() {
        let mut note = PendingNote::default();
        assert_eq!(note.told_by(Mode::Command), None);
        for text in ["first", "second"] {
            note.set(text.into());
            let told = [Mode::Command, Mode::Command, Mode::Fork, Mode::Main, Mode::Main, Mode::Command]
                .map(|mode| note.told_by(mode).is_some_and(|told| told == text));
            assert_eq!(told, [true, false, true, true, false, false], "{text}");
        }
    }

    #[test]
    fn why_a_snapshot_could_not_be_loaded_is_told_whatever_comes_in_between() {
        let mut note = PendingNote::default();
        note.did_not_wake("it is damaged".into());
        note.sandbox_is_gone("it was put to sleep");
        for mode in [Mode::Command, Mode::Main] {
            let told = note.told_by(mode).unwrap();
            assert!(told.contains("put to sleep") && told.ends_with("loaded: it is damaged."), "{told}");
        }
        // The sandbox ended before the cell ran, which runs in the next one.
        note.sandbox_is_gone("it died");
        assert!(note.told_by(Mode::Main).unwrap().ends_with("it is damaged."));
        note.is_told();
        assert_eq!(note.told_by(Mode::Main), None);
    }

    #[test]
    fn nothing_is_said_to_be_gone_where_nothing_was() {
        let mut note = PendingNote::default();
        let mut gone_after = |mode| {
            let _ = note.told_by(mode);
            note.sandbox_is_gone("it was put to sleep");
            note.text.clone().unwrap().contains("are gone")
        };
        assert_eq!(
            [Mode::Command, Mode::Fork].map(&mut gone_after),
            [false, false],
            "they make no variables"
        );
        assert!(gone_after(Mode::Main) && gone_after(Mode::Command), "also when the next sandbox is gone");
        note.is_reset(true);
        note.sandbox_is_gone("it died");
        assert!(note.take().unwrap().contains("are gone"), "the replay has not made them again");
        note.is_reset(false);
        note.sandbox_is_gone("it died");
        assert!(!note.take().unwrap().contains("are gone"));
        note.woke("It woke.".into());
        note.sandbox_is_gone("it died");
        assert!(note.take().unwrap().contains("are gone"), "a session can begin with those of another one");
    }
}
