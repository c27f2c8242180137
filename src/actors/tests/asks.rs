use super::*;
use crate::actors::asks::messages::{AsksMsg, AsksRef};
use crate::protocol::ask::{Approval, ApprovalPolicy, AskEnd, AskView, Decision, NewAsk};
use crate::protocol::event::ToolOutcome;
use tokio::sync::oneshot;

/// The model wants one cell with the code `work`, and is content then.
pub(super) const ONE_CELL: &str = r#"
    [[reply]]
    content = "I run it."
    [[reply.call]]
    name = "execute_python_code"
    arguments = { tool_call_purpose = "work", python_code_snippet = "work" }
    [[reply]]
    content = "It is done."
"#;

impl Client {
    pub(super) async fn asks(&self) -> AsksRef {
        within("the asks", try_call(&self.session, |reply_to| SessionMsg::Asks { reply_to })).await.unwrap()
    }

    pub(super) async fn start_ask(&self, approval: ApprovalPolicy) {
        let new = NewAsk { text: "Work.".into(), approval: Some(approval), ..NewAsk::default() };
        let start = |reply_to| AsksMsg::Start { new: Box::new(new), outer: None, memory: None, reply_to };
        within("an ask", try_call(&self.asks().await, start)).await.unwrap();
    }

    /// Waits until the ask has ended. It ends only once.
    pub(super) async fn only_end(&self) -> AskEnd {
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

    pub(super) async fn approvals(&self) -> Vec<Approval> {
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
    let decide = |reply_to| AsksMsg::Decide {
        id: approval.id.clone(),
        decision: accept,
        by: OWNER,
        memory: None,
        reply_to,
    };
    within("the decision", try_call(&client.asks().await, decide)).await.unwrap();
    client.only_end().await;
    assert_eq!(client.only_result(1).await.stdout, "42");
    assert_eq!((client.count("approval_wanted"), client.count("tool_answered")), (1, 1));
}

/// A person who allowed it would see it refused all the same.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_asked_for_what_an_owner_may_never_install() {
    let home = Home::new();
    home.model_says(ONE_CELL);
    home.backend.plays("install", &[Step::Call("install_packages")]);
    let daemon = home.daemon_with(&format!("{SETTINGS}[packages]\nby_owner = \"never\"\n")).await;
    let client = daemon.makes_a_session().await;
    // Since a model's cell ran, a person decides by `packages.by_models`.
    client.start_ask(ApprovalPolicy::Auto).await;
    client.only_end().await;
    let ticket = client.run("install").await;
    assert_eq!(client.result(ticket).await.stdout, "\"failed\"");
    assert_eq!(client.count("approval_wanted"), 0);
}

/// A shell would be the way around the check that code has to pass.
#[tokio::test(flavor = "multi_thread")]
async fn the_model_of_a_restricted_ask_runs_no_command() {
    let home = Home::new();
    home.model_says(
        r#"
        [[reply]]
        [[reply.call]]
        name = "run_command"
        arguments = { tool_call_purpose = "look", command = "id" }
        [[reply]]
        content = "It is done."
        "#,
    );
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let new = NewAsk {
        text: "Work.".into(),
        approval: Some(ApprovalPolicy::Auto),
        tools: Some(vec!["run_command".into()]),
        restricted: Some(true),
        ..NewAsk::default()
    };
    let start = |reply_to| AsksMsg::Start { new: Box::new(new), outer: None, memory: None, reply_to };
    within("an ask", try_call(&client.asks().await, start)).await.unwrap();
    client.only_end().await;
    let events = client.events();
    let is_refused = |event: &EventBody| match event {
        EventBody::AskToolAnswered { outcome: ToolOutcome::Failure(refused), .. } => {
            refused.message.contains("only restricted Python")
        }
        _ => false,
    };
    assert!(events.iter().any(is_refused), "{events:#?}");
    assert_eq!(client.count("cell_queued"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_that_wait_pay_for_the_schemas_of_their_answers() {
    const MANY: usize = 200;
    let home = Home::new();
    home.model_says(ONE_CELL);
    home.backend.plays("work", &[Step::Wait]);
    let daemon = home.daemon().await;
    let patterns: Map<String, Value> = (0..60).map(|n| (format!("^{n}\\w{{1,20}}$"), json!({}))).collect();
    let schema = json!({"type": "object", "patternProperties": patterns});
    let mut asked = 0;
    let mut clients = Vec::new();
    let refusal = 'refused: loop {
        let client = daemon.makes_a_session().await;
        let asks = client.asks().await;
        clients.push(client);
        // A session lets some asks wait, and refuses more for that reason.
        for _ in 0..8 {
            let new = NewAsk { text: "Work.".into(), schema: Some(schema.clone()), ..NewAsk::default() };
            let start = |reply_to| AsksMsg::Start { new: Box::new(new), outer: None, memory: None, reply_to };
            if let Err(problem) = within("an ask", try_call(&asks, start)).await {
                break 'refused problem;
            }
            asked += 1;
            assert!(asked < MANY, "nothing bounds the schemas");
        }
    };
    assert_eq!(refusal.code, crate::protocol::problem::Code::QuotaExceeded, "{refusal:?}");
    assert!(refusal.message.contains("schemas of answers"), "{refusal:?}");
}

impl Home {
    /// A daemon, and the file of its prompt: a pipe without a writer, so that reading it never ends.
    async fn daemon_with_slow_prompt(&self) -> (Daemon, PathBuf) {
        self.model_says(ONE_CELL);
        let pipe = self.path().join("prompt.md");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let settings = SETTINGS.replace("[agent]", "[agent]\nprompt = \"prompt.md\"");
        (self.daemon_with(&settings).await, pipe)
    }
}

async fn write_prompt(pipe: PathBuf) {
    tokio::task::spawn_blocking(move || std::fs::write(pipe, "You work.")).await.unwrap().unwrap();
}

/// Starts an ask, which is not known as long as its prompt is being read.
async fn start_unseen(asks: &AsksRef) -> oneshot::Receiver<Result<AskView, Problem>> {
    let new = NewAsk { text: "Work.".into(), approval: Some(ApprovalPolicy::Auto), ..NewAsk::default() };
    let (sender, started) = oneshot::channel();
    let (new, reply_to) = (Box::new(new), sender.into());
    asks.cast(AsksMsg::Start { new, outer: None, memory: None, reply_to }).unwrap();
    let list = within("the list", call(asks, |reply_to| AsksMsg::List { reply_to })).await.unwrap();
    assert!(list.is_empty(), "{list:?}");
    started
}

#[tokio::test(flavor = "multi_thread")]
async fn who_else_asks_does_not_wait_for_the_file_of_the_prompt() {
    let home = Home::new();
    let (daemon, pipe) = home.daemon_with_slow_prompt().await;
    let client = daemon.makes_a_session().await;
    let started = start_unseen(&client.asks().await).await;
    write_prompt(pipe).await;
    within("it is started", started).await.unwrap().unwrap();
    assert_eq!(client.only_end().await.answer, Some("It is done.".to_owned()));
}

/// Otherwise the ask would be the only one that its session still has, and would ask a model.
#[tokio::test(flavor = "multi_thread")]
async fn an_ask_whose_prompt_is_read_while_its_session_is_removed_is_refused() {
    let home = Home::new();
    let (daemon, pipe) = home.daemon_with_slow_prompt().await;
    let client = daemon.makes_a_session().await;
    let asks = client.asks().await;
    let started = start_unseen(&asks).await;
    asks.cast(AsksMsg::CancelAll).unwrap();
    write_prompt(pipe).await;
    let refused = within("it is refused", started).await.unwrap().unwrap_err();
    assert_eq!(refused.code, Code::NoSuchSession, "{refused:?}");
    assert_eq!(client.count("ask_started"), 0);
}

/// What an ask left behind calls a tool in the moment between the request for a reset and the end of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_an_ask_hold_until_the_kernel_has_done_a_reset() {
    let home = Home::new();
    home.model_says(ONE_CELL);
    home.backend.plays(WHILE_RESETTING, &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Tools(vec!["answer".into()])).await;
    client.only_end().await;
    client.reset().await;
    client.has_event(|event| matches!(event, EventBody::ToolAnswered { .. })).await;
    let answers = client.events().into_iter().filter_map(|event| match event {
        EventBody::ToolAnswered { outcome, .. } => Some(outcome),
        _ => None,
    });
    let answers: Vec<ToolOutcome> = answers.collect();
    assert!(matches!(answers[..], [ToolOutcome::Failure(_)]), "{answers:?}");
    // After it, nothing of before is there to be bound.
    client.has_event(|event| matches!(event, EventBody::ResetDone { .. })).await;
    home.backend.plays("later", &[Step::Call("answer")]);
    let ticket = client.run("later").await;
    assert_eq!(client.result(ticket).await.stdout, "42");
}
