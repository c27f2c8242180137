//! Charges users for the answers that are kept for their idempotency keys, and administrators for the records of what
//! they did with jobs of others.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Gauge, Ledger, Permit};
use crate::security_controls;
use crate::store::{Journal, JournalError};

/// The name under which these bytes appear in a user's quota.
const NAME: &str = "answers kept for repeated requests, and records of administrators";
/// Keys expire without notice, so the kept bytes are counted anew after this time.
const COUNTED_FOR: Duration = Duration::from_secs(600);

#[derive(Clone)]
pub struct AnswerCharges {
    journal: Journal,
    ledger: Ledger,
    accounts: Arc<Mutex<HashMap<Principal, Account>>>,
}

struct Account {
    permit: Permit,
    counted: Instant,
}

impl AnswerCharges {
    /// Starts with the bytes that the journal already has.
    pub fn open(journal: Journal, ledger: Ledger) -> Result<Self, JournalError> {
        let stored_answers = journal.kept_for_requests(None)?;
        let account = |(owner, bytes)| {
            let permit = ledger.keep(owner, NAME, Amounts::of([(Kind::Journal, bytes)]));
            (owner, Account { permit, counted: Instant::now() })
        };
        let accounts = Arc::new(Mutex::new(stored_answers.into_iter().map(account).collect()));
        Ok(Self { journal, ledger, accounts })
    }

    /// Charges `bytes` before they are written.
    pub async fn charge(&self, owner: Principal, bytes: u64) -> Result<(), Problem> {
        let gauge = self.counted(owner).await;
        if security_controls::holds("answer_charge") {
            gauge.grow(Kind::Journal, bytes)?;
        }
        Ok(())
    }

    /// Charges `bytes` before they are written, even beyond the quota.
    pub async fn charge_anyway(&self, owner: Principal, bytes: u64) {
        self.counted(owner).await.add(Kind::Journal, bytes);
    }

    /// The user's charge, counted anew if that is due.
    async fn counted(&self, owner: Principal) -> Gauge {
        let (gauge, is_due) = {
            let mut accounts = self.accounts.lock();
            let account = accounts.entry(owner).or_insert_with(|| Account {
                permit: self.ledger.keep(owner, NAME, Amounts::default()),
                counted: Instant::now(),
            });
            let is_due = account.counted.elapsed() >= COUNTED_FOR;
            if is_due {
                account.counted = Instant::now();
            }
            (account.permit.gauge(), is_due)
        };
        if is_due {
            let journal = self.journal.clone();
            // Many keys take long to count, and others must not wait for that.
            let stored_answers =
                tokio::task::spawn_blocking(move || journal.kept_for_requests(Some(owner))).await;
            if let Ok(Ok(stored_answers)) = stored_answers {
                let _ = gauge.measure(Kind::Journal, stored_answers.iter().map(|(_, bytes)| bytes).sum());
            }
        }
        gauge
    }

    /// Ends the charge for all answers of a user, because they are deleted.
    pub fn forget(&self, owner: Principal) {
        let account = self.accounts.lock().remove(&owner);
        drop(account);
    }

    /// Refunds bytes that were not written or are deleted.
    pub fn refund(&self, owner: Principal, bytes: u64) {
        let accounts = self.accounts.lock();
        if let Some(account) = accounts.get(&owner) {
            account.permit.gauge().shrink(Kind::Journal, bytes);
        }
    }
}
