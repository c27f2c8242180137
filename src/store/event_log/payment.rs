//! Charges a session's owner for disk and memory before the session writes anything.

use super::{Bill, Draft, EventLog, HEAD_BYTES, LogState};
use crate::memory::Pool;
use crate::protocol::event::EventBody;
use crate::protocol::ids::Seq;
use crate::protocol::principal::Principal;
use crate::security_controls;
use crate::store::account::{Account, Exceeded, RESERVE_FOR_ENDS_BYTES, ROW_BYTES};
use std::sync::Arc;
use tokio::sync::watch;

/// The payment for an event that is charged and not yet appended. Dropping it refunds the charge.
pub struct Payment {
    state: Arc<LogState>,
    bytes: u64,
}

impl Payment {
    /// The charged bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps the charge, because the event is appended.
    pub(super) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Payment {
    fn drop(&mut self) {
        self.state.bill.lock().refund(self.bytes);
    }
}

impl EventLog {
    /// Charges the log to its owner from now on, including the bytes already on the disk.
    pub fn charge_to(&self, owner: Principal, account: Arc<dyn Account>, memory: Pool) {
        let _ = self.state.lane.set(self.core.lane(owner));
        let _ = self.state.memory.set(memory);
        let mut bill = self.state.bill.lock();
        account.open(bill.bytes);
        bill.account = account;
    }

    /// The owner's share of the memory, if the log has an owner.
    pub fn memory(&self) -> Option<&Pool> {
        self.state.memory.get()
    }

    /// Whether the owner has more bytes waiting to be written than are allowed.
    pub fn is_crowded(&self) -> bool {
        self.state.lane.get().is_some_and(|lane| lane.is_full())
            && !self.state.inner.lock().abandoned
            && security_controls::holds("writer_lane")
    }

    /// Waits until the owner's backlog has room again, or the log is abandoned.
    pub async fn wait_for_room(&self) {
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

    /// Charges bytes that are about to be written outside the log, such as output. An error if that exceeds the quota.
    pub fn charge(&self, bytes: u64) -> Result<(), Exceeded> {
        if security_controls::holds("journal_charge") {
            self.state.bill.lock().charge(bytes)
        } else {
            self.state.bill.lock().charge_anyway(bytes);
            Ok(())
        }
    }

    /// Whether the quota has room for `bytes` now.
    pub fn has_room(&self, bytes: u64) -> Result<(), Exceeded> {
        self.charge(bytes)?;
        self.refund(bytes);
        Ok(())
    }

    /// Refunds bytes that are no longer on the disk or were never written.
    pub fn refund(&self, bytes: u64) {
        self.state.bill.lock().refund(bytes);
    }

    /// Whether the session may still write anything besides ends: less than half of its reserve is used, or the quota
    /// has room again.
    pub fn has_reserve(&self) -> Result<(), Exceeded> {
        let used = self.state.inner.lock().reserve_used;
        if used <= RESERVE_FOR_ENDS_BYTES { Ok(()) } else { self.charge(0) }
    }

    /// Charges an event before any work is done for it. The charge is refunded if the event is not appended.
    pub fn pay_for(&self, body: &EventBody) -> Result<Payment, Exceeded> {
        let bytes = serde_json::to_string(body).map_or(0, |json| json.len() as u64) + HEAD_BYTES + ROW_BYTES;
        self.charge(bytes)?;
        Ok(Payment { state: Arc::clone(&self.state), bytes })
    }

    /// Appends an event that the owner does not pay for, because another user has paid.
    pub fn append_paid_by_other(&self, body: EventBody) -> Seq {
        let paid = Payment { state: Arc::clone(&self.state), bytes: 0 };
        self.append_paid(Draft::of(body, None), paid)
    }

    /// Notifies the executor that something the sandbox sent exceeded the quota.
    pub fn tell_exceeded(&self, exceeded: Exceeded) {
        self.state.exceeded.send_replace(Some(exceeded));
    }

    /// A receiver that changes each time something from the sandbox exceeds the quota.
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
