//! Sandboxes that end before they have loaded a snapshot: nothing is lost, and whatever needs the session next tries again.

use super::*;
use crate::memory::MemoryPurpose;
use crate::protocol::frames::RefusedCode;
use crate::protocol::quota::Kind;
use crate::session::notices;

fn is_wake_failed(event: &EventBody) -> bool {
    matches!(event, EventBody::WakeFailed { .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_ends_over_a_snapshot_costs_no_variables() {
    let home = Home::new();
    for _ in 0..3 {
        home.backend.plays(WHILE_LOADING, &[Step::EndSandbox]);
    }
    home.backend.plays(WHILE_LOADING, &[]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    for (code, names_other_ways) in [("b", false), ("c", false), ("d", true)] {
        let result = client.runs(code).await;
        assert_ne!(result.status, Status::Success, "{code}");
        let note = result.state.note.clone().unwrap_or_default();
        assert!(note.contains("the sandbox ended while it loaded its snapshot"), "{note}");
        assert_eq!(note.contains("belljar replay"), names_other_ways, "{note}");
    }
    assert_eq!(client.times(is_wake_failed), 0);
    let result = client.runs("e").await;
    assert_eq!(result.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "5: e"]);
    assert!(client.snapshots().await.wakes_from.is_some());
}

/// One variable cannot be loaded; the sandbox ends before it was tried how many others can be.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_ends_between_two_loads_costs_no_variables() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::Die]);
    home.backend.plays(WHILE_RESETTING, &[Step::EndSandbox]);
    home.backend.plays(WHILE_LOADING, &[]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    assert_ne!(client.runs("b").await.status, Status::Success);
    assert_eq!(client.times(is_wake_failed), 0);
    assert_eq!(client.runs("c").await.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "3: c"]);
}

/// One variable ends the process that loads it; the load in part finds out which one.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_ends_the_process_that_loads_it_is_loaded_in_part() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::Refuse(RefusedCode::NoProcess)]);
    home.backend.plays(WHILE_LOADING, &[]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    assert_eq!(client.runs("b").await.status, Status::Success);
    let work = work_of(&home.backend.kernel());
    assert_eq!(work, ["state of 1", "reset", "part of the state of 1", "2: b"]);
    assert_eq!(client.times(is_wake_failed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_over_the_part_as_well_costs_no_variables() {
    let home = Home::new();
    for _ in 0..2 {
        home.backend.plays(WHILE_LOADING, &[Step::Refuse(RefusedCode::NoProcess)]);
    }
    home.backend.plays(WHILE_LOADING, &[]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    assert_ne!(client.runs("b").await.status, Status::Success);
    assert_eq!(client.times(is_wake_failed), 0);
    assert_eq!(client.runs("c").await.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "3: c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_sandbox_that_ends_over_a_snapshot_is_told_so() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::EndSandbox]);
    home.backend.plays(WHILE_LOADING, &[]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    let problem = client.take_snapshot(None).await.unwrap_err();
    assert!(problem.message.contains("they are saved"), "{problem}");
    assert_eq!(client.take_snapshot(None).await.unwrap().cell, 1);
    assert_eq!(client.times(is_wake_failed), 0);
}

/// The reset is what a person does who gives the variables up.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_begins_without_the_snapshot_that_no_sandbox_has_loaded() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::EndSandbox]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    assert_ne!(client.runs("b").await.status, Status::Success);
    client.reset().await;
    assert_eq!(client.runs("c").await.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["3: c"]);
}

/// A client that sends many cells to a session that sleeps does not know which of them wakes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_full_while_a_session_wakes_costs_no_variables() {
    let home = Home::new();
    let daemon = home.daemon_with(&format!("{SETTINGS}[cells]\nqueue = 2\n")).await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.take_snapshot(None).await.unwrap();
    client.runs("b").await;
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    // The sandbox waits until both cells do.
    let others = home.restores.acquire_many(u32::try_from(RESTORES_AT_ONCE).unwrap()).await.unwrap();
    let (first, second) = (client.run("c").await, client.run("d").await);
    drop(others);
    assert_eq!(client.result(first).await.status, Status::Success);
    assert_eq!(client.result(second).await.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "5: b", "3: c", "4: d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_that_could_not_run_again_for_want_of_memory_do_so_when_there_is_some() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let saved = client.take_snapshot(None).await.unwrap();
    client.runs("b").await;
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    let all_memory = daemon.ledger.memory(OWNER).charge_anyway(MemoryPurpose::Cells, u64::MAX / 4);
    // However often that is tried.
    for code in ["c", "d", "e", "f"] {
        let result = client.runs(code).await;
        assert_ne!(result.status, Status::Success, "{code}");
        let note = result.state.note.clone().unwrap_or_default();
        assert!(note.contains("nothing is lost, and the next cell tries again"), "{note}");
        assert!(note.contains(&format!("`belljar branch --snapshot {}` makes", saved.id)), "{note}");
        assert!(
            note.contains("`belljar reset` begins without any, also without those that are saved"),
            "{note}"
        );
    }
    assert!(client.take_snapshot(None).await.is_err(), "it waits for the same cells");
    drop(all_memory);
    assert_eq!(client.runs("g").await.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "8: b", "7: g"]);
}

/// Neither the event nor the record alone is too large for the limit, but both are in memory while the cell is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_needs_more_memory_than_there_can_be_does_not_keep_its_session_asleep() {
    let large = format!("large{}", " ".repeat(3 << 20));
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.take_snapshot(None).await.unwrap();
    for code in ["b", &large, "c"] {
        client.runs(code).await;
    }
    let limit = [(Kind::DaemonMemory, 16 << 20)].into_iter().collect();
    daemon.ledger.set_limits(OWNER, limit);
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    let result = client.runs("d").await;
    assert_eq!(result.status, Status::Success);
    let note = result.state.note.clone().unwrap_or_default();
    for part in [
        "as after cell 1.",
        "what they made is missing: cell 3, cell 4; what cell 3 needs to run again takes at least 18 MiB",
        "`quota.daemon_memory` is 16 MiB",
        notices::REPLAY_CUT,
    ] {
        assert!(note.contains(part), "{note}");
    }
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "6: b", "5: d"]);
    // The cells after them ran without them, and so do the next sandboxes.
    home.backend.kernel().end();
    client.has_gone(2).await;
    assert_eq!(client.runs("e").await.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "8: b", "9: d", "7: e"]);
}

/// Otherwise sessions that wake together would read their journals together.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_wakes_waits_for_its_turn_to_read_its_journal() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.take_snapshot(None).await.unwrap();
    client.runs("b").await;
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    let others = home.restores.acquire_many(u32::try_from(RESTORES_AT_ONCE).unwrap()).await.unwrap();
    let starts = |event: &&EventBody| matches!(event, EventBody::SandboxStarting { .. });
    let before = client.events().iter().filter(starts).count();
    let ticket = client.run("c").await;
    within("a sandbox is to start", async {
        while client.events().iter().filter(starts).count() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(client.state().await, SessionState::Starting);
    assert_eq!(home.backend.started(), 1);
    drop(others);
    assert_eq!(client.result(ticket).await.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "4: b", "3: c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_starts_nothing_for_a_while_costs_no_variables() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    home.backend.let_starts_fail(true);
    for code in ["b", "c", "d", "e"] {
        assert_ne!(client.runs(code).await.status, Status::Success);
    }
    home.backend.let_starts_fail(false);
    assert_eq!(client.runs("f").await.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "6: f"]);
    assert_eq!(client.times(is_wake_failed), 0);
}
