use futures_util::future::join_all;
use std::collections::BTreeSet;

use super::*;
use crate::protocol::api::PoolView;
use crate::protocol::frames::HostFrame;
use crate::protocol::quota::Kind;
use crate::protocol::result::Status;
use crate::sandbox::backend::fake::FakeKernel;

impl Home {
    async fn daemon_with_pool(&self, size: usize) -> Daemon {
        self.daemon_with(&SETTINGS.replace("size = 0", &format!("size = {size}"))).await
    }

    fn workspaces(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.path().join("w")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Daemon {
    /// Waits until the pool is like that.
    async fn pool_is(&self, what: &str, is_so: impl Fn(&PoolView) -> bool) -> PoolView {
        let waiting = async {
            loop {
                let view = self.pool.view().await.expect("a pool");
                if is_so(&view) {
                    return view;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(what, waiting).await
    }

    /// Makes two sessions, after which so many sandboxes wait.
    async fn fills_its_pool(&self, size: usize) -> [Client; 2] {
        let made = [self.makes_a_session().await, self.makes_a_session().await];
        self.pool_is("the pool is filled", |pool| pool.waiting == size).await;
        made
    }
}

fn heard_a_cell(kernel: &FakeKernel) -> bool {
    kernel.received_frames().iter().any(|frame| matches!(frame, HostFrame::Cell { .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_sessions_gets_a_sandbox_that_no_other_has() {
    const SIZE: usize = 3;
    let home = Home::new();
    let daemon = home.daemon_with_pool(SIZE).await;
    daemon.fills_its_pool(SIZE).await;
    assert_eq!(home.backend.started(), 2 + SIZE);
    let clients = join_all((0..2 * SIZE).map(|_| daemon.makes_a_session())).await;
    let view = daemon.pool.view().await.unwrap();
    assert_eq!((view.hits, view.misses), (SIZE as u64, 2 + SIZE as u64));
    let sandboxes: BTreeSet<String> = clients
        .iter()
        .flat_map(Client::events)
        .filter_map(|event| match event {
            EventBody::SandboxReady { receipt, .. } => Some(receipt.sandbox.0),
            _ => None,
        })
        .collect();
    assert_eq!(sandboxes.len(), 2 * SIZE);
    for client in &clients {
        let ticket = client.run("any").await;
        assert_eq!(client.result(ticket).await.status, Status::Success);
    }
    // Refilled to its bound, and not beyond.
    let view = daemon.pool_is("it is filled again", |pool| pool.waiting == SIZE && !pool.starting).await;
    assert_eq!(view.starts, 2 * SIZE as u64);
    let waiting = home.workspaces().iter().filter(|name| name.starts_with("pool-")).count();
    assert_eq!(waiting, SIZE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_wants_something_else_gets_a_new_sandbox() {
    let home = Home::new();
    let daemon = home.daemon_with_pool(1).await;
    daemon.fills_its_pool(1).await;
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().display().to_string();
    let requests = [
        NewSession { memory_bytes: Some(1 << 29), ..NewSession::default() },
        NewSession { pids: Some(100), ..NewSession::default() },
        NewSession { cpus: Some(2.0), ..NewSession::default() },
        NewSession { workspace: Some(own), ..NewSession::default() },
    ];
    let owner = Principal::new(rustix::process::getuid().as_raw());
    for request in requests {
        let client = daemon.makes(owner, request.clone()).await.unwrap();
        let receipts = client.events().into_iter().filter_map(|event| match event {
            EventBody::SandboxReady { receipt, .. } => Some(receipt),
            _ => None,
        });
        let limits = receipts.map(|receipt| receipt.limits).next().unwrap();
        assert!(request.pids.is_none_or(|pids| pids == limits.pids), "{limits:?}");
        assert!(request.cpus.is_none_or(|cpus| (cpus - limits.cpus).abs() < 0.01), "{limits:?}");
    }
    let view = daemon.pool.view().await.unwrap();
    assert_eq!((view.hits, view.waiting), (0, 1));
    // A later sandbox of a session is new, too.
    home.backend.plays("end", &[Step::EndSandbox]);
    let client = daemon.makes_a_session().await;
    daemon.pool_is("another waits", |pool| pool.waiting == 1).await;
    let before = home.backend.started();
    for _ in 0..2 {
        let ticket = client.run("end").await;
        client.result(ticket).await;
    }
    assert!(home.backend.started() > before);
    assert_eq!(daemon.pool.view().await.unwrap().hits, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_pays_for_a_sandbox_from_the_claim_on() {
    let home = Home::new();
    let daemon = home.daemon_with_pool(1).await;
    daemon.fills_its_pool(1).await;
    let used = || [Kind::Memory, Kind::Cpus, Kind::Processes].map(|kind| daemon.ledger.used(OWNER, kind));
    let [memory, cpus, processes] = used();
    daemon.makes_a_session().await;
    assert_eq!(daemon.pool.view().await.unwrap().hits, 1);
    assert_eq!(used(), [memory / 2 * 3, cpus / 2 * 3, processes / 2 * 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_ends_while_it_waits_is_replaced() {
    let home = Home::new();
    let daemon = home.daemon_with_pool(1).await;
    daemon.fills_its_pool(1).await;
    home.backend.kernel().end();
    daemon.pool_is("another waits", |pool| pool.failures == 1 && pool.waiting == 1).await;
    assert_eq!(home.backend.started(), 4);
    assert_eq!(home.backend.living(), 3);
    let waiting = home.workspaces().iter().filter(|name| name.starts_with("pool-")).count();
    assert_eq!(waiting, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_does_not_answer_is_not_given_to_a_session() {
    let home = Home::new();
    let daemon = home.daemon_with_pool(2).await;
    daemon.fills_its_pool(2).await;
    // The one that has waited longest is taken first.
    home.backend.kernel_at(2).freeze(true);
    let client = daemon.makes_a_session().await;
    let ticket = client.run("any").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    let view = daemon.pool.view().await.unwrap();
    assert_eq!((view.hits, view.failures), (2, 1));
    assert!(!home.backend.kernel_at(2).lives());
    assert!(heard_a_cell(&home.backend.kernel_at(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_isolated_otherwise_than_when_it_was_started_is_not_given_to_a_session() {
    let home = Home::new();
    let daemon = home.daemon_with_pool(1).await;
    daemon.fills_its_pool(1).await;
    home.backend.changes_limits();
    daemon.makes_a_session().await;
    assert!(!home.backend.kernel_at(2).lives());
    assert_eq!(home.backend.started(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_removed_when_the_daemon_ends() {
    let home = Home::new();
    let daemon = home.daemon_with_pool(2).await;
    let clients = daemon.fills_its_pool(2).await;
    assert_eq!(home.backend.living(), 4);
    within("the pool is drained", daemon.pool.drain()).await;
    assert_eq!(home.backend.living(), 2);
    let mut left = home.workspaces();
    left.sort();
    let mut known = clients.map(|client| client.id.to_string());
    known.sort();
    assert_eq!(left, known);
    // A session that comes still gets a sandbox.
    daemon.makes_a_session().await;
    assert_eq!(home.backend.living(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_death_of_the_daemon_what_was_claimed_goes_on_and_what_waited_is_reaped() {
    let home = Home::new();
    let daemon = home.daemon_with_pool(1).await;
    daemon.fills_its_pool(1).await;
    let client = daemon.makes_a_session().await;
    let kernel = home.backend.kernel_at(2);
    daemon.pool_is("another waits", |pool| pool.hits == 1 && pool.waiting == 1).await;
    daemon.dies().await;
    assert_eq!(home.backend.living(), 4);
    let daemon = home.daemon_with_pool(1).await;
    let client = daemon.client(client.id);
    client.has_event(|event| matches!(event, EventBody::SandboxAttached)).await;
    assert_eq!(daemon.launcher.reap().await.0, 1);
    assert!(!home.backend.kernel_at(3).lives());
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    assert!(heard_a_cell(&kernel));
}
