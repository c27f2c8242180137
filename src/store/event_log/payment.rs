//! What a session writes is paid for by its owner, on the disk and in memory, before it is written.

use super::{Bill, EventLog, HEAD_BYTES, LogState};
use crate::controls;
use crate::memory::Pool;
use crate::protocol::event::EventBody;
use crate::store::account::{Account, Exceeded, ROW_BYTES, SESSION_RESERVE_BYTES};
use std::sync::Arc;
use tokio::sync::watch;

/// An event that is charged and not appended yet.
pub struct Paid {
    state: Arc<LogState>,
    bytes: u64,
}

impl Paid {
    /// What was charged.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The event is appended: what was charged for it stays charged.
    pub(super) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        self.state.bill.lock().refund(self.bytes);
    }
}

impl EventLog {
    /// From here on whatever is written is charged to the account of its owner, and what is there already.
    pub fn charge_to(&self, owner: u32, account: Arc<dyn Account>, memory: Pool) {
        let _ = self.state.lane.set(self.core.lane(owner));
        let _ = self.state.memory.set(memory);
        let mut bill = self.state.bill.lock();
        account.open(bill.bytes);
        bill.account = account;
    }

    /// Its owner's part of the memory, if it has an owner.
    #[must_use]
    pub fn memory(&self) -> Option<&Pool> {
        self.state.memory.get()
    }

    /// Whether more of its owner waits to be written than may.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.state.lane.get().is_some_and(|lane| lane.is_full())
            && !self.state.inner.lock().abandoned
            && controls::holds("writer_lane")
    }

    /// Waits until less of its owner waits to be written, or never will be.
    pub async fn room(&self) {
        let Some(lane) = self.state.lane.get() else { return };
        let (mut waiting, mut newest) = (lane.watch(), self.watch());
        while self.is_crowded() {
            let changed = tokio::select! {
                changed = waiting.changed() => changed.is_ok(),
                changed = newest.changed() => changed.is_ok(),
            };
            if !changed {
                return;
            }
        }
    }

    /// For bytes that are about to be written beside the log, such as output. An error if it is too much.
    pub fn charge(&self, bytes: u64) -> Result<(), Exceeded> {
        if controls::holds("journal_charge") {
            self.state.bill.lock().charge(bytes)
        } else {
            self.state.bill.lock().charge_anyway(bytes);
            Ok(())
        }
    }

    /// Whether so many bytes could be written now.
    pub fn has_room(&self, bytes: u64) -> Result<(), Exceeded> {
        self.charge(bytes)?;
        self.refund(bytes);
        Ok(())
    }

    /// For bytes that are not on the disk any more, or never came to be.
    pub fn refund(&self, bytes: u64) {
        self.state.bill.lock().refund(bytes);
    }

    /// Whether anything but an end can still be written of this session.
    pub fn has_reserve(&self) -> Result<(), Exceeded> {
        let used = self.state.inner.lock().reserve_used;
        if used <= SESSION_RESERVE_BYTES / 2 { Ok(()) } else { self.charge(0) }
    }

    /// Charges an event before anything is done for it. What is paid and not appended is given back.
    pub fn pay_for(&self, body: &EventBody) -> Result<Paid, Exceeded> {
        let bytes = serde_json::to_string(body).map_or(0, |json| json.len() as u64) + HEAD_BYTES + ROW_BYTES;
        self.charge(bytes)?;
        Ok(Paid { state: Arc::clone(&self.state), bytes })
    }

    /// Something that the sandbox sent was too much: whoever watches over it hears of that.
    pub fn tell_exceeded(&self, exceeded: Exceeded) {
        self.state.exceeded.send_replace(Some(exceeded));
    }

    /// Marks each time that something of the sandbox's was too much.
    #[must_use]
    pub fn watch_exceeded(&self) -> watch::Receiver<Option<Exceeded>> {
        self.state.exceeded.subscribe()
    }
}

impl Bill {
    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), Exceeded> {
        self.account.charge(bytes)?;
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }

    pub(super) fn charge_anyway(&mut self, bytes: u64) {
        self.account.charge_anyway(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) fn refund(&mut self, bytes: u64) {
        self.account.refund(bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
