use futures_util::FutureExt;

use super::*;
use crate::protocol::event::ToolOutcome;
use crate::protocol::frames::HostFrame;
use crate::protocol::quota::Kind;
use crate::protocol::result::Status;

#[tokio::test(flavor = "multi_thread")]
async fn a_running_cell_goes_on_to_its_end_over_the_death_of_the_daemon() {
    let home = Home::new();
    home.backend.plays("long", &[Step::Print("before, "), Step::Wait, Step::Print("after")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.run("long").await;
    client.run("next").await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    daemon.dies().await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    client.has_event(|event| matches!(event, EventBody::SandboxAttached)).await;
    kernel.lets_go_on(1);
    let (first, second) = (client.only_result(1).await, client.only_result(2).await);
    assert_eq!((first.status, first.stdout.as_str()), (Status::Success, "before, after"));
    assert_eq!(second.status, Status::Success);
    assert_eq!(home.backend.started(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_ends_while_no_daemon_runs_is_told_to_the_next_one() {
    let home = Home::new();
    home.backend.plays("long", &[Step::Wait, Step::Print("alone")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.run("long").await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    daemon.dies().await;
    kernel.lets_go_on(1);
    kernel.has_ended(1).await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    let result = client.only_result(1).await;
    assert_eq!((result.status, result.stdout.as_str()), (Status::Success, "alone"));
    // A third daemon has nothing to repeat.
    daemon.dies().await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    assert_eq!(client.results(1).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_only_the_journal_got_is_sent_to_the_kernel_by_the_next_daemon() {
    let home = Home::new();
    home.backend.plays("call", &[Step::Wait, Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.run("call").await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    kernel.loses_answers();
    kernel.lets_go_on(1);
    let answered = |event: &EventBody| matches!(event, EventBody::ToolAnswered { outcome: ToolOutcome::Value(value), .. } if *value == 42);
    client.has_event(answered).await;
    kernel.hears(|frame| matches!(frame, HostFrame::ToolResult { .. })).await;
    daemon.dies().await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    let result = client.only_result(1).await;
    assert_eq!((result.status, result.stdout.as_str()), (Status::Success, "42"));
    assert_eq!(client.events().iter().filter(|event| answered(event)).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_is_done_is_not_repeated_by_the_next_daemon() {
    let home = Home::new();
    home.backend.plays("copy", &[Step::Wait, Step::Print("whole")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.reset().await;
    client.run_in(Mode::Fork, "copy").await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    daemon.dies().await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    // Where a reset is repeated, it precedes this cell.
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    kernel.lets_go_on(1);
    let result = client.only_result(1).await;
    assert_eq!((result.status, result.stdout.as_str()), (Status::Success, "whole"));
    let resets =
        kernel.received_frames().into_iter().filter(|frame| matches!(frame, HostFrame::Reset { .. }));
    assert_eq!(resets.count(), 1);
}

/// Reading a journal takes as long as its owner made it, and however long it takes, the session is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_waits_to_read_its_journal_is_listed() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    daemon.dies().await;
    let others = home.restores.acquire_many(u32::try_from(RESTORES_AT_ONCE).unwrap()).await.unwrap();
    let daemon = home.daemon().await;
    let listed = daemon.directory.list(Some(OWNER));
    let [session] = &listed[..] else { panic!("there is one session") };
    let view = within("it is shown", session.view()).await.unwrap();
    assert_eq!((view.id, view.state), (client.id, SessionState::Restoring));
    // What is sent to it meanwhile would wait in its mailbox, however much that is.
    assert!(session.answers().now_or_never().is_none(), "nothing is sent to it yet");
    drop(others);
    within("it answers", session.answers()).await;
    daemon.client(client.id).has_event(|event| matches!(event, EventBody::SandboxAttached)).await;
    let view = within("it is shown", session.view()).await.unwrap();
    assert_eq!(view.state, SessionState::Idle);
}

/// Otherwise others could take the room of a sandbox that runs, while its session waits to read its journal.
#[tokio::test(flavor = "multi_thread")]
async fn the_sandbox_of_a_session_counts_before_the_session_has_read_its_journal() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let used = |daemon: &Daemon| [Kind::Memory, Kind::Cpus].map(|kind| daemon.ledger.used(OWNER, kind));
    let before = used(&daemon);
    assert!(before.iter().all(|used| *used > 0), "{before:?}");
    daemon.dies().await;
    let others = home.restores.acquire_many(u32::try_from(RESTORES_AT_ONCE).unwrap()).await.unwrap();
    let daemon = home.daemon().await;
    assert_eq!(used(&daemon), before);
    drop(others);
    daemon.client(client.id).has_event(|event| matches!(event, EventBody::SandboxAttached)).await;
    assert_eq!(used(&daemon), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_memory_is_short_no_sandbox_is_added_and_those_that_run_go_on() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let id = client.id;
    daemon.dies().await;
    let short = SETTINGS.replace("[sandbox]", "[sandbox]\nmemory_reserve = \"1000000TiB\"");
    let daemon = home.daemon_with(&short).await;
    let client = daemon.client(id);
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    let problem = daemon.makes(OWNER, NewSession::default()).await.err().unwrap();
    assert_eq!(problem.code, Code::QuotaExceeded, "{problem:?}");
    assert!(problem.message.contains("memory available"), "{problem:?}");
}

/// The images of the session's sandboxes, by their ids.
fn images(client: &Client) -> Vec<String> {
    let ready = client.events().into_iter().filter_map(|event| match event {
        EventBody::SandboxReady { image, .. } => Some(image.id),
        _ => None,
    });
    ready.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_in_the_image_and_the_backend_that_it_began_with() {
    let home = Home::new();
    home.backend.plays("end", &[Step::EndSandbox]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    for _ in 0..2 {
        let ticket = client.run("end").await;
        client.result(ticket).await;
    }
    assert_eq!(home.backend.started(), 2);
    daemon.dies().await;
    // The next daemon would choose another backend for a new session.
    let elsewhere = SETTINGS.replace("\"process\"", "\"bubblewrap\"");
    let daemon = home.daemon_with(&elsewhere).await;
    let client = daemon.client(client.id);
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    assert_eq!(home.backend.started(), 3);
    assert_eq!(images(&client), ["fake-0"; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_does_not_go_on_in_a_backend_that_is_not_enough_any_more() {
    let home = Home::new();
    home.backend.plays("end", &[Step::EndSandbox]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("end").await;
    client.result(ticket).await;
    daemon.dies().await;
    let stricter = SETTINGS.replace("\"process\"", "\"bubblewrap\"\nminimum_isolation = \"jail\"");
    let daemon = home.daemon_with(&stricter).await;
    let client = daemon.client(client.id);
    let ticket = client.run("next").await;
    let refused = client.result(ticket).await;
    assert_ne!(refused.status, Status::Success, "{refused:?}");
    assert!(refused.state.note.as_ref().is_some_and(|note| note.contains("isolates less")), "{refused:?}");
    assert_eq!(home.backend.started(), 1);
}
