use super::*;
use crate::quota::refusal::LimitOwner;
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
    let start = |name: String| ledger.take(Principal::new(7), &name, Amounts::of([(Kind::Sessions, 1)]));
    for _ in 0..20 {
        let admitted: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..50).map(|n| scope.spawn(move || start(format!("s{n}")))).collect();
            starts.into_iter().filter_map(|start| start.join().unwrap().ok()).collect()
        });
        assert_eq!(admitted.len(), 8);
        drop(admitted);
        assert_eq!(ledger.used(Principal::new(7), Kind::Sessions), 0);
    }
}

#[test]
fn a_permit_comes_back_when_the_thread_that_had_it_panics() {
    let ledger = ledger(&[(Kind::Cells, 1)], &[]);
    let permit = ledger.take(Principal::ANN, "a", cell()).unwrap();
    let panicked = std::thread::spawn(move || {
        let _permit = permit;
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    assert!(ledger.take(Principal::ANN, "a", cell()).is_ok());
}

#[test]
fn new_limits_of_everyone_hold_for_users_without_their_own() {
    let ledger = ledger(&[(Kind::Cells, 1), (Kind::DaemonMemory, 10)], &[]);
    let own = |cells: u64| [(Kind::Cells, cells), (Kind::DaemonMemory, 10)].into_iter().collect::<Limits>();
    ledger.set_limits(Principal::BOB, own(2));
    let _held = ledger.take(Principal::ANN, "a", cell()).unwrap();
    let mut waits = ledger.wait(Principal::ANN, "a", cell()).unwrap();
    ledger.set_everyone(own(2));
    assert!(waits.try_take().is_some(), "who waits is served");
    assert_eq!(ledger.users().into_iter().collect::<Vec<_>>(), [Principal::ANN, Principal::BOB]);
    ledger.set_everyone(own(3));
    let limit = |owner| {
        let usage = ledger.usage(owner).into_iter().find(|usage| usage.kind == Kind::Cells);
        usage.and_then(|usage| usage.limit)
    };
    assert_eq!((limit(Principal::ANN), limit(Principal::BOB)), (Some(3), Some(2)));
}

#[tokio::test]
async fn who_waits_takes_turns_with_other_users() {
    let ledger = ledger(&[], &[(Kind::Cells, 2)]);
    let first = ledger.take(Principal::ANN, "first", cell()).unwrap();
    let _sure = ledger.take(Principal::BOB, "its sure share", cell()).unwrap();
    let mut many: Vec<PermitWaiter> =
        (0..20).map(|_| ledger.wait(Principal::ANN, "many", cell()).unwrap()).collect();
    let mut other = ledger.wait(Principal::BOB, "other", cell()).unwrap();
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
    let permit = ledger.take(Principal::ANN, "a", memory(5)).unwrap();
    let large = ledger.wait(Principal::ANN, "b", memory(10)).unwrap();
    let mut small = ledger.wait(Principal::ANN, "c", memory(5)).unwrap();
    assert!(small.try_take().is_none(), "each user's own order holds");
    drop(large);
    assert!(small.try_take().is_some());
    drop(permit);
    assert_eq!(ledger.used(Principal::ANN, Kind::Memory), 0);
}

#[test]
fn what_can_never_be_granted_does_not_wait() {
    let ledger = ledger(&[(Kind::Memory, 10)], &[(Kind::Cells, 0)]);
    let problem = ledger.wait(Principal::ANN, "a", Amounts::of([(Kind::Memory, 11)])).unwrap_err();
    assert_eq!(problem.code, Code::QuotaExceeded);
    assert_eq!(ledger.wait(Principal::ANN, "a", cell()).unwrap_err().code, Code::QuotaExceeded);
    let permit = ledger.take(Principal::ANN, "a", Amounts::of([(Kind::Memory, 10)])).unwrap();
    let waiting: Vec<PermitWaiter> = (0..WAITING_PER_USER)
        .map(|_| ledger.wait(Principal::ANN, "a", Amounts::of([(Kind::Memory, 1)])).unwrap())
        .collect();
    assert_eq!(
        ledger.wait(Principal::ANN, "a", Amounts::of([(Kind::Memory, 1)])).unwrap_err().code,
        Code::Busy
    );
    drop((permit, waiting));
    assert_eq!(ledger.used(Principal::ANN, Kind::Memory), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Start {
        owner: Principal,
        memory: u64,
    },
    /// A start that waits for its turn.
    Queue {
        owner: Principal,
        memory: u64,
    },
    /// Ends the running one at `index`, modulo their number.
    End(usize),
    StopWaiting(usize),
    /// Ends everything of one user at once, as when its last session crashes.
    Crash(Principal),
    /// The daemon restarts: waiters are gone, and what ran is found again.
    Restart,
    SetLimit {
        owner: Principal,
        memory: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (owner, memory) = ((0..USERS).prop_map(Principal::new), 1..8_u64);
    let step = prop_oneof![
        4 => (owner.clone(), memory.clone()).prop_map(|(owner, memory)| Step::Start { owner, memory }),
        4 => (owner.clone(), memory.clone()).prop_map(|(owner, memory)| Step::Queue { owner, memory }),
        4 => any::<usize>().prop_map(Step::End),
        2 => any::<usize>().prop_map(Step::StopWaiting),
        1 => owner.clone().prop_map(Step::Crash),
        1 => Just(Step::Restart),
        1 => (owner, 8..20_u64).prop_map(|(owner, memory)| Step::SetLimit { owner, memory }),
    ];
    prop::collection::vec(step, 0..150)
}

/// A running piece of work: its permit, and the amounts that the test expects it to hold.
struct Running {
    owner: Principal,
    memory: u64,
    permit: Permit,
}

struct World {
    ledger: Ledger,
    running: Vec<Running>,
    waiting: Vec<(Principal, u64, PermitWaiter)>,
    limits: BTreeMap<Principal, u64>,
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
            Step::Start { owner, memory } => {
                if let Ok(permit) = self.ledger.take(owner, "start", amounts(memory)) {
                    self.running.push(Running { owner, memory, permit });
                }
            }
            Step::Queue { owner, memory } => {
                if let Ok(turn) = self.ledger.wait(owner, "queue", amounts(memory)) {
                    self.waiting.push((owner, memory, turn));
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
            Step::Crash(owner) => self.running.retain(|running| running.owner != owner),
            Step::Restart => {
                let before = std::mem::replace(self, Self::new());
                for (owner, memory) in before.limits {
                    self.step(Step::SetLimit { owner, memory });
                }
                for Running { owner, memory, .. } in before.running {
                    let permit = self.ledger.keep(owner, "kept", amounts(memory));
                    self.running.push(Running { owner, memory, permit });
                }
            }
            Step::SetLimit { owner, memory } => {
                // Limits only grow here, because a limit below what is held takes nothing away.
                let limit = self.limits.entry(owner).or_insert(USER_MEMORY);
                *limit = memory.max(*limit);
                self.ledger.set_limits(owner, limits(*limit).into_iter().collect());
            }
        }
        let granted: Vec<_> = self.waiting.iter_mut().map(|(_, _, turn)| turn.try_take()).collect();
        let waiting = std::mem::take(&mut self.waiting).into_iter().zip(granted);
        for ((owner, memory, turn), permit) in waiting {
            match permit {
                Some(permit) => self.running.push(Running { owner, memory, permit }),
                None => self.waiting.push((owner, memory, turn)),
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut all = 0;
        for owner in (0..USERS).map(Principal::new) {
            let of_user = || self.running.iter().filter(|running| running.owner == owner);
            let (cells, memory) =
                (of_user().count() as u64, of_user().map(|running| running.memory).sum::<u64>());
            // Nothing leaks, nothing is forgotten.
            prop_assert_eq!(self.ledger.used(owner, Kind::Cells), cells);
            prop_assert_eq!(self.ledger.used(owner, Kind::Memory), memory);
            // Nothing is granted beyond the limit.
            prop_assert!(cells <= USER_CELLS);
            prop_assert!(memory <= self.limits.get(&owner).copied().unwrap_or(USER_MEMORY));
            all += memory;
            // A user whose only waiter could be granted does not wait.
            if let Some((_, first, _)) = self.waiting.iter().find(|(user, ..)| *user == owner)
                && self.waiting.iter().filter(|(user, ..)| *user == owner).count() == 1
            {
                prop_assert!(self.ledger.inner.lock().books.check(owner, &amounts(*first)).is_err());
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
        for owner in (0..USERS).map(Principal::new) {
            prop_assert_eq!(ledger.used(owner, Kind::Memory), 0);
        }
    }
}

/// Sessions that rest and cells that are frozen hold their amounts for as long as their users like.
#[test]
fn each_user_has_a_sure_share_of_what_others_have_filled() {
    let ledger = ledger(&[], &[(Kind::Sessions, 8), (Kind::Memory, 4)]);
    let one = |owner: Principal, kind: Kind| ledger.take(owner, "a", Amounts::of([(kind, 1)]));
    let _all: Vec<Permit> = (0..8).map(|_| one(Principal::ANN, Kind::Sessions).unwrap()).collect();
    assert_eq!(one(Principal::ANN, Kind::Sessions).unwrap_err().whose, LimitOwner::Machine);
    let _own = [one(Principal::BOB, Kind::Sessions).unwrap(), one(Principal::BOB, Kind::Sessions).unwrap()];
    assert_eq!(one(Principal::BOB, Kind::Sessions).unwrap_err().whose, LimitOwner::Machine);
    // The shares of all users together are bounded, too.
    let _others: Vec<Permit> =
        (3..9).map(Principal::new).map(|owner| one(owner, Kind::Sessions).unwrap()).collect();
    assert_eq!(one(Principal::new(9), Kind::Sessions).unwrap_err().whose, LimitOwner::Machine);
    let _memory: Vec<Permit> = (0..4).map(|_| one(Principal::ANN, Kind::Memory).unwrap()).collect();
    assert_eq!(
        one(Principal::BOB, Kind::Memory).unwrap_err().whose,
        LimitOwner::Machine,
        "a machine has no more than it has"
    );
}

#[test]
fn what_can_be_deleted_keeps_no_other_user_from_the_machines_journal() {
    let ledger = ledger(&[], &[(Kind::Journal, 100)]);
    let old = ledger.take(Principal::ANN, "old", Amounts::of([(Kind::Journal, 90)])).unwrap().spare();
    let new = ledger.take(Principal::BOB, "new", Amounts::of([(Kind::Journal, 60)])).unwrap();
    assert_eq!(ledger.available_for_spare(Principal::ANN, Kind::Journal), 40, "the rest of it has to go");
    drop((old, new));
}

#[test]
fn only_the_user_with_the_most_has_to_stop_when_the_machines_disk_is_full() {
    let ledger = ledger(&[], &[(Kind::Workspace, 100)]);
    let [large, small] =
        [Principal::ANN, Principal::BOB].map(|owner| ledger.keep(owner, "w", Amounts::default()));
    large.gauge().measure(Kind::Workspace, 80).unwrap();
    small.gauge().measure(Kind::Workspace, 30).unwrap();
    assert_eq!(large.gauge().measure(Kind::Workspace, 81).unwrap_err().whose, LimitOwner::Machine);
}
