use super::*;
use crate::protocol::frames::HostFrame;
use crate::store::Durability;

/// The number of cells: as many as may wait, and one that runs.
const CELLS: usize = 17;
/// Commits of other work that may come in between.
const SLACK: usize = 5;
/// Cells before the counting, until caches and buffers have their sizes.
const WARM_UPS: usize = 10;
/// What the daemon's own threads allocate for a cell: twice of what was counted. The thread of the journal is not one of
/// them.
const ALLOCATIONS: usize = 240;

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

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_takes_few_allocations() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let mut before = 0;
    for number in 0..WARM_UPS + CELLS {
        if number == WARM_UPS {
            before = daemon.allocations.made();
        }
        let ticket = client.run("1 + 1").await;
        client.result(ticket).await;
    }
    let made = daemon.allocations.made() - before;
    assert!(made > CELLS, "nothing is counted");
    assert!(made <= ALLOCATIONS * CELLS, "{made} allocations for {CELLS} cells");
    eprintln!("{made} allocations for {CELLS} cells");
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
