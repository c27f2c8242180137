//! What happens to a session in the random tests of its machine, and what an earlier daemon left to it.

use proptest::prelude::*;

use crate::protocol::ask::AskNumber;
use crate::protocol::command::EndCommand;
use crate::protocol::result::Mode;

#[derive(Clone, Debug)]
pub enum Op {
    Cell {
        mode: Mode,
        ask: Option<AskNumber>,
    },
    View {
        patient: bool,
        taken: bool,
    },
    Place,
    WantSandbox,
    /// The sandbox is ready, or could not be started; `wakes` with the variables of a snapshot, and whether cells run again.
    Ready {
        good: bool,
        wakes: Option<bool>,
    },
    /// The snapshot that is being taken was taken, or not.
    SnapshotEnds(bool),
    /// The turn of the snapshot that is to be taken has come.
    SnapshotBegins,
    /// The newest snapshot is removed.
    SnapshotRemoved,
    Sleep,
    /// The sandbox dies; its cells are reported, or never reached it.
    Dies {
        reported: bool,
    },
    /// The variables change between cells.
    Changed,
    Permit(bool),
    Written {
        which: usize,
        in_time: bool,
    },
    Finish(usize),
    PutBack(usize),
    CellUnwritten(usize),
    Interrupt,
    EndCommand {
        which: usize,
        how: EndCommand,
    },
    CancelCells(AskNumber),
    Undo,
    UndoDone,
    Reset {
        replay: bool,
    },
    ResetNoted,
    ReplayWanted,
    ReplayEnded(bool),
    /// The cells of a session that wakes could not run again.
    NotRebuilt,
    Freeze,
    FreezeFailed,
    Thaw,
    Tick(u64),
}

pub fn op() -> impl Strategy<Value = Op> {
    let beside = prop_oneof![Just(Mode::Command), Just(Mode::Background)];
    let mode = prop_oneof![3 => Just(Mode::Main), 3 => Just(Mode::Fork), 3 => beside];
    let how = prop_oneof![Just(EndCommand::Interrupt), Just(EndCommand::Kill)];
    prop_oneof![
        6 => (mode, prop::option::of(1..3_u64)).prop_map(|(mode, ask)| Op::Cell { mode, ask }),
        2 => (any::<bool>(), prop::bool::weighted(0.9)).prop_map(|(patient, taken)| Op::View { patient, taken }),
        1 => Just(Op::Place),
        1 => Just(Op::WantSandbox),
        4 => (prop::bool::weighted(0.9), prop::option::of(any::<bool>())).prop_map(|(good, wakes)| Op::Ready { good, wakes }),
        2 => prop::bool::weighted(0.7).prop_map(Op::SnapshotEnds),
        2 => Just(Op::SnapshotBegins),
        1 => Just(Op::SnapshotRemoved),
        1 => Just(Op::Sleep),
        1 => any::<bool>().prop_map(|reported| Op::Dies { reported }),
        1 => Just(Op::Changed),
        5 => prop::bool::weighted(0.95).prop_map(Op::Permit),
        5 => (0..3_usize, prop::bool::weighted(0.9)).prop_map(|(which, in_time)| Op::Written { which, in_time }),
        4 => (0..5_usize).prop_map(Op::Finish),
        1 => (0..5_usize).prop_map(Op::PutBack),
        1 => (0..5_usize).prop_map(Op::CellUnwritten),
        1 => Just(Op::Interrupt),
        1 => (0..4_usize, how).prop_map(|(which, how)| Op::EndCommand { which, how }),
        1 => (1..3_u64).prop_map(Op::CancelCells),
        1 => Just(Op::Undo),
        1 => Just(Op::UndoDone),
        1 => any::<bool>().prop_map(|replay| Op::Reset { replay }),
        1 => Just(Op::ResetNoted),
        1 => Just(Op::ReplayWanted),
        1 => any::<bool>().prop_map(Op::ReplayEnded),
        1 => Just(Op::NotRebuilt),
        1 => Just(Op::Freeze),
        1 => Just(Op::FreezeFailed),
        1 => Just(Op::Thaw),
        1 => (0..100_u64).prop_map(Op::Tick),
    ]
}

/// The unfinished work of an earlier daemon: the numbers of waiting and of running cells.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Left {
    pub queued: u64,
    pub copies: u64,
    pub commands: u64,
    pub main: bool,
    pub sandbox: bool,
    pub frozen: bool,
    pub reset: bool,
    pub replaying: bool,
    pub unsaved: bool,
}

pub fn left() -> impl Strategy<Value = Option<Left>> {
    let left = (0..3_u64, 0..3_u64, 0..3_u64, any::<[bool; 6]>());
    prop::option::of(left.prop_map(
        |(queued, copies, commands, [main, sandbox, frozen, reset, replaying, unsaved])| Left {
            queued,
            copies,
            commands,
            main,
            sandbox,
            frozen: frozen && sandbox,
            reset,
            replaying,
            unsaved,
        },
    ))
}
