use std::sync::Arc;

use super::*;
use crate::store::account::{Account, Exceeded};
use crate::store::lane::LANE_BYTES;

struct Generous;

impl Account for Generous {
    fn open(&self, _: u64) {}

    fn charge(&self, _: u64) -> Result<(), Exceeded> {
        Ok(())
    }

    fn charge_anyway(&self, _: u64) {}

    fn refund(&self, _: u64) {}
}

#[tokio::test]
async fn a_user_who_has_too_much_in_the_queue_is_not_read_from() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = |owner| {
        let log = journal.log(SessionId::fresh()).unwrap();
        log.charge_to(owner, Arc::new(Generous));
        log
    };
    let (flood, same_user, other_user) = (log(1), log(1), log(2));
    // The disk takes its time.
    let go = hold_writer(&journal);
    let large = || EventBody::SandboxGone { reason: "x".repeat(1 << 20) };
    for _ in 0..=LANE_BYTES >> 20 {
        // None of these blocks this only thread.
        flood.append(large());
    }
    assert!(flood.is_crowded() && same_user.is_crowded() && !other_user.is_crowded());
    other_user.room().await;
    let waits = tokio::time::timeout(Duration::from_millis(50), same_user.room()).await;
    assert!(waits.is_err(), "it waits");
    go.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(20), same_user.room()).await.expect("there is room again");
    flood.flushed().await;
    assert!(!flood.is_crowded());
}
