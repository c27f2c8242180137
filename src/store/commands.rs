//! The commands that the journal's writer carries out: events of a log, and requests, which are all other writes.

use rusqlite::Connection;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::oneshot;

use super::blobs::{Blobs, INLINE_BYTES};
use super::durability::{Durability, OnRefusal, WriteError};
use super::error::JournalError;
use super::event_log::LogState;
use super::idempotency::KeyTarget;
use super::rows::Row;
use crate::memory::Charge;

/// Bytes that one event costs in the queue in addition to its JSON.
pub(super) const ROW_BYTES: usize = 512;

/// Events of one log that become visible together.
pub(super) struct Group {
    pub log: Arc<LogState>,
    pub rows: Vec<Row>,
    pub durability: Durability,
    /// The target for the idempotency key of the request that these events start.
    pub aim: Option<KeyTarget>,
    pub on_commit: Option<Box<dyn FnOnce() + Send>>,
    /// The charge for the memory that the events take until they are written.
    #[expect(dead_code, reason = "dropped with the events")]
    pub memory: Option<Charge>,
}

/// A write other than events. After a refused transaction `apply` runs again; the last outcome counts.
pub(super) trait Work: Send {
    fn durability(&self) -> Durability;
    fn on_refusal(&self) -> OnRefusal;
    fn apply(&mut self, connection: &Connection, blobs: &Blobs) -> Result<(), WriteError>;
    fn committed(self: Box<Self>);
    fn refused(self: Box<Self>, reason: &str);
}

pub(super) enum Command {
    Events(Group),
    Request(Box<dyn Work>),
}

impl Command {
    pub fn cost(&self) -> usize {
        match self {
            Self::Events(group) => group.rows.iter().map(|row| row.entry.cost() + ROW_BYTES).sum(),
            Self::Request(_) => 0,
        }
    }

    /// Whether writing the command requires a blob file.
    pub fn is_large(&self) -> bool {
        match self {
            Self::Events(group) => group.rows.iter().any(|row| row.entry.cost() > INLINE_BYTES),
            Self::Request(_) => false,
        }
    }

    pub fn durability(&self) -> Durability {
        match self {
            Self::Events(group) => group.durability,
            Self::Request(work) => work.durability(),
        }
    }

    pub fn apply(&mut self, connection: &Connection, blobs: &Blobs) -> Result<(), WriteError> {
        match self {
            Self::Events(group) => {
                group.rows.iter().try_for_each(|row| row.insert(connection, blobs))?;
                Ok(group.aim.iter().try_for_each(|aim| aim.note(connection))?)
            }
            Self::Request(work) => work.apply(connection, blobs),
        }
    }

    pub fn committed(self) {
        match self {
            Self::Events(group) => {
                group.log.publish(&group.rows);
                if let Some(on_commit) = group.on_commit
                    && std::panic::catch_unwind(AssertUnwindSafe(on_commit)).is_err()
                {
                    tracing::error!("a callback of the journal panicked");
                }
            }
            Self::Request(work) => work.committed(),
        }
    }

    pub fn abandon(self) {
        match self {
            Self::Events(group) => group.log.abandon(),
            Self::Request(work) => drop(work),
        }
    }
}

pub(super) struct Request<T, F> {
    pub durability: Durability,
    pub on_refusal: OnRefusal,
    pub work: F,
    pub outcome: Option<T>,
    pub reply: oneshot::Sender<Result<T, JournalError>>,
}

impl<T, F> Work for Request<T, F>
where
    T: Send,
    F: FnMut(&Connection, &Blobs) -> Result<T, WriteError> + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn on_refusal(&self) -> OnRefusal {
        self.on_refusal
    }

    fn apply(&mut self, connection: &Connection, blobs: &Blobs) -> Result<(), WriteError> {
        self.outcome = Some((self.work)(connection, blobs)?);
        Ok(())
    }

    fn committed(self: Box<Self>) {
        if let Some(outcome) = self.outcome {
            let _ = self.reply.send(Ok(outcome));
        }
    }

    fn refused(self: Box<Self>, reason: &str) {
        let _ = self.reply.send(Err(JournalError::Refused(reason.to_owned())));
    }
}
