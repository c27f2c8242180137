//! Who calls: told by the kernel for each connection, never by the message.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::protocol::limits::{CONNECTIONS, CONNECTIONS_PER_USER};
use crate::protocol::problem::{Code, Problem};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    /// Sees and may act on everything: root, and members of the group for it.
    pub admin: bool,
    /// The request, as it is noted in the events of somebody else's session.
    pub act: String,
}

impl Peer {
    pub fn require_admin(&self, group: &str) -> Result<(), Problem> {
        if self.admin {
            return Ok(());
        }
        Err(Problem::new(Code::Forbidden, "only administrators see what others have")
            .hint(format!("they are root and the members of the group `{group}`")))
    }
}

/// Counts connections, all together and per user.
#[derive(Clone, Default)]
pub struct Connections(Arc<Mutex<HashMap<u32, usize>>>);

/// One counted connection.
pub struct Place {
    connections: Connections,
    uid: u32,
}

impl Connections {
    /// None if there are too many.
    #[must_use]
    pub fn take(&self, uid: u32) -> Option<Place> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counts.values().sum();
        let own = counts.entry(uid).or_default();
        if all >= CONNECTIONS || *own >= CONNECTIONS_PER_USER {
            return None;
        }
        *own += 1;
        Some(Place { connections: self.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.connections.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all_connections() {
        let connections = Connections::default();
        let held: Vec<_> = (0..CONNECTIONS_PER_USER).map(|_| connections.take(1).unwrap()).collect();
        assert!(connections.take(1).is_none());
        assert!(connections.take(2).is_some());
        drop(held);
        assert!(connections.take(1).is_some());
    }
}
