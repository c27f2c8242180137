//! What one user has taken from a pool, and for which purposes. This part is pure: it has no lock and no clock.

use std::collections::BTreeMap;

use crate::config::show_size;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Share;

/// The purposes for which memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryPurpose {
    /// Bodies of requests while they are read, parsed and handled.
    Requests,
    /// Answers that their clients have not read.
    Answers,
    /// Events on their way to clients.
    Streams,
    /// Frames of sandboxes from when they are read until they have had their effect.
    Frames,
    /// Arguments of tool calls that are being worked on.
    Calls,
    /// Code of cells that wait or run.
    Cells,
    /// Displays of running cells, kept for their results.
    Displays,
    /// Frames to sandboxes that have not read them.
    Outgoing,
    /// Events that wait to be written.
    Events,
    /// Events of the journal that are read again, to restore the state that follows from them.
    Reads,
    /// Parts of snapshots on their way between sandboxes and the disk.
    Snapshots,
    /// Values with which sessions begin.
    Seeds,
    /// Descriptions of jobs that have not ended.
    Jobs,
    /// Conversations with models, and the models' answers.
    Conversations,
    /// Tools that clients lend, and the schemas that calls and answers are held against.
    Schemas,
}

impl MemoryPurpose {
    /// The name that the user sees in messages about a full pool.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Answers => "answers that are not read",
            Self::Streams => "event streams",
            Self::Frames => "what sandboxes send",
            Self::Calls => "tool calls",
            Self::Cells => "code of cells",
            Self::Displays => "displays of running cells",
            Self::Outgoing => "what sandboxes do not read",
            Self::Events => "events to be written",
            Self::Reads => "events that are read again",
            Self::Snapshots => "snapshots",
            Self::Seeds => "seeds",
            Self::Jobs => "descriptions of jobs",
            Self::Conversations => "conversations with models",
            Self::Schemas => "lent tools and schemas of answers",
        }
    }

    fn way_out(self) -> &'static str {
        match self {
            Self::Requests => "send fewer or smaller requests at once, and large data as files",
            Self::Answers => "read the answers that you asked for",
            Self::Streams => "read or close event streams",
            Self::Frames | Self::Calls | Self::Displays | Self::Outgoing => {
                "interrupt a cell that calls tools with much data or shows much"
            }
            Self::Cells => "interrupt cells that wait",
            Self::Events | Self::Reads => "try again later",
            Self::Snapshots => "wait until other snapshots are taken",
            Self::Seeds => "remove a session with a large seed",
            Self::Jobs => "wait for a job to end, or cancel one",
            Self::Conversations => "wait for an ask to end, or cancel one",
            Self::Schemas => "lend fewer tools, or ones with fewer patterns",
        }
    }
}

/// The error that a pool has no room for `wanted` more bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct NoRoom {
    pub wanted: u64,
    /// What the request has taken already, and cannot go on without.
    pub own: u64,
    pub used: u64,
    pub limit: u64,
    /// Whether this is the limit for all users together.
    pub of_all: bool,
    /// The purposes that fill the pool, the largest first; none of all users' pool, which would tell one user about
    /// another.
    pub by: Vec<(MemoryPurpose, u64)>,
}

impl NoRoom {
    /// The message: what fills the pool, and how much more was asked for.
    #[must_use]
    pub fn sentence(&self) -> String {
        if self.of_all {
            // How much of it is used is left out, because that is what others have.
            return format!(
                "all that this daemon has of memory for its users is used up: it has {}, and {} more would be needed",
                show_size(self.limit),
                show_size(self.wanted)
            );
        }
        let by: Vec<String> =
            self.by.iter().map(|(what, bytes)| format!("{} {}", what.name(), show_size(*bytes))).collect();
        let by = if by.is_empty() { String::new() } else { format!(" (by {})", by.join(", ")) };
        format!(
            "your part of the daemon's memory is used up: {} of {} are used{by}, and {} more would be needed",
            show_size(self.used),
            show_size(self.limit),
            show_size(self.wanted)
        )
    }

    /// The hint that goes with the message: what the user can do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        let way_out = match self.by.first() {
            _ if self.is_for_ever() => "ask for less",
            _ if self.of_all => "try again later",
            Some((largest, _)) => largest.way_out(),
            None => "ask for less",
        };
        format!("{way_out}, or have `{}` raised; `belljar quota` shows all of it", self.setting())
    }

    fn setting(&self) -> &'static str {
        if self.of_all { "machine.daemon_memory" } else { "quota.daemon_memory" }
    }

    /// The refusal of a part of a request, which has taken `own` bytes besides.
    #[must_use]
    pub fn beside(self, own: u64) -> Self {
        Self { own: self.own.saturating_add(own), ..self }
    }

    /// All that the request is known to need.
    fn needed(&self) -> u64 {
        self.own.saturating_add(self.wanted)
    }

    /// Whether the request is larger than the limit itself, so that waiting never helps.
    #[must_use]
    pub fn is_for_ever(&self) -> bool {
        self.needed() > self.limit
    }

    /// Why `what` can never be read, for which [`Self::is_for_ever`] holds.
    #[must_use]
    pub fn too_large(&self, what: &str) -> Problem {
        let (needed, limit) = (show_size(self.needed()), show_size(self.limit));
        let setting = self.setting();
        let message =
            format!("{what} takes at least {needed} of the daemon's memory, and `{setting}` is {limit}");
        Problem::new(Code::QuotaExceeded, message).hint(format!("have `{setting}` raised"))
    }
}

impl From<NoRoom> for Problem {
    fn from(no_room: NoRoom) -> Self {
        Self::new(Code::QuotaExceeded, no_room.sentence()).hint(no_room.hint())
    }
}

/// The bytes that one user has taken, by purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TakenBytes(BTreeMap<MemoryPurpose, u64>);

impl TakenBytes {
    pub fn sum(&self) -> u64 {
        self.0.values().copied().fold(0, u64::saturating_add)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `bytes` more fit below the limit.
    pub fn fits(&self, bytes: u64, limit: Option<u64>) -> Result<(), NoRoom> {
        let (used, Some(limit)) = (self.sum(), limit) else { return Ok(()) };
        if used.saturating_add(bytes) <= limit {
            return Ok(());
        }
        Err(NoRoom { wanted: bytes, own: 0, used, limit, of_all: false, by: self.by() })
    }

    pub fn add(&mut self, what: MemoryPurpose, bytes: u64) {
        if bytes > 0 {
            let taken = self.0.entry(what).or_default();
            *taken = taken.saturating_add(bytes);
        }
    }

    pub fn give_back(&mut self, what: MemoryPurpose, bytes: u64) {
        let Some(taken) = self.0.get_mut(&what) else { return };
        *taken = taken.saturating_sub(bytes);
        if *taken == 0 {
            self.0.remove(&what);
        }
    }

    fn by(&self) -> Vec<(MemoryPurpose, u64)> {
        let mut by: Vec<_> = self.0.iter().map(|(what, bytes)| (*what, *bytes)).collect();
        by.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        by
    }

    pub fn shares(&self) -> Vec<Share> {
        self.by().into_iter().map(|(what, amount)| Share { by: what.name().into(), amount }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_with_what_fills_the_pool() {
        let mut taken = TakenBytes::default();
        taken.add(MemoryPurpose::Streams, 10 << 20);
        taken.add(MemoryPurpose::Requests, 200 << 20);
        taken.fits(46 << 20, Some(256 << 20)).unwrap();
        let no_room = taken.fits(47 << 20, Some(256 << 20)).unwrap_err();
        assert!(!no_room.is_for_ever());
        let problem = Problem::from(no_room);
        assert_eq!(problem.code, Code::QuotaExceeded);
        assert_eq!(
            problem.message,
            "your part of the daemon's memory is used up: 210 MiB of 256 MiB are used (by requests 200 MiB, \
             event streams 10 MiB), and 47 MiB more would be needed"
        );
        assert_eq!(
            problem.hint.unwrap(),
            "send fewer or smaller requests at once, and large data as files, or have `quota.daemon_memory` \
             raised; `belljar quota` shows all of it"
        );
        assert!(taken.fits(300 << 20, Some(256 << 20)).unwrap_err().is_for_ever());
        let part = taken.fits(47 << 20, Some(256 << 20)).unwrap_err();
        assert!(!part.clone().beside(209 << 20).is_for_ever());
        let part = part.beside(200 << 20).beside(10 << 20);
        assert!(part.is_for_ever());
        assert_eq!(
            part.too_large("it").message,
            "it takes at least 257 MiB of the daemon's memory, and `quota.daemon_memory` is 256 MiB"
        );
        taken.fits(u64::MAX, None).unwrap();
    }

    #[test]
    fn what_is_given_back_is_gone_and_never_less_than_nothing() {
        let mut taken = TakenBytes::default();
        taken.add(MemoryPurpose::Calls, 5);
        taken.give_back(MemoryPurpose::Calls, 9);
        taken.give_back(MemoryPurpose::Cells, 9);
        taken.add(MemoryPurpose::Cells, 0);
        assert_eq!(taken, TakenBytes::default());
    }
}
