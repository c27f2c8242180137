//! Requests that a session sleep: what the session does then, and what it answers.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_does_not_fall_asleep_over_a_snapshot_that_a_client_wants() {
    let home = Home::new();
    home.backend.plays(WHILE_PACKING, &[]);
    home.backend.plays(WHILE_PACKING, &[Step::Wait]);
    let daemon = home.daemon().await;
    let request = NewSession { idle_s: Some(2), ..NewSession::default() };
    let client = daemon.makes(OWNER, request).await.unwrap();
    client.runs("a").await;
    // Nothing is left to be saved, so the session could sleep at once.
    client.take_snapshot(None).await.unwrap();
    let taken = client.asks_for_a_snapshot();
    let kernel = home.backend.kernel();
    let packs = |kernel: &FakeKernel| {
        let frames = kernel.received_frames().into_iter();
        frames.filter(|frame| matches!(frame, HostFrame::Snapshot { .. })).count()
    };
    within("the second one is being taken", async {
        while packs(&kernel) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(client.sleeps().await.unwrap_err().code, Code::Busy);
    tokio::time::sleep(Duration::from_millis(4500)).await;
    assert_eq!(client.times(is_gone), 0);
    kernel.lets_go_on(0);
    within("the snapshot", taken).await.unwrap().unwrap();
    client.has_event(is_gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_lost_its_sandbox_sleeps_and_says_what_is_not_saved() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let asleep = client.sleeps().await.unwrap();
    assert_eq!((asleep.cell, asleep.unsaved, asleep.snapshot.is_some()), (1, false, true), "{asleep:?}");
    client.runs("b").await;
    home.backend.kernel().end();
    client.has_gone(2).await;
    let asleep = client.sleeps().await.unwrap();
    assert_eq!((asleep.cell, asleep.unsaved), (1, true), "{asleep:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_ends_while_it_is_saved_is_not_taken_for_one_that_sleeps() {
    let home = Home::new();
    home.backend.plays(WHILE_PACKING, &[Step::EndSandbox]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let problem = client.sleeps().await.unwrap_err();
    assert!(matches!(problem.code, Code::SandboxFailed | Code::SnapshotFailed), "{problem}");
    client.has_event(is_gone).await;
    assert_eq!(client.times(|event| matches!(event, EventBody::Slept { .. })), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_sessions_do_not_wake_none_is_put_to_sleep() {
    let home = Home::new();
    let daemon = home.daemon_with(&format!("{SETTINGS}[snapshots]\nwake = false\n")).await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let problem = client.sleeps().await.unwrap_err();
    assert_eq!(problem.code, Code::Forbidden, "{problem}");
    assert!(problem.message.contains("snapshots.wake"), "{problem}");
    assert_eq!(client.state().await, SessionState::Idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_slept_without_variables_is_not_told_that_some_are_gone() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    for code in ["a", "b"] {
        client.sleeps().await.unwrap();
        let note = client.runs(code).await.state.note.clone().unwrap_or_default();
        assert!(!note.contains("are gone"), "{note}");
        client.reset().await;
    }
}
