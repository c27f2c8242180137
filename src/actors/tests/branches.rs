use super::asks::ONE_CELL;
use super::*;
use crate::actors::branches::{SessionMaker, branch};
use crate::actors::replay;
use crate::actors::session::messages::Handles;
use crate::protocol::ask::ApprovalPolicy;
use crate::protocol::branch::{BranchList, NewBranches};
use crate::sandbox::backend::fake::WHILE_LOADING;

impl Daemon {
    async fn branches(&self, of: &Client) -> Result<BranchList, Problem> {
        let maker = SessionMaker {
            supervisor: self.supervisor.clone(),
            directory: self.directory.clone(),
            launcher: Arc::clone(&self.launcher),
            settings: Arc::clone(&self.launcher.settings),
            ledger: self.ledger.clone(),
            journal: self.journal.clone(),
            snapshots: self.snapshots.clone(),
        };
        let handles = of.handles().await;
        let making = branch::branch(&maker, OWNER, (&of.session, &handles), NewBranches::default());
        within("branches are made", making).await
    }

    fn sessions_of_owner(&self) -> usize {
        self.directory.list(Some(OWNER)).len()
    }
}

impl Client {
    async fn handles(&self) -> Handles {
        within("the handles", try_call(&self.session, |reply_to| SessionMsg::Handles { reply_to }))
            .await
            .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_the_code_of_a_branch_hold_also_after_a_replay_in_it() {
    let home = Home::new();
    home.model_says(ONE_CELL);
    home.backend.plays("later", &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Tools(vec!["answer".into()])).await;
    client.only_end().await;
    let made = daemon.branches(&client).await.unwrap();
    let branch = daemon.client(made.sessions[0].id);
    within("a replay", replay::replay(&branch.session, &branch.handles().await.log)).await.unwrap();
    branch.has_event(|event| matches!(event, EventBody::ResetDone { .. })).await;
    let _ticket = branch.run("later").await;
    branch.has_event(|event| matches!(event, EventBody::ApprovalWanted { .. })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_cannot_load_its_variables_is_none() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::Die]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("a").await;
    client.result(ticket).await;
    let problem = daemon.branches(&client).await.unwrap_err();
    assert!(problem.message.contains("the test wants it so"), "{problem:?}");
    within("it is gone", async {
        while daemon.sessions_of_owner() > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
