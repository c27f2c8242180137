//! Whether a workspace has to be measured again. It has not while nothing can have changed it: no process of its sandbox
//! has run since the last measurement began, and the daemon itself has changed no file.

use std::time::{Duration, Instant};

/// A workspace is measured this often even if nothing seems to have changed it.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// The last measurement of a workspace.
#[derive(Debug, Default)]
pub struct LastLook {
    /// When it began, and the activity of the sandbox then: what runs during a measurement may write where that has been.
    began: Option<(Instant, Option<u64>)>,
    /// Whether it ended, and nothing was too large and growing.
    is_calm: bool,
    /// Whether the daemon has changed files since it began.
    files_changed: bool,
}

impl LastLook {
    /// A measurement begins. `activity` is what `RunningSandbox::activity` says.
    pub fn begin(&mut self, activity: Option<u64>, now: Instant) {
        *self = Self { began: Some((now, activity)), ..Self::default() };
    }

    /// The activity of the sandbox when it began, if that is known.
    #[must_use]
    pub fn activity(&self) -> Option<u64> {
        self.began.and_then(|(_, activity)| activity)
    }

    /// The measurement ended; `is_calm` if it found nothing that was too large and growing. One that fails never ends.
    pub fn end(&mut self, is_calm: bool) {
        self.is_calm = is_calm;
    }

    pub fn files_changed(&mut self) {
        self.files_changed = true;
    }

    /// Whether a measurement could find nothing else than the last one did.
    #[must_use]
    pub fn is_current(&self, activity: Option<u64>, now: Instant) -> bool {
        let nothing_ran = self.began.is_some_and(|(began, before)| {
            before.is_some() && before == activity && now.saturating_duration_since(began) < LONGEST_REST
        });
        nothing_ran && self.is_calm && !self.files_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nothing_can_have_changed_is_left_alone() {
        let began = Instant::now();
        let measured = |calm| {
            let mut look = LastLook::default();
            look.begin(Some(7), began);
            look.end(calm);
            look
        };
        assert!(measured(true).is_current(Some(7), began));
        assert!(!measured(true).is_current(Some(8), began), "something ran");
        assert!(!measured(true).is_current(None, began), "nobody knows what ran");
        assert!(!measured(true).is_current(Some(7), began + LONGEST_REST), "long ago");
        assert!(!measured(false).is_current(Some(7), began), "something grew");
        assert!(!LastLook::default().is_current(None, began), "never measured");
        let mut look = measured(true);
        look.files_changed();
        assert!(!look.is_current(Some(7), began), "the daemon changed a file");
        look.begin(Some(7), began);
        assert!(!look.is_current(Some(7), began), "it has not ended, or failed");
        look.end(true);
        assert!(look.is_current(Some(7), began));
        assert_eq!(look.activity(), Some(7));
        look.begin(None, began);
        look.end(true);
        assert!(!look.is_current(None, began), "nobody knew what ran");
        assert_eq!(look.activity(), None);
    }
}
