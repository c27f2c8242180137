//! What the journal keeps under a user id whose account is another one by now.

use rusqlite::{Connection, params};

use super::blobs::Blobs;
use super::durability::{Durability, OnRefusal};
use super::error::JournalError;
use super::journal::Journal;
use super::rows::{all, uuid};
use super::sessions::ROWS_DELETED;
use crate::protocol::ids::SessionId;
use crate::protocol::principal::Principal;

impl Journal {
    /// Deletes what is kept of an owner without sessions and jobs: removed sessions, the tokens that the owner has spent,
    /// batches whose jobs are forgotten, and keys with their answers. The next account of the same id would see the
    /// batches and get the answers, and would have less of its quotas.
    pub async fn forget_owner(&self, owner: Principal) -> Result<(), JournalError> {
        let query = "SELECT id FROM sessions WHERE owner = ?1 AND removed_at IS NOT NULL";
        let removed = self.core.read(|file, _| all(file, query, [owner], |row| uuid(row, 0)))?;
        for id in removed {
            self.forget(SessionId(id)).await?;
        }
        // What the events of those sessions have cost was noted when they were deleted. The machine's quota counts it still.
        let give_away = move |file: &Connection, _: &Blobs| {
            let query = "INSERT INTO spent_tokens (owner, day, tokens)
                SELECT ?2, day, tokens FROM spent_tokens WHERE owner = ?1
                ON CONFLICT (owner, day) DO UPDATE SET tokens = tokens + excluded.tokens";
            file.execute(query, params![owner, Principal::FORMER_ACCOUNTS])?;
            Ok(file.execute("DELETE FROM spent_tokens WHERE owner = ?1", [owner])?)
        };
        self.core.queue.write(Durability::Full, OnRefusal::Fail, give_away).await?;
        let query = "DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE owner = ?1
            AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.batch = batches.id) LIMIT ?2)";
        let some = || self.core.execute(Durability::Full, OnRefusal::Fail, query, (owner, ROWS_DELETED));
        while some().await? > 0 {}
        self.forget_keys(owner).await
    }
}
