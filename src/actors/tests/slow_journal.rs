use super::*;
use crate::protocol::frames::HostFrame;
use crate::protocol::problem::Code;

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_the_journal_does_not_have_in_time_is_done_but_not_reported_as_a_success() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let held = client.journal.hold_writer();
    let reset = |reply_to| SessionMsg::Reset { replay: None, reply_to };
    let problem = within("a reset", ask(&client.session, reset)).await.unwrap_err();
    assert_eq!(problem.code, Code::Storage, "{problem:?}");
    let resets = |frame: &HostFrame| matches!(frame, HostFrame::Reset { .. });
    home.backend.kernel().hears(resets).await;
    drop(held);
    client.reset().await;
}
