use super::*;
use crate::actors::asks::messages::AsksMsg;
use crate::actors::jobs::JobsMsg;
use crate::protocol::ask::{ApprovalPolicy, Decision};
use crate::protocol::frames::HostFrame;
use crate::protocol::job::JobState;
use crate::protocol::problem::Code;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_the_journal_does_not_have_in_time_is_done_but_not_reported_as_a_success() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let writer_hold = client.journal.hold_writer();
    let reset = |reply_to| SessionMsg::Reset { replay: None, reply_to };
    let problem = within("a reset", try_call(&client.session, reset)).await.unwrap_err();
    assert_eq!(problem.code, Code::Storage, "{problem:?}");
    let resets = |frame: &HostFrame| matches!(frame, HostFrame::Reset { .. });
    home.backend.kernel().hears(resets).await;
    drop(writer_hold);
    client.reset().await;
}

/// Otherwise the death of the daemon could take back a decision of which a person was told that it holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_answered_when_the_journal_has_it() {
    let home = Home::new();
    home.model_says(super::asks::ONE_CELL);
    home.backend.plays("work", &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Tools(vec!["answer".into()])).await;
    client.has_event(|event| matches!(event, EventBody::ApprovalWanted { .. })).await;
    let [approval] = &client.approvals().await[..] else { panic!("one approval") };
    let asks = client.asks().await;
    let writer_hold = client.journal.hold_writer();
    let (sender, mut decided) = oneshot::channel();
    let (id, decision) = (approval.id.clone(), Decision::Accept { code: None });
    asks.cast(AsksMsg::Decide { id, decision, by: OWNER, memory: None, reply_to: sender.into() }).unwrap();
    // The decision is taken when the next message is answered.
    assert_eq!(client.approvals().await, []);
    assert!(decided.try_recv().is_err(), "it is not written yet");
    assert_eq!(client.count("tool_answered"), 0);
    drop(writer_hold);
    within("the decision is written", decided).await.unwrap().unwrap();
    assert_eq!(client.count("approval_decided"), 1);
    client.only_end().await;
}

/// Otherwise the number of calls in flight does not slow code that makes calls and gives them up, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_is_in_flight_until_the_journal_has_its_end() {
    let home = Home::new();
    home.model_says(super::asks::ONE_CELL);
    home.backend.plays("work", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Tools(vec!["answer".into()])).await;
    client.has_event(|event| matches!(event, EventBody::CellStarted { .. })).await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    let call = kernel.calls(1, "answer");
    client.has_event(|event| matches!(event, EventBody::ApprovalWanted { .. })).await;
    let log = client.journal.log(client.id).unwrap();
    let writer_hold = client.journal.hold_writer();
    let mut newest = log.append(EventBody::Thawed);
    kernel.gives_up(call);
    let is_noted = async {
        loop {
            let next = log.append(EventBody::Thawed);
            if next > newest + 1 {
                return;
            }
            newest = next;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the daemon notes that the call ended", is_noted).await;
    // An answer at once would have arrived by then.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let is_answer = |frame: &HostFrame| matches!(frame, HostFrame::ToolFailed { .. });
    assert!(!kernel.received_frames().iter().any(is_answer), "it is not written yet");
    drop(writer_hold);
    kernel.fails(call, "cancelled").await;
    assert_eq!(client.count("tool_answered"), 1);
    kernel.lets_go_on(1);
    client.only_end().await;
}

/// Otherwise the next daemon could run a job of which a client was told that it is cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_is_answered_when_the_journal_has_it() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let record = super::jobs::queued();
    let id = record.view.id;
    daemon.journal.put_job(&record).await.unwrap();
    // A daemon that ends starts no job, so this one waits.
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    let jobs = super::jobs::spawned(&daemon, shutdown).await;
    let writer_hold = daemon.journal.hold_writer();
    let (sender, mut cancelled) = oneshot::channel();
    jobs.cast(JobsMsg::Cancel { id, reply_to: sender.into() }).unwrap();
    // The actor has taken the cancellation when it answers this.
    let watch = |reply_to| JobsMsg::Watch { id, reply_to };
    assert!(within("a watch", call(&jobs, watch)).await.unwrap().is_some());
    assert!(cancelled.try_recv().is_err(), "it is not written yet");
    drop(writer_hold);
    assert!(within("the cancellation is written", cancelled).await.unwrap());
    assert_eq!(daemon.journal.job(id).unwrap().unwrap().view.state, JobState::Ended);
}
