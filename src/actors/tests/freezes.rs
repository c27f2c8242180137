use super::*;
use crate::protocol::result::Status;
use tokio::sync::oneshot;

/// Asks for a freeze and does not wait for it.
fn begin_freeze(client: &Client) -> oneshot::Receiver<Result<(), Problem>> {
    let (sender, outcome) = oneshot::channel();
    client.session.cast(SessionMsg::Freeze { reply_to: sender.into() }).unwrap();
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_was_frozen_goes_on_when_it_is_thawed() {
    let home = Home::new();
    home.backend.plays("long", &[Step::Wait]);
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let ticket = client.run("long").await;
    let kernel = home.backend.kernel();
    kernel.runs(1).await;
    client.freeze().await;
    kernel.lets_go_on(1);
    assert_eq!(client.state().await, SessionState::Frozen);
    client.thaw().await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    assert_eq!(home.backend.freezes(), [true, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_freeze_fails_is_not_frozen() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let fails = home.backend.next_freeze_fails();
    let frozen = begin_freeze(&client);
    fails.send(()).unwrap();
    assert!(within("the freeze has failed", frozen).await.unwrap().is_err());
    assert_eq!(client.state().await, SessionState::Idle);
    let ticket = client.run("next").await;
    assert_eq!(client.result(ticket).await.status, Status::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_that_fails_late_does_not_take_back_a_newer_one() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let fails = home.backend.next_freeze_fails();
    let first = begin_freeze(&client);
    client.thaw().await;
    let second = begin_freeze(&client);
    fails.send(()).unwrap();
    assert!(within("the first freeze has failed", first).await.unwrap().is_err());
    within("the second freeze is done", second).await.unwrap().unwrap();
    assert_eq!(client.state().await, SessionState::Frozen);
    // The sandbox is frozen and thawed in the order of the requests, so after these no other change is under way.
    client.thaw().await;
    client.freeze().await;
    assert_eq!(home.backend.freezes(), [false, true, false, true]);
}
