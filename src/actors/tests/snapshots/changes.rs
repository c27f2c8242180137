//! What happens to snapshots while a session changes: resets, freezes, sandboxes that end, removals.

use super::*;
use crate::memory::MemoryPurpose;
use crate::protocol::api::{Checkpointing, ReplayReport};
use crate::store::snapshots::WRITING_BYTES;
use tokio::task::JoinHandle;

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_while_variables_are_loaded_holds() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    let refused = client.run("b").await;
    second_sandbox(&home).await;
    let kernel = home.backend.kernel();
    kernel.hears(|frame| matches!(frame, HostFrame::Restore { .. })).await;
    client.reset().await;
    assert_eq!(client.result(refused).await.status, Status::Interrupted);
    let ticket = client.run("c").await;
    kernel.lets_go_on(0);
    let result = client.result(ticket).await;
    assert_eq!((result.status, result.state.note.clone()), (Status::Success, None));
    assert_eq!(work_of(&kernel), ["state of 1", "reset", "3: c"]);
    assert_eq!(client.times(|event| matches!(event, EventBody::Reset)), 2, "the next daemon would reset it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_waits_for_cells_of_before_is_answered_after_a_reset() {
    let home = Home::new();
    home.backend.plays("b", &[]);
    home.backend.plays("b", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.take_snapshot(None).await.unwrap();
    client.runs("b").await;
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    client.run("c").await;
    client.has_event(|event| matches!(event, EventBody::CellStarted { cell: 4, .. })).await;
    let taken = client.asks_for_a_snapshot();
    client.reset().await;
    let record = within("an answer", taken).await.unwrap().unwrap();
    assert_eq!(record.cell, 0, "it is of after the reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_ends_the_snapshots_that_are_being_taken() {
    let home = Home::new();
    home.backend.plays(WHILE_PACKING, &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let taken = client.asks_for_a_snapshot();
    home.backend.kernel().hears(|frame| matches!(frame, HostFrame::Snapshot { .. })).await;
    client.freeze().await;
    let problem = within("an answer", taken).await.unwrap().unwrap_err();
    assert!(problem.code == Code::Busy && problem.message.contains("frozen"), "{problem}");
    assert_eq!(client.state().await, SessionState::Frozen);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_newest_snapshot_is_removed_is_saved_again() {
    let home = Home::new();
    let daemon = home.daemon_with(&format!("{SETTINGS}{SOON}")).await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.has_event(is_taken).await;
    let snapshot = client.snapshots().await.wakes_from.expect("it is saved");
    let remove = |reply_to| SessionMsg::RemoveSnapshot { snapshot, reply_to };
    within("it is removed", try_call(&client.session, remove)).await.unwrap();
    within("it is saved again", async {
        while client.times(is_taken) < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_was_saved_yet_all_cells_run_again_with_recorded_answers() {
    let home = Home::new();
    home.backend.plays("call", &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    assert_eq!(client.runs("call").await.stdout, "42");
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    let result = client.runs("c").await;
    let note = result.state.note.clone().unwrap_or_default();
    assert!(note.starts_with("The sandbox is a new one"), "{note}");
    assert!(note.contains("answers of tools: cell 1, cell 2."), "{note}");
    assert_eq!(work_of(&home.backend.kernel()), ["4: a", "5: call", "3: c"]);
    assert_eq!(client.results(5)[0].stdout, "42");
    assert_eq!(client.times(|event| matches!(event, EventBody::ReplayFinished)), 1);
    // The next loss finds them in their new places.
    home.backend.kernel().end();
    client.has_gone(2).await;
    client.runs("d").await;
    assert_eq!(work_of(&home.backend.kernel()), ["7: a", "8: call", "9: c", "6: d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_while_cells_are_to_run_again_holds() {
    let home = Home::new();
    home.backend.plays("a", &[]);
    home.backend.plays("a", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    let refused = client.run("b").await;
    second_sandbox(&home).await;
    home.backend.kernel().runs(3).await;
    client.reset().await;
    assert_eq!(client.result(refused).await.status, Status::Interrupted);
    assert_eq!(client.runs("c").await.status, Status::Success);
    home.backend.kernel().end();
    client.has_gone(2).await;
    client.runs("d").await;
    assert_eq!(work_of(&home.backend.kernel()), ["6: c", "5: d"], "nothing of before the reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_ends_otherwise_when_it_runs_again_is_told_to_who_waits() {
    let home = Home::new();
    home.backend.plays("b", &[]);
    home.backend.plays("b", &[Step::Die]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.take_snapshot(None).await.unwrap();
    assert_eq!(client.runs("b").await.status, Status::Success);
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    let note = client.runs("c").await.state.note.clone().unwrap_or_default();
    for part in ["as after cell 1", "so variables may differ: cell 2.", "broken off"] {
        assert!(note.contains(part), "{note}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_the_disk_is_charged_while_a_snapshot_is_taken() {
    let home = Home::new();
    home.backend.plays(WHILE_PACKING, &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let taken = client.asks_for_a_snapshot();
    let kernel = home.backend.kernel();
    kernel.hears(|frame| matches!(frame, HostFrame::Snapshot { .. })).await;
    let charged = || {
        let shares = daemon.ledger.usage(OWNER).into_iter().flat_map(|quota| quota.by);
        let of_snapshots = shares.filter(|share| share.by == MemoryPurpose::Snapshots.name());
        of_snapshots.map(|share| share.amount).sum::<u64>()
    };
    assert!(charged() > WRITING_BYTES, "the records that come in are charged beside it: {}", charged());
    kernel.lets_go_on(0);
    within("the snapshot", taken).await.unwrap().unwrap();
    within("it is given back", async {
        while charged() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_snapshot_does_for_a_branch_only_if_a_fresh_one_would_be_the_same() {
    for (checkpointing, taken) in [(Checkpointing::Every, 1), (Checkpointing::Off, 2)] {
        let home = Home::new();
        let daemon = home.daemon().await;
        let request = NewSession { checkpointing: Some(checkpointing), ..NewSession::default() };
        let client = daemon.makes(OWNER, request).await.unwrap();
        client.runs("a").await;
        client.take_snapshot(None).await.unwrap();
        let take = |reply_to| SessionMsg::TakeSnapshot { name: None, at: None, or_newest: true, reply_to };
        within("a snapshot", try_call(&client.session, take)).await.unwrap();
        assert_eq!(client.times(is_taken), taken, "{checkpointing:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_has_what_an_ask_gave_after_the_newest_snapshot() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.take_snapshot(None).await.unwrap();
    let values = [("data".to_owned(), json!(1))].into_iter().collect();
    client.session.cast(SessionMsg::Seed { values, anew: true }).unwrap();
    let take = |reply_to| SessionMsg::TakeSnapshot { name: None, at: None, or_newest: true, reply_to };
    within("a snapshot", try_call(&client.session, take)).await.unwrap();
    assert_eq!(client.times(is_taken), 2);
}

/// It may have made the call when the cells first ran.
#[tokio::test(flavor = "multi_thread")]
async fn what_cells_left_behind_calls_no_tool_while_they_run_again() {
    let home = Home::new();
    home.backend.plays("a", &[]);
    home.backend.plays("a", &[Step::Wait]);
    home.backend.plays(WHILE_RESETTING, &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    client.run("b").await;
    second_sandbox(&home).await;
    home.backend.kernel().runs(3).await;
    client.reset().await;
    let is_refused = |event: &EventBody| {
        matches!(event, EventBody::ToolAnswered { outcome: ToolOutcome::Failure(failure), .. }
            if failure.code == "replay_differs")
    };
    client.has_event(is_refused).await;
}

/// Its client may learn late that a reset has ended it.
#[tokio::test(flavor = "multi_thread")]
async fn the_late_end_of_a_replay_does_not_break_off_a_waking() {
    let home = Home::new();
    home.backend.plays("a", &[]);
    home.backend.plays("a", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let prepare = |reply_to| SessionMsg::PrepareReplay { reply_to };
    let number = within("a replay is prepared", try_call(&client.session, prepare)).await.unwrap();
    client.reset().await;
    client.runs("a").await;
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    let ticket = client.run("b").await;
    second_sandbox(&home).await;
    let kernel = home.backend.kernel();
    kernel.runs(3).await;
    let ended = |reply_to| SessionMsg::ReplayEnded { number, finished: false, reply_to };
    within("an answer", try_call(&client.session, ended)).await.unwrap();
    kernel.lets_go_on(3);
    let note = client.result(ticket).await.state.note.clone().unwrap_or_default();
    assert!(note.contains("cell 1") && !note.contains("broken off"), "{note}");
    assert_eq!(client.times(|event| matches!(event, EventBody::ReplayFinished)), 1);
}

/// No cell comes after it that would say that nothing runs again.
#[tokio::test(flavor = "multi_thread")]
async fn what_cells_left_behind_calls_tools_again_after_a_replay_that_was_given_up() {
    let home = Home::new();
    home.backend.plays("a", &[]);
    home.backend.plays("a", &[Step::Wait]);
    home.backend.plays(WHILE_RESETTING, &[]);
    home.backend.plays(WHILE_RESETTING, &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let replaying = client.begins_a_replay();
    let kernel = home.backend.kernel();
    kernel.runs(2).await;
    replaying.abort();
    assert!(replaying.await.is_err(), "it was given up");
    kernel.lets_go_on(2);
    client.only_result(2).await;
    client.reset().await;
    client.has_event(is_made).await;
}

/// The next daemon does not go on with the replay.
#[tokio::test(flavor = "multi_thread")]
async fn what_cells_left_behind_calls_tools_again_after_a_replay_that_ended_with_its_daemon() {
    let home = Home::new();
    home.backend.plays("a", &[]);
    home.backend.plays("a", &[Step::Wait]);
    home.backend.plays(WHILE_RESETTING, &[]);
    home.backend.plays(WHILE_RESETTING, &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let replaying = client.begins_a_replay();
    let kernel = home.backend.kernel();
    kernel.runs(2).await;
    daemon.dies().await;
    replaying.abort();
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    client.has_event(|event| matches!(event, EventBody::SandboxAttached)).await;
    kernel.lets_go_on(2);
    client.only_result(2).await;
    client.reset().await;
    client.has_event(is_made).await;
}

/// No cell comes after the reset that would say that nothing runs again.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_a_reset_of_a_session_that_woke_calls_tools() {
    let home = Home::new();
    home.backend.plays("a", &[]);
    home.backend.plays("a", &[Step::Wait]);
    home.backend.plays(WHILE_RESETTING, &[]);
    home.backend.plays(WHILE_RESETTING, &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    client.run("b").await;
    second_sandbox(&home).await;
    home.backend.kernel().runs(3).await;
    client.reset().await;
    client.reset().await;
    client.has_event(is_made).await;
}

impl Client {
    fn begins_a_replay(&self) -> JoinHandle<Result<ReplayReport, Problem>> {
        let (session, log) = (self.session.clone(), self.journal.log(self.id).unwrap());
        tokio::spawn(async move { crate::actors::replay::replay(&session, &log).await })
    }
}

fn is_made(event: &EventBody) -> bool {
    matches!(event, EventBody::ToolAnswered { outcome: ToolOutcome::Value(value), .. } if *value == json!(42))
}
