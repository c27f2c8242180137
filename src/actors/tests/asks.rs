use super::*;
use crate::actors::asks::messages::{AsksMsg, AsksRef};
use crate::protocol::ask::{Approval, ApprovalPolicy, AskEnd, Decision, NewAsk};

/// The model wants one cell with the code `work`, and is content then.
const ONE_CELL: &str = r#"
    [[reply]]
    content = "I run it."
    [[reply.call]]
    name = "execute_python_code"
    arguments = { tool_call_purpose = "work", python_code_snippet = "work" }
    [[reply]]
    content = "It is done."
"#;

impl Client {
    async fn asks(&self) -> AsksRef {
        within("the asks", ask(&self.session, |reply_to| SessionMsg::Asks { reply_to })).await.unwrap()
    }

    async fn start_ask(&self, approval: ApprovalPolicy) {
        let new = NewAsk { text: "Work.".into(), approval: Some(approval), ..NewAsk::default() };
        let start = |reply_to| AsksMsg::Start { new: Box::new(new), outer: None, reply_to };
        within("an ask", ask(&self.asks().await, start)).await.unwrap();
    }

    /// Waits until the ask has ended. It ends only once.
    async fn only_end(&self) -> AskEnd {
        self.has_event(|event| matches!(event, EventBody::AskFinished { .. })).await;
        let ends = self.events().into_iter().filter_map(|event| match event {
            EventBody::AskFinished { end, .. } => Some(*end),
            _ => None,
        });
        let mut ends: Vec<AskEnd> = ends.collect();
        assert_eq!(ends.len(), 1, "{ends:?}");
        ends.remove(0)
    }

    pub(super) fn count(&self, name: &str) -> usize {
        self.events().iter().filter(|event| event.name() == name).count()
    }

    async fn approvals(&self) -> Vec<Approval> {
        let list = |reply_to| AsksMsg::Approvals { reply_to };
        within("the approvals", call(&self.asks().await, list)).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_whose_cell_runs_goes_on_over_the_death_of_the_daemon() {
    let home = Home::new();
    home.model_says(ONE_CELL);
    home.backend.plays("work", &[Step::Wait, Step::Print("worked")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Auto).await;
    client.has_event(|event| matches!(event, EventBody::CellStarted { .. })).await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    daemon.dies().await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    kernel.lets_go_on(1);
    let end = client.only_end().await;
    assert_eq!(end.answer, Some("It is done.".to_owned()), "{end:?}");
    assert_eq!((client.count("model_replied"), client.count("cell_queued")), (2, 1));
    assert_eq!(client.results(1).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_was_asked_by_a_daemon_that_died_answers_the_next_one() {
    let home = Home::new();
    home.model_says(ONE_CELL);
    home.backend.plays("work", &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Tools(vec!["answer".into()])).await;
    client.has_event(|event| matches!(event, EventBody::ApprovalWanted { .. })).await;
    daemon.dies().await;
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    let approvals = client.approvals().await;
    let [approval] = &approvals[..] else { panic!("{approvals:?}") };
    let accept = Decision::Accept { code: None };
    let decide =
        |reply_to| AsksMsg::Decide { id: approval.id.clone(), decision: accept, by: OWNER, reply_to };
    within("the decision", ask(&client.asks().await, decide)).await.unwrap();
    client.only_end().await;
    assert_eq!(client.only_result(1).await.stdout, "42");
    assert_eq!((client.count("approval_wanted"), client.count("tool_answered")), (1, 1));
}
