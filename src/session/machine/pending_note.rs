//! What the next results have to say of what happened to the sandbox before.

use crate::protocol::result::Mode;

/// A note that stays until a cell of the main line has told it, because that goes on with the variables.
#[derive(Default)]
pub(super) struct PendingNote {
    text: Option<String>,
    /// Commands have no variables: one of them tells that the sandbox is a new one, and the next ones go on in it.
    was_told_by_command: bool,
}

impl PendingNote {
    pub fn of(text: Option<String>) -> Self {
        Self { text, was_told_by_command: false }
    }

    pub fn set(&mut self, text: String) {
        *self = Self::of(Some(text));
    }

    /// What the result of a cell or command of this mode, which begins now, has to say.
    pub fn told_by(&mut self, mode: Mode) -> Option<String> {
        match mode {
            mode if mode.is_in_line() => self.text.take(),
            Mode::Command if std::mem::replace(&mut self.was_told_by_command, true) => None,
            _ => self.text.clone(),
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
}
