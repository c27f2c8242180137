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
        log.charge_to(owner, Arc::new(Generous), no_bound());
        log
    };
    let (flood, same_user, other_user) = (log(Principal::ANN), log(Principal::ANN), log(Principal::BOB));
    // The writer is held, as by a slow disk.
    let go = journal.hold_writer();
    let large = || EventBody::SandboxGone { reason: "x".repeat(1 << 20) };
    for _ in 0..=LANE_BYTES >> 20 {
        // Appending must not block, because the test has only this thread.
        flood.append(large());
    }
    assert!(flood.is_crowded() && same_user.is_crowded() && !other_user.is_crowded());
    other_user.wait_for_room().await;
    let waits = tokio::time::timeout(Duration::from_millis(50), same_user.wait_for_room()).await;
    assert!(waits.is_err(), "it waits");
    go.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(20), same_user.wait_for_room())
        .await
        .expect("there is room again");
    flood.flushed().await;
    assert!(!flood.is_crowded());
}

#[tokio::test]
async fn what_is_small_goes_before_what_is_large_of_others_and_each_log_keeps_its_order() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let (flood, other) = (journal.log(SessionId::fresh()).unwrap(), journal.log(SessionId::fresh()).unwrap());
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let append = |log: &EventLog, name: &'static str, bytes: usize| {
        let order = Arc::clone(&order);
        let body = EventBody::SandboxGone { reason: "x".repeat(bytes) };
        log.append_then(body, None, move || order.lock().push(name));
    };
    let go = journal.hold_writer();
    append(&flood, "large 1", 1 << 20);
    append(&flood, "large 2", 1 << 20);
    append(&flood, "small behind them", 1);
    append(&other, "somebody else's", 1);
    append(&other, "somebody else's large", 1 << 20);
    append(&other, "and after it", 1);
    go.send(()).unwrap();
    flood.flushed().await;
    other.flushed().await;
    // The callback on a commit runs a moment after readers see the event.
    for _ in 0..1000 {
        if order.lock().len() == 6 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let order = order.lock().clone();
    let position = |name: &str| order.iter().position(|found| *found == name).unwrap();
    assert_eq!(order.len(), 6, "{order:?}");
    assert_eq!(position("somebody else's"), 0, "{order:?}");
    assert!(
        position("large 1") < position("large 2") && position("large 2") < position("small behind them"),
        "{order:?}"
    );
    assert!(position("somebody else's large") < position("and after it"), "{order:?}");
}
