//! For any order of events: no approval is lost or decided twice, none waits for a caller that has ended, and a restart
//! at any moment changes nothing.

use proptest::prelude::*;
use std::collections::BTreeSet;

use super::*;
use crate::protocol::ask::{AskEnd, AskOutcome, ReplyCount};
use crate::protocol::chat::Usage;
use crate::protocol::event::ToolOutcome;

const DEADLINE_S: f64 = 60.0;

fn accept() -> Decision {
    Decision::Accept { code: None }
}

fn tool(name: &str) -> Subject {
    Subject::Tool { name: name.into(), arguments: serde_json::Map::new() }
}

fn of_code(cell: CellNumber, call: u64) -> Question {
    Question { ask: None, cell: Some(cell), call: call.to_string(), bound_by: None, subject: tool("pay") }
}

fn of_model(ask: AskNumber, call: &str) -> Question {
    Question { ask: Some(ask), cell: None, call: call.into(), bound_by: None, subject: tool("pay") }
}

fn wanted(approvals: &Approvals, question: Question) -> EventBody {
    let (ask, cell) = (question.ask, question.cell);
    let approval = Approval {
        id: format!("s.{}", approvals.wanted + 1),
        session: SessionId::fresh(),
        session_name: SessionName::parse("s").unwrap(),
        owner: Principal::ANN,
        ask,
        call: Some(question.call),
        cell,
        bound_by: None,
        subject: question.subject,
        asked_at: Moment::now().timestamp(),
        deadline_s: Some(DEADLINE_S),
        by_default: Some(DefaultDecision::Reject),
    };
    EventBody::ApprovalWanted { approval: Box::new(approval) }
}

fn decided(id: &str, decision: Decision) -> EventBody {
    EventBody::ApprovalDecided { id: id.into(), decision, by: Some(Principal::ANN) }
}

fn ask_finished(ask: AskNumber) -> EventBody {
    let (outcome, usage) = (AskOutcome::Cancelled, Usage::default());
    let end = AskEnd {
        outcome,
        answer: None,
        value: None,
        message: None,
        steps: 0,
        usage,
        replies: ReplyCount::default(),
    };
    EventBody::AskFinished { ask, end: Box::new(end) }
}

/// The book, all events that it took, and how often each approval was decided.
#[derive(Default)]
struct World {
    book: Approvals,
    journal: Vec<EventBody>,
    decisions: BTreeMap<String, u32>,
    /// Cells and asks that have ended.
    ended: BTreeSet<(Option<CellNumber>, Option<AskNumber>)>,
}

#[derive(Clone, Debug)]
enum Op {
    Call { cell: CellNumber, call: u64 },
    ModelCall { ask: AskNumber, call: u64 },
    Decide { which: usize, accept: bool },
    Begun { cell: CellNumber, call: u64 },
    Dropped { cell: CellNumber, call: u64 },
    CellEnds(CellNumber),
    AskEnds(AskNumber),
    TimePasses,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let call = || (1..4_u64, 1..4_u64);
    prop_oneof![
        4 => call().prop_map(|(cell, call)| Op::Call { cell, call: cell * 10 + call }),
        3 => call().prop_map(|(ask, call)| Op::ModelCall { ask, call }),
        4 => (0..4_usize, any::<bool>()).prop_map(|(which, accept)| Op::Decide { which, accept }),
        2 => call().prop_map(|(cell, call)| Op::Begun { cell, call: cell * 10 + call }),
        2 => call().prop_map(|(cell, call)| Op::Dropped { cell, call: cell * 10 + call }),
        1 => (1..4_u64).prop_map(Op::CellEnds),
        1 => (1..4_u64).prop_map(Op::AskEnds),
        1 => Just(Op::TimePasses),
        2 => Just(Op::Restart),
    ]
}

impl World {
    fn record(&mut self, event: EventBody) {
        let decided = self.book.take(&event, Moment::now());
        if let EventBody::ApprovalDecided { id, .. } = &event {
            assert_eq!(decided.map(|approval| approval.id).as_ref(), Some(id));
            *self.decisions.entry(id.clone()).or_default() += 1;
        }
        self.journal.push(event);
    }

    fn withdraw(&mut self) {
        for event in self.book.withdrawals() {
            self.record(event);
        }
        assert!(self.book.withdrawals().is_empty());
    }

    fn want(&mut self, question: Question) {
        if self.book.decision(&question).is_none() && self.book.find(&question).is_none() {
            self.record(wanted(&self.book, question.clone()));
            assert!(self.book.find(&question).is_some());
        }
    }

    fn happens(&mut self, op: &Op) {
        match *op {
            Op::Call { cell, call } if !self.ended.contains(&(Some(cell), None)) => {
                self.want(of_code(cell, call));
            }
            Op::ModelCall { ask, call } if !self.ended.contains(&(None, Some(ask))) => {
                self.want(of_model(ask, &call.to_string()));
            }
            Op::Decide { which, accept: yes } => {
                let Some(id) = self.book.iter().nth(which).map(|approval| approval.id.clone()) else {
                    return;
                };
                let decision = if yes { accept() } else { Decision::Reject { reason: None } };
                self.book.check(&id, &decision).unwrap();
                self.record(decided(&id, decision.clone()));
                assert!(self.book.check(&id, &decision).is_err(), "decided twice");
            }
            Op::Begun { cell, call } if self.book.decision(&of_code(cell, call)) == Some(&accept()) => {
                self.record(EventBody::ToolBegun { cell: Some(cell), call, lent: None });
                assert_eq!(self.book.decision(&of_code(cell, call)), None, "a decision counts twice");
            }
            Op::Dropped { cell, call } => {
                self.book.caller_ended(Some(cell), Some(call));
                self.withdraw();
                self.journal.push(EventBody::ToolAnswered { call, outcome: ToolOutcome::Value(1.into()) });
                assert!(self.book.find(&of_code(cell, call)).is_none());
            }
            Op::CellEnds(cell) => {
                self.ended.insert((Some(cell), None));
                self.book.caller_ended(Some(cell), None);
                self.withdraw();
                assert!(self.book.iter().all(|approval| approval.cell != Some(cell)));
                assert!(self.book.decisions.keys().all(|(of, _)| *of != cell));
            }
            Op::AskEnds(ask) => {
                self.ended.insert((None, Some(ask)));
                self.book.ask_ended(ask);
                self.withdraw();
                self.record(ask_finished(ask));
                assert_eq!(self.book.of_ask(ask).count(), 0);
            }
            Op::TimePasses => {
                let late = Instant::now() + Duration::from_secs_f64(DEADLINE_S);
                for (id, decision) in self.book.overdue(late) {
                    self.record(decided(&id, decision));
                }
                assert_eq!(self.book.iter().count(), 0);
            }
            Op::Restart => {
                let mut again = Approvals::default();
                for event in &self.journal {
                    let _ = again.take(event, Moment::now());
                }
                assert_eq!(again.wanted, self.book.wanted);
                assert!(again.iter().eq(self.book.iter()), "other approvals wait");
                // The end of a cell is an event of the session, which this journal leaves out.
                let open = |book: &Approvals| {
                    let open = |(cell, _): &&(CellNumber, u64)| !self.ended.contains(&(Some(*cell), None));
                    book.decisions.keys().filter(open).copied().collect::<Vec<_>>()
                };
                assert_eq!(open(&again), open(&self.book));
                for cell in self.ended.iter().filter_map(|(cell, _)| *cell) {
                    again.caller_ended(Some(cell), None);
                }
                self.book = again;
                assert!(self.book.withdrawals().is_empty(), "{:?}", self.book.withdrawals());
            }
            Op::Call { .. } | Op::ModelCall { .. } | Op::Begun { .. } => {}
        }
    }
}

proptest! {
    #[test]
    fn no_order_of_events_loses_an_approval_or_decides_one_twice(ops in prop::collection::vec(op(), 0..80)) {
        let mut world = World::default();
        for op in &ops {
            world.happens(op);
        }
        let waiting = world.book.iter().count() as u64;
        prop_assert!(world.decisions.values().all(|times| *times == 1), "{:?}", world.decisions);
        prop_assert_eq!(world.decisions.len() as u64 + waiting, world.book.wanted);
        world.happens(&Op::TimePasses);
        prop_assert_eq!(world.decisions.len() as u64, world.book.wanted);
    }
}

fn book(events: impl IntoIterator<Item = EventBody>) -> Approvals {
    let mut book = Approvals::default();
    events.into_iter().for_each(|event| drop(book.take(&event, Moment::now())));
    book
}

#[test]
fn a_decision_counts_until_something_has_come_of_it() {
    let question = of_code(4, 7);
    let asked = wanted(&Approvals::default(), question.clone());
    let before = [asked, decided("s.1", accept())];
    assert_eq!(book(before.clone()).decision(&question), Some(&accept()));
    let answered = EventBody::ToolAnswered { call: 7, outcome: ToolOutcome::Value(1.into()) };
    for event in [EventBody::ToolBegun { cell: Some(4), call: 7, lent: None }, answered] {
        assert_eq!(book(before.iter().cloned().chain([event])).decision(&question), None);
    }
}

#[test]
fn approvals_of_calls_that_have_ended_are_withdrawn() {
    for (call, void) in [(7, 1), (8, 0)] {
        let answered = EventBody::ToolAnswered { call, outcome: ToolOutcome::Value(1.into()) };
        let mut book = book([wanted(&Approvals::default(), of_code(4, 7)), answered]);
        assert_eq!(book.withdrawals().len(), void);
        for event in book.withdrawals() {
            let _ = book.take(&event, Moment::now());
        }
        assert_eq!(book.decision(&of_code(4, 7)), None, "nobody decided");
    }
}

#[test]
fn only_what_fits_the_question_can_be_decided() {
    let book = book([wanted(&Approvals::default(), of_model(1, "a"))]);
    let code = |id: &str, decision: &Decision| book.check(id, decision).map_err(|problem| problem.code);
    assert_eq!(code("s.1", &accept()), Ok(()));
    assert_eq!(code("s.2", &accept()), Err(Code::NoSuchApproval));
    assert_eq!(code("s.1", &Decision::Accept { code: Some("1".into()) }), Err(Code::BadRequest));
    let long = Decision::Respond { text: "x".repeat(DECISION_BYTES + 1) };
    assert_eq!(code("s.1", &long), Err(Code::TooLarge));
}
