//! The pure parts of a session: the machine that decides what it does next (`machine::SessionMachine`), its queue, the
//! rules for its code, the approvals that wait, the outcome of a cell, and the present state derived from its events.
//! Nothing here has side effects; `actors::session` carries them out.

pub mod approvals;
pub mod ask_clock;
pub mod comparison;
pub mod digest;
pub mod machine;
pub mod notices;
pub mod outcome;
pub mod queue;
pub mod replay;
pub mod restore;
pub mod rules;
