//! Tool calls of a runner that have no answer yet, numbered by the guardian itself.
//!
//! A runner's own number of a call cannot be trusted, because user code can write to the channel: an earlier or a later
//! call may have the same number. So the daemon gets a number that the guardian made. The answer goes back with the
//! runner's number, and with the newest cell that the runner had been given when it sent the call, so that the runner
//! does not take it for the answer to a call of a later cell.
//!
//! The kernel's code in a runner limits its calls in flight. User code that writes calls to the descriptor itself may
//! send any number of them; excess calls are answered here, and the daemon does not see them.

use std::collections::BTreeMap;

use serde_json::json;

use crate::controls;
use crate::limits::{CALLS_BYTES, CALLS_REMEMBERED};
use crate::wire::{self, NUMBER_BYTES};

/// Why code that lists variables gets no answer of a tool.
pub const VIEWS_CALL_NOTHING: &str =
    "only a cell can call tools, and this code runs where variables are listed";

/// The calls that a runner sent while one cell was its newest.
#[derive(Debug, Clone, Copy, Default)]
struct Flight {
    /// Sequence number that identifies a flight.
    order: u64,
    cell: u64,
    /// Bytes that the runner had sent before.
    since: u64,
    count: usize,
    size: usize,
    /// A call was refused.
    is_flood: bool,
}

#[derive(Debug)]
struct Call {
    flight: u64,
    cell: u64,
    /// The runner's own number.
    number: u32,
    size: usize,
    /// The daemon was told that nobody waits for the answer.
    is_given_up: bool,
}

/// What becomes of a call that was just received.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun {
    /// The call goes to the daemon, as one of the present cell or of none.
    Passed { is_of_cell: bool },
    /// The guardian answers the call with this message. If `is_of_cell`, it reads no more from the runner while too many
    /// such answers wait there unread.
    Refused { answer: Vec<u8>, is_of_cell: bool },
}

/// The calls of one runner.
#[derive(Debug, Default)]
pub struct Calls {
    /// The calls without an answer, by the guardian's number, so that the oldest is the first.
    open: BTreeMap<u64, Call>,
    present: Flight,
    before: Flight,
}

impl Calls {
    /// Begins a cell: what the runner has sent up to now, read or not, belongs to the time before it.
    pub fn begin_cell(&mut self, cell: u64, sent: u64) {
        self.before = self.present;
        self.present = Flight { order: self.present.order + 1, cell, since: sent, ..Flight::default() };
    }

    /// Takes a call under the guardian's number `call`. `handled` are the bytes up to the end of its message, and
    /// `most` the calls that may be in flight at once; 0 if the runner may make none. The payload holds at least the
    /// runner's number.
    pub fn begin(&mut self, call: u64, payload: &[u8], most: usize, handled: u64) -> Begun {
        let number = payload.first_chunk::<NUMBER_BYTES>().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let is_of_cell = handled > self.present.since;
        let is_present = is_of_cell || self.before.order == self.present.order;
        let flight = if is_present { &mut self.present } else { &mut self.before };
        let why = too_much(flight, payload.len(), most, is_present);
        if let Some(why) = why.filter(|_| controls::holds("calls_in_flight_are_bounded")) {
            flight.is_flood = true;
            let refusal = json!({"type": "tool_failed", "error": {"code": "busy", "message": why}});
            let answer = answer(flight.cell, number, refusal.to_string().as_bytes());
            return Begun::Refused { answer, is_of_cell: is_present };
        }
        flight.count += 1;
        flight.size += payload.len();
        let (flight, cell, size) = (flight.order, flight.cell, payload.len());
        self.open.insert(call, Call { flight, cell, number, size, is_given_up: false });
        if self.open.len() > CALLS_REMEMBERED {
            // The daemon does not answer malformed calls, so their entries would pile up.
            self.open.pop_first();
        }
        Begun::Passed { is_of_cell }
    }

    /// The message that passes the daemon's answer on. `None` if this runner did not make that call, or has its answer.
    pub fn answer(&mut self, call: u64, text: &str) -> Option<Vec<u8>> {
        let known = self.open.remove(&call)?;
        for flight in [&mut self.present, &mut self.before] {
            if flight.order == known.flight {
                flight.count = flight.count.saturating_sub(1);
                flight.size = flight.size.saturating_sub(known.size);
            }
        }
        Some(answer(known.cell, known.number, text.as_bytes()))
    }

    /// The guardian's number of the newest open call to which the runner gave this number, once. The call counts until the
    /// daemon has answered it: otherwise a runner could make any number of calls by giving each of them up.
    pub fn give_up(&mut self, number: u32) -> Option<u64> {
        let is_meant = |known: &Call| known.number == number && !known.is_given_up;
        let (call, known) = self.open.iter_mut().rev().find(|(_, known)| is_meant(known))?;
        known.is_given_up = true;
        Some(*call)
    }
}

fn answer(cell: u64, number: u32, text: &[u8]) -> Vec<u8> {
    wire::pack_parts(wire::to_runner::TOOL_ANSWER, &[&cell.to_be_bytes(), &number.to_be_bytes(), text])
}

fn too_much(flight: &Flight, size: usize, most: usize, is_present: bool) -> Option<String> {
    if flight.is_flood && !is_present {
        return Some("the cell that made this call has ended".into());
    }
    if most == 0 {
        return Some(VIEWS_CALL_NOTHING.into());
    }
    if flight.count >= most {
        return Some(format!(
            "{most} tool calls have no answer yet, and no more may be made at once: wait for some of them"
        ));
    }
    (flight.count > 0 && flight.size + size > CALLS_BYTES).then(|| {
        format!(
            "tool calls that bring {} bytes have no answer yet, and with this one it would be more than \
             {CALLS_BYTES}: wait for some of them",
            flight.size
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: &[u8] = b"\0\0\0\x07{}";

    #[test]
    fn an_answer_goes_back_once_with_the_cell_and_the_runners_number() {
        let mut calls = Calls::default();
        calls.begin_cell(3, 0);
        assert_eq!(calls.begin(10, PAYLOAD, 2, 11), Begun::Passed { is_of_cell: true });
        calls.begin_cell(4, 11);
        let expected = answer(3, 7, b"text");
        assert_eq!((calls.answer(10, "text"), calls.answer(10, "text")), (Some(expected), None));
    }

    #[test]
    fn a_call_is_given_up_once_and_counts_until_it_is_answered() {
        let mut calls = Calls::default();
        calls.begin_cell(3, 0);
        for call in 10..12 {
            assert!(matches!(calls.begin(call, PAYLOAD, 2, 11), Begun::Passed { .. }));
        }
        assert_eq!((calls.give_up(8), calls.give_up(7)), (None, Some(11)));
        assert_eq!((calls.give_up(7), calls.give_up(7)), (Some(10), None));
        assert!(matches!(calls.begin(12, PAYLOAD, 2, 11), Begun::Refused { .. }));
        assert!(calls.answer(11, "text").is_some());
        assert!(matches!(calls.begin(13, PAYLOAD, 2, 11), Begun::Passed { .. }));
    }

    #[test]
    fn what_was_sent_before_a_cell_is_not_of_the_cell() {
        let mut calls = Calls::default();
        calls.begin_cell(1, 0);
        calls.begin_cell(2, 100);
        assert_eq!(calls.begin(1, PAYLOAD, 2, 100), Begun::Passed { is_of_cell: false });
        assert_eq!(calls.begin(2, PAYLOAD, 2, 101), Begun::Passed { is_of_cell: true });
    }

    #[test]
    fn calls_in_flight_are_bounded_in_number_and_size() {
        let mut calls = Calls::default();
        calls.begin_cell(1, 0);
        for call in 0..2 {
            assert!(matches!(calls.begin(call, PAYLOAD, 2, 9), Begun::Passed { .. }));
        }
        assert!(matches!(calls.begin(2, PAYLOAD, 2, 9), Begun::Refused { is_of_cell: true, .. }));
        assert!(calls.answer(0, "").is_some());
        assert!(matches!(calls.begin(3, PAYLOAD, 2, 9), Begun::Passed { .. }));
        let large = vec![0; CALLS_BYTES];
        assert!(matches!(calls.begin(4, &large, 9, 9), Begun::Refused { .. }));
    }

    #[test]
    fn a_runner_that_may_make_no_call_is_told_why() {
        let Begun::Refused { answer, is_of_cell: true } = Calls::default().begin(0, PAYLOAD, 0, 9) else {
            panic!("the call was passed on");
        };
        assert!(String::from_utf8_lossy(&answer).contains("only a cell can call tools"));
    }

    #[test]
    fn a_flood_of_an_ended_cell_is_refused_whatever_has_been_answered() {
        let mut calls = Calls::default();
        calls.begin_cell(1, 0);
        assert!(matches!(calls.begin(0, PAYLOAD, 0, 9), Begun::Refused { .. }));
        calls.begin_cell(2, 100);
        assert!(matches!(calls.begin(1, PAYLOAD, 9, 50), Begun::Refused { is_of_cell: false, .. }));
    }

    #[test]
    fn calls_that_are_never_answered_do_not_pile_up() {
        let mut calls = Calls::default();
        for call in 0..2 * CALLS_REMEMBERED as u64 {
            calls.begin(call, PAYLOAD, usize::MAX, 9);
        }
        assert_eq!(calls.open.len(), CALLS_REMEMBERED);
    }
}
