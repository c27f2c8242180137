use super::*;
use crate::actors::calls::send_now;
use crate::actors::results::result_of;
use crate::protocol::frames::{HostFrame, RefusedCode};
use crate::protocol::ids::SessionName;
use crate::protocol::problem::Code;
use crate::protocol::quota::Kind;
use crate::protocol::result::{Reason, Status};

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_runs_and_its_result_is_in_the_journal() {
    let home = Home::new();
    home.backend.plays("say hi", &[Step::Print("hi")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("say hi").await;
    let result = client.result(ticket).await;
    assert_eq!((result.status, result.stdout.as_str()), (Status::Success, "hi"));
    assert_eq!(client.only_result(1).await, *result);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_cells_run_one_after_the_other() {
    let home = Home::new();
    home.backend.plays("first", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let (first, second) = (client.run("first").await, client.run("second").await);
    let kernel = home.backend.kernel();
    kernel.hears(|frame| matches!(frame, HostFrame::Cell { .. })).await;
    let sent = |kernel: &[HostFrame]| {
        let cells = kernel.iter().filter_map(|frame| match frame {
            HostFrame::Cell { cell, .. } => Some(*cell),
            _ => None,
        });
        cells.collect::<Vec<_>>()
    };
    assert_eq!(sent(&kernel.received_frames()), [1]);
    kernel.lets_go_on(1);
    assert_eq!(client.result(first).await.status, Status::Success);
    assert_eq!(client.result(second).await.status, Status::Success);
    assert_eq!(sent(&kernel.received_frames()), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_whose_process_dies_says_so_and_the_next_cell_runs() {
    let home = Home::new();
    home.backend.plays("die", &[Step::Print("last words"), Step::Die]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("die").await;
    let result = client.result(ticket).await;
    assert_eq!((result.reason, result.stdout.as_str()), (Reason::Signal, "last words"));
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    assert_eq!(home.backend.started(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_whose_sandbox_ends_says_so_and_the_next_cell_runs_in_another() {
    for end in [Step::EndSandbox, Step::HangUp] {
        let home = Home::new();
        home.backend.plays("end", &[Step::Print("last words"), end, Step::Wait]);
        let daemon = home.daemon().await;
        let client = daemon.makes_a_session().await;
        let ticket = client.run("end").await;
        let result = client.result(ticket).await;
        assert_eq!(result.reason, Reason::SandboxLost, "{end:?}");
        let ticket = client.run("next").await;
        assert_eq!(client.result(ticket).await.status, Status::Success);
        assert_eq!(home.backend.started(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_finds_no_worker_is_sent_again_until_there_is_one() {
    let home = Home::new();
    home.backend.plays("early", &[Step::Refuse(RefusedCode::NoWorker)]);
    home.backend.plays("early", &[Step::Print("at last")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("early").await;
    assert_eq!(client.result(ticket).await.stdout, "at last");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_finds_no_worker_is_sent_again_after_a_freeze() {
    let home = Home::new();
    home.backend.plays("early", &[Step::Refuse(RefusedCode::NoWorker)]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("early").await;
    let kernel = home.backend.kernel();
    kernel.hears(|frame| matches!(frame, HostFrame::Cell { .. })).await;
    kernel.is_heard().await;
    client.freeze().await;
    home.backend.plays("early", &[Step::Print("at last")]);
    client.thaw().await;
    assert_eq!(client.result(ticket).await.stdout, "at last");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_is_busy_for_a_cell_that_nothing_is_in_the_way_of_is_given_up() {
    let home = Home::new();
    home.backend.plays("refused", &[Step::Refuse(RefusedCode::Busy)]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("refused").await;
    assert_eq!(client.result(ticket).await.reason, Reason::SandboxLost);
    let given_up = |event: &EventBody| matches!(event, EventBody::SandboxGone { reason } if reason.contains("nothing was in the way"));
    client.has_event(given_up).await;
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    assert_eq!(home.backend.started(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_wait_for_a_cell_get_its_result() {
    let home = Home::new();
    home.backend.plays("slow", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let first = client.run("slow").await;
    let again = call(&client.session, |reply_to| SessionMsg::Ticket { cell: 1, reply_to }).await.unwrap();
    let kernel = home.backend.kernel();
    kernel.hears(|frame| matches!(frame, HostFrame::Cell { .. })).await;
    kernel.lets_go_on(1);
    let result = client.result(first).await;
    assert_eq!(client.result(again.expect("the cell has not ended")).await, result);
    // A client that comes later reads the journal.
    let log = client.journal.log(client.id).unwrap();
    let later = within("a result", result_of(&client.session, &log, 1)).await.unwrap();
    assert_eq!(later, result);
    let unknown = within("an answer", result_of(&client.session, &log, 2)).await.unwrap_err();
    assert_eq!(unknown.code, Code::NoSuchCell);
}

/// Otherwise a cell that ran without the variables says that they are there, and the next one that they are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_between_cells_is_told_by_the_cell_that_met_it() {
    let home = Home::new();
    home.backend.plays("slow", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("slow").await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    kernel.replaces_worker();
    kernel.lets_go_on(1);
    let note = client.result(ticket).await.state.note.clone().unwrap_or_default();
    assert!(note.starts_with("Before this cell the variables went back to the start"), "{note}");
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.state.note, None);
    // At rest, the next cell is the one that meets it.
    kernel.replaces_worker();
    client.has_event(|event| matches!(event, EventBody::StateLost { restored_to: Some(2), .. })).await;
    let ticket = client.run("next").await;
    assert!(client.result(ticket).await.state.note.is_some());
}

/// Making a session reads and writes files, for which others must not wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_begins_holds_up_nothing_and_has_its_name_and_quota() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(parking_lot::Mutex::new(released));
    for _ in 0..BLOCKING_THREADS {
        let released = Arc::clone(&released);
        daemon.runtime.as_ref().unwrap().spawn_blocking(move || released.lock().recv());
    }
    let named = NewSession { name: Some(SessionName::parse("a").unwrap()), ..NewSession::default() };
    let (id, request) = (SessionId::fresh(), Box::new(named.clone()));
    let first = send_now(&daemon.supervisor, |reply_to| SupervisorMsg::Create {
        id,
        owner: OWNER,
        request,
        nested: false,
        job: None,
        base: None,
        memory: None,
        reply_to,
    });
    let second = daemon.makes(OWNER, named).await.err().expect("the name is taken");
    assert_eq!(second.code, Code::SessionExists);
    assert_eq!(daemon.ledger.used(OWNER, Kind::Sessions), 1);
    drop(release);
    assert_eq!(within("it is made", first).await.unwrap().unwrap().id, id);
}
