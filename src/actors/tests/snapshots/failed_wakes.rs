//! What a session woke without is never hidden: not from whoever branches or exports it first, nor by what comes before the
//! next cell.

use super::*;
use crate::actors::branches::import::ImportOptions;
use crate::protocol::ids::SessionName;

/// A session that sleeps with the variables of one cell.
async fn asleep(daemon: &Daemon) -> Client {
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    client
}

/// The next sandbox cannot load its snapshot, neither whole nor in part; all later ones can.
fn next_load_fails(home: &Home) {
    for steps in [&[Step::Die][..], &[Step::Die], &[]] {
        home.backend.plays(WHILE_LOADING, steps);
    }
}

/// The next load lacks a variable, and no later one does.
fn next_load_lacks(home: &Home, name: &'static str) {
    for steps in [&[Step::Lacks(name)][..], &[]] {
        home.backend.plays(WHILE_LOADING, steps);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_could_not_load_its_variables_is_neither_branched_nor_exported_before_that_is_told() {
    let home = Home::new();
    next_load_fails(&home);
    let daemon = home.daemon().await;
    let client = asleep(&daemon).await;
    for problem in [
        daemon.branches(&client).await.unwrap_err(),
        daemon.exports(&client).await.map(drop).unwrap_err(),
        client.take_snapshot(Some("mine")).await.unwrap_err(),
    ] {
        assert_eq!(problem.code, Code::SnapshotFailed, "{problem}");
        assert!(problem.message.ends_with("could not be loaded: the test wants it so"), "{problem}");
    }
    assert_eq!(client.snapshots().await.snapshots.len(), 1, "that snapshot is still there");
    client.sleeps().await.unwrap();
    daemon.branches(&client).await.expect_err("the sandbox after that has nothing, either");
    let note = client.runs("b").await.state.note.clone().unwrap_or_default();
    assert!(note.contains("could not be loaded: the test wants it so."), "{note}");
    assert_eq!(daemon.branches(&client).await.unwrap().cell, 2, "from here on it goes on without them");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_session_did_not_wake_is_told_after_another_sleep_also_by_the_next_daemon() {
    for has_another_daemon in [false, true] {
        let home = Home::new();
        next_load_fails(&home);
        let mut daemon = home.daemon().await;
        let mut client = asleep(&daemon).await;
        daemon.branches(&client).await.unwrap_err();
        client.sleeps().await.unwrap();
        if has_another_daemon {
            daemon.dies().await;
            daemon = home.daemon().await;
            client = daemon.client(client.id);
            daemon.branches(&client).await.unwrap_err();
        }
        let note = client.runs("b").await.state.note.clone().unwrap_or_default();
        assert!(note.contains("could not be loaded: the test wants it so."), "{note}");
        assert_eq!(client.runs("c").await.state.note, None, "once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_woke_without_is_told_by_what_comes_of_it() {
    for is_branch in [true, false] {
        let home = Home::new();
        next_load_lacks(&home, "k");
        let daemon = home.daemon().await;
        let client = asleep(&daemon).await;
        let id = if is_branch {
            daemon.branches(&client).await.unwrap().sessions[0].id
        } else {
            let archive = daemon.archive(&client).await;
            let name = SessionName::parse("moved").ok();
            let options = ImportOptions { name, ..ImportOptions::default() };
            daemon.imports(&archive, options).await.unwrap().session.id
        };
        for client in [daemon.client(id), client] {
            let note = client.runs("b").await.state.note.clone().unwrap_or_default();
            assert!(note.contains("Missing: `k` (as the test wants it)."), "{note}");
            assert!(client.take_snapshot(None).await.unwrap().missing.is_empty(), "that is told once");
        }
    }
}
