//! Cells run again after the variables that their session began with, or not at all.

use super::*;
use crate::actors::replay;
use crate::protocol::api::{ReplayReport, SessionView};
use crate::protocol::frames::HostFrame;
use crate::protocol::result::Status;
use tokio::sync::oneshot;

/// A transfer that was given up ends on its own thread, and the next one begins at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_waits_for_the_writer_of_one_that_was_given_up() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let (on_disk, _room) = on_disk(&home, &daemon, SessionId::fresh());
    let first = on_disk.writer().unwrap();
    let next = on_disk.clone();
    let (begins, has_begun) = std::sync::mpsc::channel();
    let next = std::thread::spawn(move || {
        begins.send(()).unwrap();
        next.next_writer().map(drop)
    });
    has_begun.recv().unwrap();
    drop(first);
    next.join().unwrap().unwrap();
}

/// Makes a session that begins with saved variables.
pub(super) async fn makes_with_variables(
    home: &Home,
    daemon: &Daemon,
) -> (SessionId, Result<SessionView, Problem>) {
    let id = SessionId::fresh();
    let (on_disk, room) = on_disk(home, daemon, id);
    let snapshot = take(&on_disk, b"1").keep();
    let source = BaseSource::Archive { name: "lab".into(), cell: 1 };
    let base = SessionBase { source, snapshot: Some(snapshot), bound: BoundRules::default(), room };
    let create = |reply_to| SupervisorMsg::Create {
        id,
        owner: OWNER,
        request: Box::default(),
        nested: false,
        job: None,
        base: Some(Box::new(Beginning { variables: Some(base), ..Beginning::default() })),
        memory: None,
        reply_to,
    };
    (id, within("an answer", try_call(&daemon.supervisor, create)).await)
}

/// Such a session, in which one cell has run.
async fn has_run_a_cell(home: &Home, daemon: &Daemon) -> Client {
    let (id, made) = makes_with_variables(home, daemon).await;
    made.unwrap();
    let client = daemon.client(id);
    let ticket = client.run("a").await;
    client.result(ticket).await;
    client
}

impl Client {
    async fn loses_its_sandbox(&self, home: &Home) {
        home.backend.kernel().end();
        self.has_event(|event| matches!(event, EventBody::SandboxGone { .. })).await;
    }

    async fn replays(&self) -> Result<ReplayReport, Problem> {
        let log = self.journal.log(self.id).unwrap();
        within("it is replayed", replay::replay(&self.session, &log)).await
    }
}

/// What the present kernel got that changes its variables.
fn steps(home: &Home) -> Vec<&'static str> {
    let frames = home.backend.kernel().received_frames().into_iter();
    let steps = frames.filter_map(|frame| match frame {
        HostFrame::Restore { .. } => Some("restore"),
        HostFrame::Reset { .. } => Some("reset"),
        HostFrame::Cell { .. } => Some("cell"),
        _ => None,
    });
    steps.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_run_again_after_the_variables_that_their_session_began_with() {
    for has_sandbox in [true, false] {
        let home = Home::new();
        let daemon = home.daemon().await;
        let client = has_run_a_cell(&home, &daemon).await;
        if !has_sandbox {
            client.loses_its_sandbox(&home).await;
        }
        let report = client.replays().await.unwrap();
        assert_eq!((report.cells.len(), report.not_run.len()), (1, 0), "{report:?}");
        let all = ["restore", "cell", "reset", "restore", "cell"];
        assert_eq!(steps(&home), if has_sandbox { &all[..] } else { &all[3..] });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_whose_beginning_cannot_be_loaded_is_refused_and_runs_no_cell() {
    for has_sandbox in [true, false] {
        let home = Home::new();
        home.backend.plays(WHILE_LOADING, &[]);
        home.backend.plays(WHILE_LOADING, &[Step::Die]);
        let daemon = home.daemon().await;
        let client = has_run_a_cell(&home, &daemon).await;
        if !has_sandbox {
            client.loses_its_sandbox(&home).await;
        }
        let problem = client.replays().await.unwrap_err();
        assert_eq!(problem.code, Code::SnapshotFailed, "{problem}");
        assert!(problem.message.contains("began could not be loaded: the test wants it so"), "{problem}");
        // A new sandbox loads what it can before it is of no use.
        let reset = ["restore", "cell", "reset", "restore", "reset"];
        let started = ["restore", "reset", "restore", "reset"];
        assert_eq!(steps(&home), if has_sandbox { &reset[..] } else { &started[..] });
        // It is over: other cells run.
        let ticket = client.run("b").await;
        assert_eq!(client.result(ticket).await.status, Status::Success);
    }
}

/// Cells that run again need all of what they began with.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_whose_beginning_is_loaded_in_part_is_refused() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[]);
    home.backend.plays(WHILE_LOADING, &[Step::Die]);
    home.backend.plays(WHILE_LOADING, &[]);
    let daemon = home.daemon().await;
    let client = has_run_a_cell(&home, &daemon).await;
    client.loses_its_sandbox(&home).await;
    let problem = client.replays().await.unwrap_err();
    assert_eq!(problem.code, Code::SnapshotFailed, "{problem}");
    assert!(problem.message.contains("only a part of them can be"), "{problem}");
    assert_eq!(steps(&home), ["restore", "reset", "restore"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_comes_while_a_sandbox_starts_waits_for_what_it_begins_with() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[]);
    home.backend.plays(WHILE_LOADING, &[Step::Wait]);
    home.backend.plays(WHILE_LOADING, &[]);
    let daemon = home.daemon().await;
    let client = has_run_a_cell(&home, &daemon).await;
    client.loses_its_sandbox(&home).await;
    // Something else than a cell has the session wake.
    let (reply_to, taken) = oneshot::channel();
    let take = SessionMsg::TakeSnapshot { name: None, at: None, or_newest: false, reply_to: reply_to.into() };
    client.session.cast(take).unwrap();
    within("a second sandbox", async {
        while home.backend.started() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let kernel = home.backend.kernel();
    kernel.hears(|frame| matches!(frame, HostFrame::Restore { .. })).await;
    let begun = async {
        client.has_event(|event| matches!(event, EventBody::ReplayStarted { .. })).await;
        kernel.lets_go_on(0);
    };
    let (report, ()) = tokio::join!(client.replays(), begun);
    assert_eq!(report.unwrap().cells.len(), 1);
    let steps = steps(&home);
    // The reset may be sent twice: when the sandbox is ready, and when the journal has it.
    assert!(steps.ends_with(&["reset", "restore", "cell"]), "{steps:?}");
    assert_eq!(steps.iter().filter(|step| **step == "cell").count(), 1, "{steps:?}");
    let problem = within("an answer", taken).await.unwrap().unwrap_err();
    assert_eq!(problem.code, Code::Busy, "half of the variables are not saved: {problem}");
}
