use super::*;
use crate::protocol::frames::HostFrame;
use crate::store::Durability;

/// As many as may wait, and one that runs.
const CELLS: usize = 17;
/// Commits of other work that may come in between.
const SLACK: usize = 5;

/// Otherwise each cell waits for the journal once more than it has to.
#[tokio::test(flavor = "multi_thread")]
async fn a_cell_takes_two_commits() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let before = daemon.journal.commits().len();
    for _ in 0..CELLS {
        let ticket = client.run("1 + 1").await;
        client.result(ticket).await;
    }
    let commits = daemon.journal.commits().len() - before;
    assert!(commits <= 2 * CELLS + SLACK, "{commits} commits");
}

/// The end of a cell and the start of the next one are one commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_waited_takes_two_commits_too() {
    let home = Home::new();
    home.backend.plays("first", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let before = daemon.journal.commits().len();
    let first = client.run("first").await;
    let mut tickets = Vec::new();
    for _ in 1..CELLS {
        tickets.push(client.run("1 + 1").await);
    }
    let kernel = home.backend.kernel();
    kernel.hears(|frame| matches!(frame, HostFrame::Cell { .. })).await;
    kernel.lets_go_on(1);
    client.result(first).await;
    for ticket in tickets {
        client.result(ticket).await;
    }
    let commits = daemon.journal.commits().len() - before;
    assert!(commits <= 2 * CELLS + SLACK, "{commits} commits");
}

/// A commit that survives a loss of power takes several times as long as one that does not.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_call_that_may_change_something_waits_for_the_disk() {
    let home = Home::new();
    home.backend.plays("look", &[Step::Call("session_info")]);
    home.backend.plays("act", &[Step::Call("answer")]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    for (code, full) in [("look", false), ("act", true)] {
        let before = daemon.journal.commits().len();
        let ticket = client.run(code).await;
        client.result(ticket).await;
        let commits = daemon.journal.commits().split_off(before);
        assert_eq!(commits.contains(&Durability::Full), full, "{code}: {commits:?}");
    }
}
