use super::*;

fn start(mode: Mode) -> CellStart {
    let timeout = Duration::from_secs(3);
    CellStart { cell: 4, code: "x".into(), mode, timeout, ..CellStart::default() }
}

fn ended(mode: Mode, ending: Ending, cause: Cause) -> (Status, Reason, Option<i32>, StateKind) {
    let changes = Changes { artifacts: Vec::new(), cut: false };
    let result = conclude(start(mode), ending, cause, CellRecord::default(), changes, Duration::ZERO);
    (result.status, result.reason, result.exit_code, result.state.kind)
}

fn by(ended_by: EndedBy) -> Cause {
    Cause { ended_by: Some(ended_by), ..Cause::default() }
}

#[test]
fn a_lost_worker_is_told_by_its_cause() {
    use Mode::{Fork, Main};
    let lost = |exit_code, after| Ending::Lost { exit_code, after, older: false, names: Vec::new() };
    let back = |exit_code| lost(exit_code, StateAfter::Restored(3));
    let none = Cause::default;
    let oom = Cause { out_of_memory: true, ..Cause::default() };
    let pids = Cause { forks_refused: true, ..Cause::default() };
    let (crashed, kept, restored) = (Status::Crashed, StateKind::Kept, StateKind::Restored);
    let cases = [
        (Main, back(139), none(), (crashed, Reason::ExitCall, Some(139), restored)),
        (Main, back(0), none(), (crashed, Reason::ExitCall, Some(0), restored)),
        (Main, back(-11), none(), (crashed, Reason::Signal, Some(-11), restored)),
        (Main, back(-9), oom.clone(), (crashed, Reason::OutOfMemory, Some(-9), restored)),
        (Main, back(-11), oom, (crashed, Reason::Signal, Some(-11), restored)),
        (Main, back(-6), pids, (crashed, Reason::Pids, Some(-6), restored)),
        (
            Main,
            back(-15),
            by(EndedBy::Deadline),
            (Status::Timeout, Reason::CellDeadline, Some(-15), restored),
        ),
        (Main, lost(-9, StateAfter::Lost), none(), (crashed, Reason::Signal, Some(-9), StateKind::Lost)),
        (
            Fork,
            lost(-9, StateAfter::Kept),
            by(EndedBy::Deadline),
            (Status::Timeout, Reason::CellDeadline, Some(-9), kept),
        ),
        (
            Fork,
            lost(0, StateAfter::Kept),
            by(EndedBy::Descriptors(String::new())),
            (crashed, Reason::Descriptors, Some(0), kept),
        ),
        (Main, back(-9), by(EndedBy::Interrupt), (Status::Interrupted, Reason::ByUser, Some(-9), restored)),
        (Main, back(-9), by(EndedBy::Cancel), (Status::Interrupted, Reason::ByCancel, Some(-9), restored)),
    ];
    for (mode, ending, cause, expected) in cases {
        assert_eq!(ended(mode, ending.clone(), cause), expected, "{ending:?}");
    }
}

#[test]
fn the_end_of_a_command_is_that_of_its_process() {
    let lost =
        |exit_code| Ending::Lost { exit_code, after: StateAfter::Kept, older: false, names: Vec::new() };
    let (none, kept) = (Cause::default(), StateKind::Kept);
    let oom = Cause { out_of_memory: true, ..Cause::default() };
    let interrupted = Cause { interrupted: true, ..Cause::default() };
    let pids = Cause { forks_refused: true, ..Cause::default() };
    for (exit_code, cause, status, reason) in [
        (0, &oom, Status::Success, Reason::Ok),
        (3, &interrupted, Status::Failure, Reason::Exit),
        (-15, &none, Status::Crashed, Reason::Signal),
        (-9, &oom, Status::Crashed, Reason::OutOfMemory),
        (137, &oom, Status::Crashed, Reason::OutOfMemory),
        (137, &none, Status::Failure, Reason::Exit),
        (-6, &pids, Status::Crashed, Reason::Pids),
        (-6, &Cause { had_company: true, ..pids.clone() }, Status::Crashed, Reason::Signal),
        (130, &interrupted, Status::Interrupted, Reason::ByUser),
        (-2, &none, Status::Crashed, Reason::Signal),
        (0, &by(EndedBy::Deadline), Status::Timeout, Reason::CellDeadline),
        (-9, &by(EndedBy::Interrupt), Status::Interrupted, Reason::ByUser),
        (1, &by(EndedBy::NoShell(String::new())), Status::Failure, Reason::NoShell),
    ] {
        let found = ended(Mode::Command, lost(exit_code), cause.clone());
        assert_eq!(found, (status, reason, Some(exit_code), kept), "{exit_code} {cause:?}");
    }
}

#[test]
fn a_background_cell_ends_by_an_exception_or_with_its_process_and_says_which() {
    let lost = |after| Ending::Lost { exit_code: -9, after, older: false, names: Vec::new() };
    let (kept, back) = (lost(StateAfter::Kept), lost(StateAfter::Restored(3)));
    let rolled_back = Cause { rolled_back: true, ..Cause::default() };
    let told = |ending: &Ending, cause: Cause| {
        let (status, reason, _, kind) = ended(Mode::Background, ending.clone(), cause);
        (status, reason, kind)
    };
    let (timeout, interrupted) = (Status::Timeout, Status::Interrupted);
    let (was_kept, restored) = (StateKind::Kept, StateKind::Restored);
    assert_eq!(told(&kept, by(EndedBy::Deadline)), (timeout, Reason::CellDeadline, was_kept));
    assert_eq!(told(&back, by(EndedBy::Deadline)), (timeout, Reason::CellDeadline, restored));
    assert_eq!(told(&back, rolled_back.clone()), (interrupted, Reason::RolledBack, restored));
    // What the daemon itself wanted comes first.
    let reset = Cause { rolled_back: true, ..by(EndedBy::Cancel) };
    assert_eq!(told(&back, reset), (interrupted, Reason::ByCancel, restored));
    // So does a cell of the main line that one in the background took along.
    assert_eq!(ended(Mode::Main, back.clone(), rolled_back).1, Reason::RolledBack);
    assert_eq!(told(&back, Cause::default()), (Status::Crashed, Reason::Signal, restored));
}

/// The kernel counts for the whole sandbox.
#[test]
fn what_ran_beside_others_is_not_blamed_alone() {
    let note = |exit_code, cause: Cause| {
        let changes = Changes { artifacts: Vec::new(), cut: false };
        let ending = Ending::Lost { exit_code, after: StateAfter::Kept, older: false, names: Vec::new() };
        let record = CellRecord::default();
        let result = conclude(start(Mode::Command), ending, cause, record, changes, Duration::ZERO);
        (result.reason, result.state.note.unwrap_or_default())
    };
    let oom = Cause { out_of_memory: true, had_company: true, ..Cause::default() };
    let (reason, said) = note(-9, oom.clone());
    assert!(reason == Reason::OutOfMemory && said.contains("which of them took it"), "{said}");
    let told = Cause { told_by_guardian: true, ..oom.clone() };
    assert_eq!(note(-9, told), (Reason::OutOfMemory, String::new()));
    assert_eq!(note(-9, Cause { had_company: false, ..oom }), (Reason::OutOfMemory, String::new()));
    let pids = Cause { forks_refused: true, had_company: true, ..Cause::default() };
    let (reason, said) = note(-6, pids.clone());
    assert!(reason == Reason::Signal && said.contains("limit on processes"), "{said}");
    assert_eq!(note(-6, Cause { had_company: false, ..pids }), (Reason::Pids, String::new()));
}

#[test]
fn calls_that_ended_with_the_cell_are_named() {
    let cause =
        Cause { unanswered_tool_calls: vec!["pay".into(), "install_packages".into()], ..Cause::default() };
    let changes = Changes { artifacts: Vec::new(), cut: false };
    let (start, record) = (start(Mode::Main), CellRecord::default());
    let result = conclude(start, Ending::Cancelled, cause, record, changes, Duration::ZERO);
    let note = result.state.note.unwrap_or_default();
    assert!(note.contains("ended with the cell: pay, install_packages."), "{note}");
    assert!(note.contains("`belljar install` takes none"), "{note}");
}

#[test]
fn a_lost_sandbox_loses_the_state_in_every_mode() {
    let end = SandboxEnd { running: false, exit_code: Some(137), out_of_memory: true };
    let gone = Ending::SandboxGone { end: Some(end) };
    assert_eq!(
        ended(Mode::Fork, gone, Cause::default()),
        (Status::Crashed, Reason::OutOfMemory, None, StateKind::Lost)
    );
    let gone = Ending::SandboxGone { end: None };
    assert_eq!(ended(Mode::Main, gone, Cause::default()).1, Reason::SandboxLost);
}
