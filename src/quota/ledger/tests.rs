use super::*;
use crate::quota::refusal::Whose;
use proptest::prelude::*;
use std::collections::BTreeMap;

const USERS: u32 = 3;

fn ledger(everyone: &[(Kind, u64)], machine: &[(Kind, u64)]) -> Ledger {
    let limits = |all: &[(Kind, u64)]| all.iter().copied().collect::<Limits>();
    Ledger::new(&Quota { everyone: limits(everyone), machine: limits(machine), ..Quota::default() })
}

fn cell() -> Amounts {
    Amounts::of([(Kind::Cells, 1)])
}

/// Case 43 of `tests/abuse/CATALOGUE.md`.
#[test]
fn exactly_8_of_50_parallel_starts_are_admitted() {
    let ledger = ledger(&[(Kind::Sessions, 8)], &[]);
    let start = |name: String| ledger.take(7, &name, Amounts::of([(Kind::Sessions, 1)]));
    for _ in 0..20 {
        let admitted: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..50).map(|n| scope.spawn(move || start(format!("s{n}")))).collect();
            starts.into_iter().filter_map(|start| start.join().unwrap().ok()).collect()
        });
        assert_eq!(admitted.len(), 8);
        drop(admitted);
        assert_eq!(ledger.used(7, Kind::Sessions), 0);
    }
}

#[test]
fn a_permit_comes_back_when_the_thread_that_had_it_panics() {
    let ledger = ledger(&[(Kind::Cells, 1)], &[]);
    let permit = ledger.take(1, "a", cell()).unwrap();
    let panicked = std::thread::spawn(move || {
        let _permit = permit;
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    assert!(ledger.take(1, "a", cell()).is_ok());
}

#[tokio::test]
async fn who_waits_takes_turns_with_other_users() {
    let ledger = ledger(&[], &[(Kind::Cells, 2)]);
    let first = ledger.take(1, "first", cell()).unwrap();
    let _sure = ledger.take(2, "its sure share", cell()).unwrap();
    let mut many: Vec<PermitWaiter> = (0..20).map(|_| ledger.wait(1, "many", cell()).unwrap()).collect();
    let mut other = ledger.wait(2, "other", cell()).unwrap();
    assert!(other.try_take().is_none());
    drop(first);
    let one: Vec<Permit> = many.iter_mut().filter_map(PermitWaiter::try_take).collect();
    assert_eq!(one.len(), 1);
    assert!(other.try_take().is_none());
    drop(one);
    assert!(other.taken().await.is_some(), "the second turn is the other user's");
}

#[tokio::test]
async fn who_stops_waiting_holds_nobody_up() {
    let ledger = ledger(&[(Kind::Memory, 10)], &[]);
    let memory = |amount| Amounts::of([(Kind::Memory, amount)]);
    let held = ledger.take(1, "a", memory(5)).unwrap();
    let large = ledger.wait(1, "b", memory(10)).unwrap();
    let mut small = ledger.wait(1, "c", memory(5)).unwrap();
    assert!(small.try_take().is_none(), "each user's own order holds");
    drop(large);
    assert!(small.try_take().is_some());
    drop(held);
    assert_eq!(ledger.used(1, Kind::Memory), 0);
}

#[test]
fn what_can_never_be_granted_does_not_wait() {
    let ledger = ledger(&[(Kind::Memory, 10)], &[(Kind::Cells, 0)]);
    let problem = ledger.wait(1, "a", Amounts::of([(Kind::Memory, 11)])).unwrap_err();
    assert_eq!(problem.code, Code::QuotaExceeded);
    assert_eq!(ledger.wait(1, "a", cell()).unwrap_err().code, Code::QuotaExceeded);
    let permit = ledger.take(1, "a", Amounts::of([(Kind::Memory, 10)])).unwrap();
    let waiting: Vec<PermitWaiter> = (0..WAITING_PER_USER)
        .map(|_| ledger.wait(1, "a", Amounts::of([(Kind::Memory, 1)])).unwrap())
        .collect();
    assert_eq!(ledger.wait(1, "a", Amounts::of([(Kind::Memory, 1)])).unwrap_err().code, Code::Busy);
    drop((permit, waiting));
    assert_eq!(ledger.used(1, Kind::Memory), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Start {
        uid: u32,
        memory: u64,
    },
    /// A start that waits for its turn.
    Queue {
        uid: u32,
        memory: u64,
    },
    /// Ends the running one at `index`, modulo their number.
    End(usize),
    StopWaiting(usize),
    /// Ends everything of one user at once, as when its last session crashes.
    Crash(u32),
    /// The daemon restarts: waiters are gone, and what ran is found again.
    Restart,
    SetLimit {
        uid: u32,
        memory: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (uid, memory) = (0..USERS, 1..8_u64);
    let step = prop_oneof![
        4 => (uid.clone(), memory.clone()).prop_map(|(uid, memory)| Step::Start { uid, memory }),
        4 => (uid.clone(), memory.clone()).prop_map(|(uid, memory)| Step::Queue { uid, memory }),
        4 => any::<usize>().prop_map(Step::End),
        2 => any::<usize>().prop_map(Step::StopWaiting),
        1 => uid.clone().prop_map(Step::Crash),
        1 => Just(Step::Restart),
        1 => (uid, 8..20_u64).prop_map(|(uid, memory)| Step::SetLimit { uid, memory }),
    ];
    prop::collection::vec(step, 0..150)
}

/// A running piece of work: its permit, and the amounts that the test expects it to hold.
struct Running {
    uid: u32,
    memory: u64,
    permit: Permit,
}

struct World {
    ledger: Ledger,
    running: Vec<Running>,
    waiting: Vec<(u32, u64, PermitWaiter)>,
    limits: BTreeMap<u32, u64>,
}

const MACHINE_MEMORY: u64 = 24;
const USER_MEMORY: u64 = 12;
const USER_CELLS: u64 = 4;

fn amounts(memory: u64) -> Amounts {
    Amounts::of([(Kind::Cells, 1), (Kind::Memory, memory)])
}

fn limits(memory: u64) -> [(Kind, u64); 2] {
    [(Kind::Cells, USER_CELLS), (Kind::Memory, memory)]
}

impl World {
    fn new() -> Self {
        let ledger = ledger(&limits(USER_MEMORY), &[(Kind::Memory, MACHINE_MEMORY)]);
        Self { ledger, running: Vec::new(), waiting: Vec::new(), limits: BTreeMap::new() }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Start { uid, memory } => {
                if let Ok(permit) = self.ledger.take(uid, "start", amounts(memory)) {
                    self.running.push(Running { uid, memory, permit });
                }
            }
            Step::Queue { uid, memory } => {
                if let Ok(turn) = self.ledger.wait(uid, "queue", amounts(memory)) {
                    self.waiting.push((uid, memory, turn));
                }
            }
            Step::End(index) => {
                if !self.running.is_empty() {
                    drop(self.running.swap_remove(index % self.running.len()).permit);
                }
            }
            Step::StopWaiting(index) => {
                if !self.waiting.is_empty() {
                    drop(self.waiting.swap_remove(index % self.waiting.len()));
                }
            }
            Step::Crash(uid) => self.running.retain(|running| running.uid != uid),
            Step::Restart => {
                let before = std::mem::replace(self, Self::new());
                for (uid, memory) in before.limits {
                    self.step(Step::SetLimit { uid, memory });
                }
                for Running { uid, memory, .. } in before.running {
                    let permit = self.ledger.keep(uid, "kept", amounts(memory));
                    self.running.push(Running { uid, memory, permit });
                }
            }
            Step::SetLimit { uid, memory } => {
                // Limits only grow here, because a limit below what is held takes nothing away.
                let limit = self.limits.entry(uid).or_insert(USER_MEMORY);
                *limit = memory.max(*limit);
                self.ledger.set_limits(uid, limits(*limit).into_iter().collect());
            }
        }
        let granted: Vec<_> = self.waiting.iter_mut().map(|(_, _, turn)| turn.try_take()).collect();
        let waiting = std::mem::take(&mut self.waiting).into_iter().zip(granted);
        for ((uid, memory, turn), permit) in waiting {
            match permit {
                Some(permit) => self.running.push(Running { uid, memory, permit }),
                None => self.waiting.push((uid, memory, turn)),
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut all = 0;
        for uid in 0..USERS {
            let of_user = || self.running.iter().filter(|running| running.uid == uid);
            let (cells, memory) =
                (of_user().count() as u64, of_user().map(|running| running.memory).sum::<u64>());
            // Nothing leaks, nothing is forgotten.
            prop_assert_eq!(self.ledger.used(uid, Kind::Cells), cells);
            prop_assert_eq!(self.ledger.used(uid, Kind::Memory), memory);
            // Nothing is granted beyond the limit.
            prop_assert!(cells <= USER_CELLS);
            prop_assert!(memory <= self.limits.get(&uid).copied().unwrap_or(USER_MEMORY));
            all += memory;
            // A user whose only waiter could be granted does not wait.
            if let Some((_, first, _)) = self.waiting.iter().find(|(owner, ..)| *owner == uid)
                && self.waiting.iter().filter(|(owner, ..)| *owner == uid).count() == 1
            {
                prop_assert!(self.ledger.inner.lock().books.check(uid, &amounts(*first)).is_err());
            }
        }
        prop_assert!(all <= MACHINE_MEMORY);
        Ok(())
    }
}

proptest! {
    #[test]
    fn no_sequence_of_starts_ends_crashes_and_restarts_leaks_or_over_grants(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check()?;
        }
        let ledger = world.ledger.clone();
        drop(world);
        for uid in 0..USERS {
            prop_assert_eq!(ledger.used(uid, Kind::Memory), 0);
        }
    }
}

/// Sessions that rest and cells that are frozen hold their amounts for as long as their users like.
#[test]
fn each_user_has_a_sure_share_of_what_others_have_filled() {
    let ledger = ledger(&[], &[(Kind::Sessions, 8), (Kind::Memory, 4)]);
    let one = |uid: u32, kind: Kind| ledger.take(uid, "a", Amounts::of([(kind, 1)]));
    let _all: Vec<Permit> = (0..8).map(|_| one(1, Kind::Sessions).unwrap()).collect();
    assert_eq!(one(1, Kind::Sessions).unwrap_err().whose, Whose::Machine);
    let _own = [one(2, Kind::Sessions).unwrap(), one(2, Kind::Sessions).unwrap()];
    assert_eq!(one(2, Kind::Sessions).unwrap_err().whose, Whose::Machine);
    // The shares of all users together are bounded, too.
    let _others: Vec<Permit> = (3..9).map(|uid| one(uid, Kind::Sessions).unwrap()).collect();
    assert_eq!(one(9, Kind::Sessions).unwrap_err().whose, Whose::Machine);
    let _memory: Vec<Permit> = (0..4).map(|_| one(1, Kind::Memory).unwrap()).collect();
    assert_eq!(one(2, Kind::Memory).unwrap_err().whose, Whose::Machine, "a machine has no more than it has");
}

#[test]
fn what_can_be_deleted_keeps_no_other_user_from_the_machines_journal() {
    let ledger = ledger(&[], &[(Kind::Journal, 100)]);
    let old = ledger.take(1, "old", Amounts::of([(Kind::Journal, 90)])).unwrap().spare();
    let new = ledger.take(2, "new", Amounts::of([(Kind::Journal, 60)])).unwrap();
    assert_eq!(ledger.room(1, Kind::Journal), 40, "the rest of it has to go");
    drop((old, new));
}

#[test]
fn only_the_user_with_the_most_has_to_stop_when_the_machines_disk_is_full() {
    let ledger = ledger(&[], &[(Kind::Workspace, 100)]);
    let [large, small] = [1, 2].map(|uid| ledger.keep(uid, "w", Amounts::default()));
    large.gauge().measure(Kind::Workspace, 80).unwrap();
    small.gauge().measure(Kind::Workspace, 30).unwrap();
    assert_eq!(large.gauge().measure(Kind::Workspace, 81).unwrap_err().whose, Whose::Machine);
}
