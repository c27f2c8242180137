//! How cells ended whose process an earlier daemon saw die.

use super::*;

#[test]
fn what_the_daemon_of_before_wanted_of_a_cell_is_known() {
    let died = |killed| died(StateAfter::Restored(0), killed);
    let began = [queued(1, Mode::Main), started(1)];
    let only = |more: &[EventBody]| {
        let restored = restored_from(&[&began[..], more].concat());
        restored.running.into_iter().map(|begun| (begun.to_end, begun.died)).next().expect("it runs")
    };
    let (exit_code, after) = (-9, StateAfter::Restored(0));
    let end = |killed: bool| Some(ProcessDeath { exit_code, after, killed, rolled_back: !killed });
    assert_eq!(only(&[]), (None, None));
    assert_eq!(only(&[died(false)]), (None, end(false)));
    assert_eq!(only(&[died(true)]), (None, end(true)));
    assert_eq!(
        only(&[EventBody::Interrupting { cell: 1, command: false }]),
        (Some(EndedBy::Interrupt), None)
    );
    assert_eq!(
        only(&[EventBody::Interrupting { cell: 2, command: false }, EventBody::Reset]),
        (Some(EndedBy::Cancel), None)
    );
}
