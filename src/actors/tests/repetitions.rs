use super::*;
use crate::actors::asks::messages::AsksMsg;
use crate::actors::executor::state::WORKER_REPLACEMENTS;
use crate::actors::session::removers::Remover;
use crate::protocol::api::VariablesFilter;
use crate::protocol::ask::{ApprovalPolicy, Decision};
use crate::protocol::frames::HostFrame;
use crate::protocol::limits::{TOOL_CALLS_IN_FLIGHT, UNDECIDED_QUESTIONS};
use crate::protocol::problem::Code;
use crate::protocol::quota::Kind;
use crate::protocol::result::{Reason, Status};
use crate::store::{EventLog, ROW_BYTES};

/// More small events than the reserve of a session has room for.
const MANY_EVENTS: usize = 1_000;

impl Client {
    /// Takes all that is left of the owner's quota of stored bytes.
    fn uses_up_quota(&self) -> Arc<EventLog> {
        let log = self.journal.log(self.id).unwrap();
        let mut bytes = 1 << 50;
        while bytes > 0 {
            if log.charge(bytes).is_err() {
                bytes /= 2;
            }
        }
        log
    }

    /// Waits until so many questions wait for a person.
    async fn is_asked(&self, questions: usize) {
        let waiting = async {
            while self.approvals().await.len() != questions {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within("people are asked", waiting).await;
    }
}

fn is_gone(event: &EventBody) -> bool {
    matches!(event, EventBody::SandboxGone { .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_again_and_again_between_cells_ends_its_sandbox() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let kernel = home.backend.kernel();
    let most = usize::try_from(WORKER_REPLACEMENTS).unwrap();
    // Each cell begins the count anew.
    for _ in 0..2 {
        for _ in 0..most {
            kernel.replaces_worker();
        }
        kernel.is_heard().await;
        let ticket = client.run("next").await;
        assert_eq!(client.result(ticket).await.status, Status::Success);
    }
    assert_eq!((home.backend.started(), client.count("state_lost")), (1, 2 * most));
    for _ in 0..=most {
        kernel.replaces_worker();
    }
    client.has_event(is_gone).await;
    assert_eq!(client.count("state_lost"), 3 * most);
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    assert_eq!(home.backend.started(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_end_cannot_be_noted_ends_its_sandbox() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let log = client.uses_up_quota();
    for _ in 0..MANY_EVENTS {
        log.append(EventBody::Thawed);
    }
    home.backend.kernel().replaces_worker();
    client.has_event(is_gone).await;
    assert_eq!(client.count("state_lost"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_is_interrupted_often_has_one_event_of_it() {
    let home = Home::new();
    home.backend.plays("long", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let kernel = home.backend.kernel();
    kernel.ignores_interrupts();
    let ticket = client.run("long").await;
    kernel.runs(1).await;
    for _ in 0..5 {
        let interrupt = |reply_to| SessionMsg::Interrupt { reply_to };
        within("an interrupt", try_call(&client.session, interrupt)).await.unwrap();
    }
    let interrupts = || {
        let frames = kernel.received_frames();
        frames.iter().filter(|frame| matches!(frame, HostFrame::Interrupt { .. })).count()
    };
    let all_received = async {
        while interrupts() < 5 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the kernel hears of all interrupts", all_received).await;
    kernel.lets_go_on(1);
    client.result(ticket).await;
    assert_eq!(client.count("interrupting"), 1);
}

/// Otherwise people are asked again and again by code that does not wait for what they say.
#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_does_not_wait_for_decisions_asks_people_only_so_often() {
    let home = Home::new();
    home.model_says(super::asks::ONE_CELL);
    home.backend.plays("work", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Tools(vec!["answer".into()])).await;
    client.has_event(|event| matches!(event, EventBody::CellStarted { .. })).await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    // What is decided counts no longer.
    let allowed = kernel.calls(1, "answer");
    client.is_asked(1).await;
    let id = client.approvals().await.remove(0).id;
    let decision = Decision::Accept { code: None };
    let decide = |reply_to| AsksMsg::Decide { id, decision, by: OWNER, memory: None, reply_to };
    within("the decision", try_call(&client.asks().await, decide)).await.unwrap();
    kernel.hears(|frame| matches!(frame, HostFrame::ToolResult { call, .. } if *call == allowed)).await;
    for _ in 0..UNDECIDED_QUESTIONS / TOOL_CALLS_IN_FLIGHT {
        let calls: Vec<u64> = (0..TOOL_CALLS_IN_FLIGHT).map(|_| kernel.calls(1, "answer")).collect();
        client.is_asked(calls.len()).await;
        for call in &calls {
            kernel.gives_up(*call);
        }
        for call in calls {
            kernel.fails(call, "cancelled").await;
        }
        client.is_asked(0).await;
    }
    for _ in 0..2 {
        kernel.fails(kernel.calls(1, "answer"), "not_allowed").await;
    }
    assert_eq!(client.count("approval_wanted"), 1 + UNDECIDED_QUESTIONS);
    kernel.lets_go_on(1);
    client.only_end().await;
}

/// Otherwise an administrator who only looks uses up the quota of the user.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_administrator_does_often_has_one_event() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let used = |who| daemon.ledger.used(who, Kind::Journal);
    let before = used(OWNER);
    for admin in [1, 2].map(Principal::new) {
        for act in ["GET /v1/sessions/a", "POST /v1/sessions/a/interrupt"].repeat(20) {
            let (act, only_looks_or_interrupts) = (act.to_owned(), true);
            client.session.cast(SessionMsg::ActedOn { admin, act, only_looks_or_interrupts }).unwrap();
        }
    }
    // The session handles this after the acts.
    client.state().await;
    client.journal.log(client.id).unwrap().flushed().await;
    assert_eq!(client.count("admin_acted"), 4);
    // The owner has not asked for them, so those who did pay, also after a restart.
    assert_eq!(used(OWNER), before);
    let paid = [1, 2].map(|admin| used(Principal::new(admin)));
    assert!(paid.into_iter().all(|bytes| bytes > 2 * ROW_BYTES), "{paid:?}");
    daemon.dies().await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    client.state().await;
    assert_eq!([1, 2].map(|admin| daemon.ledger.used(Principal::new(admin), Kind::Journal)), paid);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_quota_left_refusals_ends_and_the_removal_are_written() {
    let home = Home::new();
    home.backend.plays("long", &[Step::Wait]);
    home.backend.plays("end", &[Step::EndSandbox]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("long").await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    let queued = client.run("end").await;
    let log = client.uses_up_quota();
    kernel.lets_go_on(1);
    assert_eq!(client.result(ticket).await.status, Status::Success);
    // The end of the sandbox and that of its cell are in the journal.
    assert_eq!(client.result(queued).await.reason, Reason::SandboxLost);
    client.has_event(is_gone).await;
    assert_eq!((client.results(1).len(), client.results(2).len()), (1, 1));
    // While there is a reserve, requests that need a sandbox start one; when it is used up, they are refused and write
    // nothing.
    for _ in 0..MANY_EVENTS {
        log.append(EventBody::Thawed);
    }
    log.flushed().await;
    let before = client.events().len();
    for _ in 0..3 {
        let which = VariablesFilter::default();
        let list = |reply_to| SessionMsg::Variables { which, patient: false, reply_to };
        let problem = within("variables", try_call(&client.session, list)).await.unwrap_err();
        assert_eq!(problem.code, Code::QuotaExceeded, "{problem:?}");
    }
    assert_eq!((client.events().len(), home.backend.started()), (before, 1));
    let remove = |reply_to| SessionMsg::Remove { remover: Some(Remover::of_all(reply_to)) };
    within("the removal", try_call(&client.session, remove)).await.unwrap();
    assert_eq!(client.count("session_removed"), 1);
}
