//! Whether a jail isolates its guest from the host.

use crate::protocol::receipt::Backend;

/// The isolation between a guest and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    Bubblewrap,
    None,
}

impl Isolation {
    pub fn of(backend: Backend) -> Option<Self> {
        match backend {
            Backend::Bubblewrap => Some(Self::Bubblewrap),
            Backend::Process => Some(Self::None),
            Backend::Auto | Backend::Docker => None,
        }
    }
}
