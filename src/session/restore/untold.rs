//! What a session woke without, until a result has told it.

use crate::protocol::event::EventBody;
use crate::protocol::snapshot::MissingVariable;

/// What the variables lack that a person expects them to have. What is made of the variables meanwhile, a snapshot for a branch
/// or an archive, has to say the same.
#[derive(Clone, Debug, Default)]
pub struct Untold {
    not_loaded: Option<String>,
    missing: Vec<MissingVariable>,
}

impl Untold {
    pub(super) fn take(&mut self, event: &EventBody) {
        match event {
            EventBody::Woken { missing, .. } => {
                *self = Self { not_loaded: None, missing: missing.clone() };
            }
            EventBody::WakeFailed { reason, .. } => {
                *self = Self { not_loaded: Some(reason.clone()), missing: Vec::new() };
            }
            EventBody::Reset | EventBody::ReplayStarted { .. } => *self = Self::default(),
            _ => {}
        }
    }

    /// A cell of the main line has ended, whose result told all of it.
    pub fn is_told(&mut self) {
        *self = Self::default();
    }

    /// Why the snapshot could not be loaded that the session was to wake with.
    #[must_use]
    pub fn not_loaded(&self) -> Option<&str> {
        self.not_loaded.as_deref()
    }

    /// The variables that are missing since the session woke, and why.
    #[must_use]
    pub fn missing(&self) -> &[MissingVariable] {
        &self.missing
    }
}
