use super::asks::ONE_CELL;
use super::*;
use crate::actors::branches::import::{ImportOptions, import};
use crate::actors::branches::{SessionMaker, Spool, branch, export};
use crate::actors::replay;
use crate::actors::session::messages::Handles;
use crate::protocol::ask::ApprovalPolicy;
use crate::protocol::branch::{BranchList, Imported, NewBranches};
use crate::protocol::frames::HostFrame;
use crate::protocol::ids::SessionName;
use crate::protocol::receipt::Backend;
use crate::sandbox::backend::fake::WHILE_LOADING;
use crate::sandbox::workspace::session_archive;
use std::io::{Read as _, Seek as _};

impl Daemon {
    fn maker(&self) -> SessionMaker {
        SessionMaker {
            supervisor: self.supervisor.clone(),
            directory: self.directory.clone(),
            launcher: Arc::clone(&self.launcher),
            settings: Arc::clone(&self.launcher.settings),
            ledger: self.ledger.clone(),
            journal: self.journal.clone(),
            snapshots: self.snapshots.clone(),
        }
    }

    pub(super) async fn branches(&self, of: &Client) -> Result<BranchList, Problem> {
        let maker = self.maker();
        let handles = of.handles().await;
        let making = branch::branch(&maker, OWNER, (&of.session, &handles), NewBranches::default());
        within("branches are made", making).await
    }

    pub(super) async fn exports(&self, of: &Client) -> Result<export::Export, Problem> {
        let (maker, handles) = (self.maker(), of.handles().await);
        within("an export", Box::pin(export::prepare(&maker, OWNER, &of.session, handles))).await
    }

    pub(super) async fn archive(&self, of: &Client) -> Vec<u8> {
        let prepared = self.exports(of).await.unwrap();
        let mut file = tempfile::tempfile().unwrap();
        within("it is written", Box::pin(prepared.write(file.try_clone().unwrap()))).await.unwrap();
        let mut archive = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut archive).unwrap();
        archive
    }

    pub(super) async fn imports(&self, archive: &[u8], options: ImportOptions) -> Result<Imported, Problem> {
        let spool = Spool::receive((self.launcher.paths.home(), 0), &self.ledger, OWNER, archive);
        let maker = self.maker();
        let importing = Box::pin(import(&maker, OWNER, spool.unwrap(), options));
        within("an import", importing).await
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

/// Packing is what takes longest.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_of_variables_that_are_saved_already_does_not_pack_them_again() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let kernel = home.backend.kernel();
    let packed = || {
        let frames = kernel.received_frames().into_iter();
        frames.filter(|frame| matches!(frame, HostFrame::Snapshot { .. })).count()
    };
    for (code, cell, packs) in [("a", 1, 1), ("b", 2, 2)] {
        let ticket = client.run(code).await;
        client.result(ticket).await;
        for _ in 0..2 {
            let made = daemon.branches(&client).await.unwrap();
            assert_eq!((made.cell, packed()), (cell, packs), "{code}");
        }
    }
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

/// The code of an ask goes into the archive with its variables, and with its cells, which may run again elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_has_the_rules_of_its_code_whose_sandbox_is_gone() {
    let home = Home::new();
    home.model_says(ONE_CELL);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Tools(vec!["answer".into()])).await;
    client.only_end().await;
    // It was not saved, so that it runs again in the next sandbox.
    home.backend.kernel().end();
    client.has_event(|event| matches!(event, EventBody::SandboxGone { .. })).await;
    let ticket = client.run("own").await;
    client.result(ticket).await;
    let archive = daemon.archive(&client).await;
    let manifest = session_archive::read(&archive[..], &mut |_| Ok(()), |_, _| Ok(())).unwrap();
    assert_eq!(manifest.rules.approve, ["answer", "install_packages"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_an_archive_hold_where_it_is_imported_also_if_it_is_trusted() {
    let home = Home::new();
    home.model_says(ONE_CELL);
    home.backend.plays("later", &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    client.start_ask(ApprovalPolicy::Tools(vec!["answer".into()])).await;
    client.only_end().await;
    let archive = daemon.archive(&client).await;
    let name = SessionName::parse("moved").ok();
    let options = ImportOptions { name, trust: true, ..ImportOptions::default() };
    let made = daemon.imports(&archive, options).await.unwrap();
    let moved = daemon.client(made.session.id);
    let _ticket = moved.run("later").await;
    moved.has_event(|event| matches!(event, EventBody::ApprovalWanted { .. })).await;
}

/// The cells of an archive are none of the session's, whatever their numbers.
#[tokio::test(flavor = "multi_thread")]
async fn the_journal_of_an_imported_session_names_no_cells_that_it_has_not_run() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    for code in ["a", "b"] {
        let ticket = client.run(code).await;
        client.result(ticket).await;
    }
    let archive = daemon.archive(&client).await;
    let name = SessionName::parse("again").ok();
    let options = ImportOptions { name, replay: true, trust: true, ..ImportOptions::default() };
    let made = daemon.imports(&archive, options).await.unwrap();
    let replayed: Vec<_> = made.replay.unwrap().cells.iter().map(|cell| cell.cell).collect();
    assert_eq!(replayed, [1, 2]);
    let begun: Vec<EventBody> = daemon
        .client(made.session.id)
        .events()
        .into_iter()
        .filter(|event| matches!(event, EventBody::ReplayStarted { .. }))
        .collect();
    assert!(matches!(&begun[..], [EventBody::ReplayStarted { cells }] if cells.is_empty()), "{begun:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_says_with_which_backend_its_session_ran() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let archive = daemon.archive(&client).await;
    let manifest = session_archive::read(&archive[..], &mut |_| Ok(()), |_, _| Ok(())).unwrap();
    assert_eq!(manifest.request.backend, Some(Backend::Process));
    let name = SessionName::parse("moved").ok();
    let made = daemon.imports(&archive, ImportOptions { name, ..ImportOptions::default() }).await.unwrap();
    assert_eq!(made.session.backend, Backend::Process, "that of the configuration");
}
