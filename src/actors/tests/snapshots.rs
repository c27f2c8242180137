mod asleep;
mod changes;
mod failed_wakes;
mod interrupted_wakes;

use super::asks::ONE_CELL;
use super::*;
use crate::actors::calls::send_now;
use crate::protocol::ask::ApprovalPolicy;
use crate::protocol::event::ToolOutcome;
use crate::protocol::frames::HostFrame;
use crate::protocol::result::Status;
use crate::protocol::saved_state::{Asleep, SnapshotList, SnapshotPolicy};
use crate::protocol::snapshot::SnapshotRecord;
use crate::sandbox::backend::fake::{FakeKernel, WHILE_LOADING, WHILE_PACKING};
use tokio::sync::oneshot;

/// Sessions are saved when they have rested for a moment.
const SOON: &str = "[snapshots]\nat_rest = \"1s\"\n";

impl Client {
    async fn take_snapshot(&self, name: Option<&str>) -> Result<SnapshotRecord, Problem> {
        let name = name.map(str::to_owned);
        let take = |reply_to| SessionMsg::TakeSnapshot { name, at: None, or_newest: false, reply_to };
        within("a snapshot is taken", try_call(&self.session, take)).await
    }

    async fn sleeps(&self) -> Result<Asleep, Problem> {
        within("it sleeps", try_call(&self.session, |reply_to| SessionMsg::Sleep { reply_to })).await
    }

    async fn snapshots(&self) -> SnapshotList {
        within("a list", call(&self.session, |reply_to| SessionMsg::Snapshots { reply_to })).await.unwrap()
    }

    async fn runs(&self, code: &str) -> Arc<ExecutionResult> {
        let ticket = self.run(code).await;
        self.result(ticket).await
    }

    /// Waits until so many sandboxes are gone.
    async fn has_gone(&self, times: usize) {
        let many = async {
            while self.times(is_gone) < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("sandboxes are gone", many).await;
    }

    /// Asks for a snapshot, before anything that is asked after this.
    fn asks_for_a_snapshot(&self) -> oneshot::Receiver<Result<SnapshotRecord, Problem>> {
        let (sender, taken) = oneshot::channel();
        let take =
            SessionMsg::TakeSnapshot { name: None, at: None, or_newest: false, reply_to: sender.into() };
        self.session.cast(take).unwrap();
        taken
    }

    fn times(&self, is_it: impl Fn(&EventBody) -> bool) -> usize {
        self.events().iter().filter(|event| is_it(event)).count()
    }
}

/// The cells that a kernel got, and the state that it loaded before them.
fn work_of(kernel: &FakeKernel) -> Vec<String> {
    let frames = kernel.received_frames().into_iter();
    let work = frames.filter_map(|frame| match frame {
        HostFrame::Restore { state_of, partial: true, .. } => {
            Some(format!("part of the state of {state_of}"))
        }
        HostFrame::Restore { state_of, .. } => Some(format!("state of {state_of}")),
        HostFrame::Cell { cell, code, .. } => Some(format!("{cell}: {code}")),
        HostFrame::Reset { .. } => Some("reset".to_owned()),
        _ => None,
    });
    work.collect()
}

async fn second_sandbox(home: &Home) {
    within("a second sandbox", async {
        while home.backend.started() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

fn is_taken(event: &EventBody) -> bool {
    matches!(event, EventBody::SnapshotTaken { .. })
}

fn is_gone(event: &EventBody) -> bool {
    matches!(event, EventBody::SandboxGone { .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_not_used_sleeps_and_wakes_with_its_variables() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let request = NewSession { idle_s: Some(1), ..NewSession::default() };
    let client = daemon.makes(OWNER, request).await.unwrap();
    client.runs("a").await;
    client.has_event(is_gone).await;
    let kinds: Vec<&str> = client.events().iter().map(EventBody::name).collect();
    let end = kinds.len();
    assert_eq!(kinds[end - 3..], ["snapshot_taken", "slept", "sandbox_gone"], "{kinds:?}");
    let result = client.runs("b").await;
    let note = result.state.note.clone().unwrap_or_default();
    assert!(
        note.starts_with("The session woke in a new sandbox: its variables are as after cell 1."),
        "{note}"
    );
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "2: b"]);
    let woken: Vec<EventBody> =
        client.events().into_iter().filter(|event| matches!(event, EventBody::Woken { .. })).collect();
    assert!(
        matches!(&woken[..], [EventBody::Woken { cell: 1, replays, .. }] if replays.is_empty()),
        "{woken:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_saved_once_when_it_rests_and_not_again_before_it_changes() {
    let home = Home::new();
    let daemon = home.daemon_with(&format!("{SETTINGS}{SOON}")).await;
    let client = daemon.makes_a_session().await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(client.times(is_taken), 0, "nothing is there to be saved");
    client.runs("a").await;
    client.has_event(is_taken).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(client.times(is_taken), 1);
    client.runs("b").await;
    client
        .has_event(|event| matches!(event, EventBody::SnapshotTaken { snapshot } if snapshot.cell == 2))
        .await;
    let list = client.snapshots().await;
    assert_eq!(list.snapshots.len(), 1, "the newest is enough: {list:?}");
    assert_eq!(list.wakes_from.as_deref(), Some(list.snapshots[0].id.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_session_is_not_thawed_to_be_saved() {
    let home = Home::new();
    let daemon = home.daemon_with(&format!("{SETTINGS}{SOON}")).await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.freeze().await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(client.times(is_taken), 0);
    assert_eq!(client.state().await, SessionState::Frozen);
    client.thaw().await;
    client.has_event(is_taken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_after_the_snapshot_run_again_with_recorded_answers_before_those_that_wait() {
    let home = Home::new();
    home.backend.plays("call", &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.take_snapshot(None).await.unwrap();
    assert_eq!(client.runs("call").await.stdout, "42");
    client.runs("b").await;
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    let result = client.runs("c").await;
    assert_eq!(result.cell, 4);
    let note = result.state.note.clone().unwrap_or_default();
    assert!(note.contains("as after cell 1") && note.contains("tools: cell 2, cell 3."), "{note}");
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "5: call", "6: b", "4: c"]);
    assert_eq!(client.results(5)[0].stdout, "42");
    assert_eq!(client.results(5)[0].state.note, None, "the note is for the cell that somebody waits for");
    assert_eq!(client.times(|event| matches!(event, EventBody::ReplayFinished)), 1);
    // The next loss finds them in their new places.
    home.backend.kernel().end();
    client.has_gone(2).await;
    client.runs("d").await;
    assert_eq!(
        work_of(&home.backend.kernel()),
        ["state of 1", "8: call", "9: b", "10: c", "7: d"],
        "what ran again runs again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_daemon_goes_on_with_the_cells_that_run_again() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.take_snapshot(None).await.unwrap();
    for code in ["b", "c", "d"] {
        client.runs(code).await;
    }
    home.backend.plays("c", &[Step::Wait]);
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    client.run("e").await;
    // Cell 5 waits; cells 6, 7 and 8 are those that run again.
    client.has_event(|event| matches!(event, EventBody::CellStarted { cell: 7, .. })).await;
    let kernel = home.backend.kernel();
    kernel.runs(7).await;
    daemon.dies().await;
    kernel.lets_go_on(7);
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    let result = client.only_result(5).await;
    assert!(result.state.note.unwrap_or_default().contains("as after cell 1"));
    assert_eq!(work_of(&kernel), ["state of 1", "6: b", "7: c", "8: d", "5: e"]);
    assert_eq!(client.times(|event| matches!(event, EventBody::Woken { .. })), 1, "it woke once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_dies_before_the_sandbox_has_woken_leaves_it_to_the_next_one() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::Wait]);
    home.backend.plays(WHILE_LOADING, &[]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    client.run("b").await;
    let loads = |frame: &HostFrame| matches!(frame, HostFrame::Restore { .. });
    client.has_event(|event| matches!(event, EventBody::SandboxStarting { .. })).await;
    second_sandbox(&home).await;
    home.backend.kernel().hears(loads).await;
    daemon.dies().await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    let result = client.only_result(2).await;
    assert_eq!(result.status, Status::Success);
    assert_eq!(work_of(&home.backend.kernel()), ["state of 1", "2: b"]);
    assert_eq!(client.times(|event| matches!(event, EventBody::Woken { .. })), 1);
    assert_eq!(home.backend.started(), 3, "nothing is known of the one that was not ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_cannot_be_loaded_costs_the_variables_and_is_not_tried_again() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::Die]);
    home.backend.plays(WHILE_LOADING, &[Step::Die]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    let result = client.runs("b").await;
    let note = result.state.note.clone().unwrap_or_default();
    assert!(note.contains("could not be loaded: the test wants it so."), "{note}");
    // What the load has left behind ends before anything else runs.
    let work = work_of(&home.backend.kernel());
    assert_eq!(work, ["state of 1", "reset", "part of the state of 1", "reset", "2: b"]);
    assert_eq!(client.times(|event| matches!(event, EventBody::WakeFailed { .. })), 1);
    home.backend.kernel().end();
    client.has_gone(2).await;
    client.runs("c").await;
    assert_eq!(work_of(&home.backend.kernel()), ["4: b", "3: c"], "of the cells only those since then");
    assert!(client.snapshots().await.wakes_from.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_snapshot_that_cannot_be_loaded_whole_the_rest_is_loaded() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::Die]);
    home.backend.plays(WHILE_LOADING, &[]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.sleeps().await.unwrap();
    client.runs("b").await;
    let work = work_of(&home.backend.kernel());
    assert_eq!(work, ["state of 1", "reset", "part of the state of 1", "2: b"]);
    assert_eq!(client.times(|event| matches!(event, EventBody::WakeFailed { .. })), 0);
    assert_eq!(client.times(|event| matches!(event, EventBody::Woken { .. })), 1);
}

/// The code of a variable can end the stream itself, and go on in the copy for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_packs_is_ended_with_its_stream() {
    let home = Home::new();
    home.backend.plays(WHILE_PACKING, &[]);
    home.backend.plays(WHILE_PACKING, &[Step::Die]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    client.take_snapshot(Some("whole")).await.unwrap();
    client.take_snapshot(Some("broken")).await.unwrap_err();
    let kernel = home.backend.kernel();
    let frames = kernel.received_frames().into_iter();
    let begun = frames.filter_map(|frame| match frame {
        HostFrame::Snapshot { request, .. } => Some(request),
        _ => None,
    });
    let begun: Vec<u64> = begun.collect();
    assert_eq!(begun.len(), 2);
    for begun in begun {
        let ends =
            |frame: &HostFrame| matches!(frame, HostFrame::EndSnapshot { request } if *request == begun);
        kernel.hears(ends).await;
    }
}

/// What the load has begun may go on beside the worker, whose kernel says that nothing has changed.
#[tokio::test(flavor = "multi_thread")]
async fn code_that_a_failed_load_ran_is_bound_by_its_rules_and_ended_before_any_other_runs() {
    let home = Home::new();
    home.model_says(ONE_CELL);
    home.backend.plays(WHILE_LOADING, &[Step::Die]);
    home.backend.plays(WHILE_RESETTING, &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Tools(vec!["answer".into()])).await;
    client.only_end().await;
    client.sleeps().await.unwrap();
    client.runs("b").await;
    let is_answered = |event: &EventBody| matches!(event, EventBody::ToolAnswered { .. });
    let is_refused =
        |event: &EventBody| matches!(event, EventBody::ToolAnswered { outcome: ToolOutcome::Failure(_), .. });
    client.has_event(is_answered).await;
    // One call for each load that failed: that of all, and that of what can be loaded.
    assert_eq!((client.times(is_answered), client.times(is_refused)), (2, 2));
    let frames = home.backend.kernel().received_frames().into_iter();
    let steps: Vec<&str> = frames
        .filter_map(|frame| match frame {
            HostFrame::Restore { .. } => Some("restore"),
            HostFrame::Reset { .. } => Some("reset"),
            HostFrame::Cell { .. } => Some("cell"),
            _ => None,
        })
        .collect();
    assert_eq!(steps, ["restore", "reset", "restore", "reset", "cell"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_cannot_be_saved_says_so_once_and_does_not_sleep_when_asked() {
    let home = Home::new();
    home.backend.plays(WHILE_PACKING, &[Step::Die]);
    let daemon = home.daemon_with(&format!("{SETTINGS}{SOON}")).await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let is_failed = |event: &EventBody| matches!(event, EventBody::SnapshotFailed { .. });
    client.has_event(is_failed).await;
    let problem = client.sleeps().await.unwrap_err();
    assert!(problem.message.contains("the test wants it so"), "{problem}");
    assert_eq!(client.state().await, SessionState::Idle);
    assert_eq!(client.times(is_failed), 1, "it said so already");
    assert_eq!(client.times(is_gone), 0);
    client.take_snapshot(Some("mine")).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_comes_keeps_a_session_from_falling_asleep() {
    let home = Home::new();
    home.backend.plays(WHILE_PACKING, &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let session = client.session.clone();
    let falls =
        tokio::spawn(async move { try_call(&session, |reply_to| SessionMsg::Sleep { reply_to }).await });
    let kernel = home.backend.kernel();
    kernel.hears(|frame| matches!(frame, HostFrame::Snapshot { urgent: true, .. })).await;
    assert_eq!(client.runs("b").await.status, Status::Success);
    let problem = within("an answer", falls).await.unwrap().unwrap_err();
    assert_eq!(problem.code, Code::Busy, "{problem}");
    kernel.hears(|frame| matches!(frame, HostFrame::EndSnapshot { .. })).await;
    assert_eq!((home.backend.started(), client.times(is_gone), client.times(is_taken)), (1, 0, 0));
}

/// Nor is the session put to sleep over it.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_comes_does_not_end_a_snapshot_that_a_client_wants() {
    let home = Home::new();
    home.backend.plays(WHILE_PACKING, &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let take = |reply_to| SessionMsg::TakeSnapshot {
        name: Some("mine".into()),
        at: None,
        or_newest: false,
        reply_to,
    };
    let taken = send_now(&client.session, take);
    let kernel = home.backend.kernel();
    kernel.hears(|frame| matches!(frame, HostFrame::Snapshot { .. })).await;
    let problem = client.sleeps().await.unwrap_err();
    assert_eq!(problem.code, Code::Busy, "{problem}");
    assert_eq!(client.runs("b").await.status, Status::Success);
    kernel.lets_go_on(0);
    let taken = within("the snapshot", taken).await.unwrap().unwrap();
    assert_eq!((taken.name.as_deref(), taken.cell), (Some("mine"), 1));
    assert_eq!(client.times(is_gone), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_makes_a_thing_of_the_past_of_a_snapshot() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let taken = client.take_snapshot(Some("mine")).await.unwrap();
    client.reset().await;
    let list = client.snapshots().await;
    assert_eq!((list.snapshots, list.wakes_from), (vec![taken], None), "it is kept, but no more");
    home.backend.kernel().end();
    client.has_event(is_gone).await;
    client.runs("b").await;
    assert_eq!(work_of(&home.backend.kernel()), ["2: b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_snapshots_are_bounded_taken_once_and_free_again() {
    let home = Home::new();
    let daemon = home.daemon_with(&format!("{SETTINGS}[snapshots]\nnames = 2\n")).await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let first = client.take_snapshot(Some("first")).await.unwrap();
    assert_eq!((first.cell, first.name.as_deref()), (1, Some("first")));
    assert_eq!(client.take_snapshot(Some("first")).await.unwrap_err().code, Code::SnapshotExists);
    assert_eq!(client.take_snapshot(Some("../x")).await.unwrap_err().code, Code::BadRequest);
    client.take_snapshot(Some("second")).await.unwrap();
    assert_eq!(client.take_snapshot(Some("third")).await.unwrap_err().code, Code::TooMany);
    let snapshot = "first".to_owned();
    let remove = |reply_to| SessionMsg::RemoveSnapshot { snapshot, reply_to };
    within("it is removed", try_call(&client.session, remove)).await.unwrap();
    client.take_snapshot(Some("third")).await.unwrap();
    let names: Vec<_> = client.snapshots().await.snapshots.into_iter().filter_map(|kept| kept.name).collect();
    assert_eq!(names, ["second", "third"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_not_saved_begins_anew() {
    let home = Home::new();
    let daemon = home.daemon_with(&format!("{SETTINGS}{SOON}")).await;
    let request =
        NewSession { idle_s: Some(3), snapshots: Some(SnapshotPolicy::Off), ..NewSession::default() };
    let client = daemon.makes(OWNER, request).await.unwrap();
    client.runs("a").await;
    assert_eq!(client.take_snapshot(None).await.unwrap_err().code, Code::Forbidden);
    assert_eq!(client.sleeps().await.unwrap_err().code, Code::Forbidden);
    client.has_event(is_gone).await;
    client.runs("b").await;
    assert_eq!(client.times(is_taken), 0);
    assert_eq!(work_of(&home.backend.kernel()), ["2: b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_snapshots_take_is_charged_over_daemons_and_given_back_with_the_session() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.runs("a").await;
    let used = |daemon: &Daemon| daemon.ledger.used(OWNER, crate::protocol::quota::Kind::Workspace);
    let before = used(&daemon);
    client.take_snapshot(Some("mine")).await.unwrap();
    let with_it = used(&daemon);
    assert!(with_it > before, "{with_it}");
    daemon.dies().await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    client.has_event(|event| matches!(event, EventBody::SandboxAttached)).await;
    assert!(used(&daemon) >= with_it - before, "the next daemon counts it");
    let remove = |reply_to| SessionMsg::Remove {
        remover: Some(crate::actors::session::removers::Remover::of_all(reply_to)),
    };
    within("it is removed", try_call(&client.session, remove)).await.unwrap();
    assert_eq!(used(&daemon), 0);
    assert!(std::fs::read_dir(home.path().join("snapshots")).unwrap().next().is_none(), "nothing is left");
}
