use super::*;
use crate::protocol::environment::Environment;

const IDLE: Duration = Duration::from_secs(3600);

fn shelf(size: usize) -> Shelf<u32> {
    Shelf::new(Bounds { size, memory_bytes: 1000, idle: IDLE })
}

fn class(memory_bytes: u64) -> Class {
    let wanted = SandboxRequest {
        image: WantedImage::Any,
        first_image: None,
        memory_bytes,
        cpus: 1.0,
        pids: 64,
        checkpoints: 8,
        checkpoints_at_rest: false,
        keep_cwd: false,
        env: Environment::new(),
    };
    let image = ImageFact { reference: "base".into(), id: "sha256:1".into() };
    Class::new(Backend::Docker, &wanted, image, true)
}

/// Asks so often that sandboxes of the class wait from now on, and gives the time at which one may be started.
fn ask_regularly<T>(shelf: &mut Shelf<T>, class: &Class, now: Instant) -> Instant {
    for _ in 0..ASKED_BEFORE {
        assert!(shelf.claim(class, now).is_none());
    }
    now + QUIET
}

/// Starts all that may be started, and gives how many.
fn fill(shelf: &mut Shelf<u32>, now: Instant) -> u32 {
    let mut started = 0;
    while shelf.next(now, MachineLoad::default()).is_some() {
        started += 1;
        assert_eq!(shelf.next(now, MachineLoad::default()), None, "one at a time");
        assert_eq!(shelf.started(Some(started), now), None);
    }
    started
}

#[test]
fn a_class_is_kept_from_its_second_request_on_and_each_sandbox_is_given_once() {
    let (mut shelf, now) = (shelf(2), Instant::now());
    let plain = class(1);
    assert_eq!(shelf.claim(&plain, now), None);
    assert_eq!(fill(&mut shelf, now + QUIET), 0, "a single session costs nothing more");
    assert_eq!(shelf.claim(&plain, now), None);
    let later = now + QUIET;
    assert_eq!(fill(&mut shelf, later), 2);
    assert_eq!(shelf.claim(&class(2), later), None, "other limits");
    assert_eq!([(); 3].map(|()| shelf.claim(&plain, later)), [Some(1), Some(2), None]);
    assert_eq!(shelf.counts(), Counts { hits: 2, misses: 4, starts: 2, failures: 0 });
}

#[test]
fn another_image_of_the_same_name_is_another_class() {
    let (mut shelf, now) = (shelf(1), Instant::now());
    let later = ask_regularly(&mut shelf, &class(1), now);
    assert_eq!(fill(&mut shelf, later), 1);
    let mut rebuilt = class(1);
    rebuilt.wanted.first_image = Some(ImageFact { reference: "base".into(), id: "sha256:2".into() });
    assert_eq!(shelf.claim(&rebuilt, later), None);
    assert_eq!(shelf.claim(&Class { preloads: false, ..class(1) }, later), None);
    assert_eq!(shelf.claim(&class(1), later), Some(1));
}

#[test]
fn a_start_waits_for_a_quiet_moment_but_not_for_ever() {
    let (mut shelf, now) = (shelf(1), Instant::now());
    let later = ask_regularly(&mut shelf, &class(1), now);
    let busy = MachineLoad { is_busy: true, ..MachineLoad::default() };
    assert_eq!(shelf.next(now, MachineLoad::default()), None, "a request has just come");
    assert_eq!(shelf.next(later, busy), None);
    assert!(shelf.next(now + PATIENCE, busy).is_some());
}

#[test]
fn memory_bounds_what_waits_and_a_machine_that_is_short_of_it_gets_it_back() {
    let (mut shelf, now) = (shelf(3), Instant::now());
    let later = ask_regularly(&mut shelf, &class(1), now);
    let machine = |held_bytes| MachineLoad { held_bytes, next_bytes: 400, ..MachineLoad::default() };
    assert!(shelf.next(later, machine(600)).is_some());
    shelf.started(Some(1), later);
    assert_eq!(shelf.next(later, machine(601)), None);
    assert_eq!(shelf.remove_surplus(later, machine(1000)), [0; 0]);
    assert_eq!(shelf.remove_surplus(later, machine(1001)), [1]);
    assert_eq!(fill(&mut shelf, later), 3);
    let short = MachineLoad { is_short: true, ..MachineLoad::default() };
    assert_eq!(shelf.next(later, short), None);
    assert_eq!(shelf.remove_surplus(later, short), [1]);
    assert_eq!(shelf.remove_surplus(later, short), [2]);
    assert_eq!(shelf.waiting().len(), 1);
}

#[test]
fn classes_that_are_not_asked_for_give_way() {
    let (mut shelf, mut now) = (shelf(1), Instant::now());
    for memory in 0..=CLASSES as u64 {
        now = ask_regularly(&mut shelf, &class(memory), now);
        assert_eq!(fill(&mut shelf, now), 1);
    }
    assert_eq!(shelf.classes(), CLASSES);
    assert_eq!(
        shelf.remove_surplus(now, MachineLoad::default()).len(),
        1,
        "the first class has no place any more"
    );
    assert_eq!(shelf.claim(&class(0), now), None);
    shelf.remove_surplus(now + IDLE / 2, MachineLoad::default());
    assert_eq!(shelf.waiting().len(), CLASSES - 1);
    assert_eq!(shelf.remove_surplus(now + IDLE, MachineLoad::default()).len(), CLASSES - 1);
    assert_eq!(fill(&mut shelf, now + IDLE), 0);
}

#[test]
fn failures_and_deaths_make_the_next_start_wait_longer() {
    let (mut shelf, now) = (shelf(1), Instant::now());
    let mut at = ask_regularly(&mut shelf, &class(1), now);
    for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
        assert!(shelf.next(at, MachineLoad::default()).is_some());
        assert_eq!(shelf.started(None, at), None);
        let pause = Duration::from_secs(pause);
        assert_eq!(shelf.next(at + pause / 2, MachineLoad::default()), None);
        at += pause;
    }
    assert_eq!(fill(&mut shelf, at), 1);
    assert_eq!(shelf.remove_dead(at, |_| false), [1]);
    assert_eq!(shelf.next(at, MachineLoad::default()), None);
    assert_eq!(shelf.counts().failures, 9);
    at += LONGEST_PAUSE;
    assert_eq!(fill(&mut shelf, at), 1);
    assert_eq!(shelf.remove_dead(at, |_| true), [0; 0]);
    shelf.failed(at);
    assert!(shelf.claim(&class(1), at).is_some());
    assert!(
        shelf.next(at + FIRST_PAUSE, MachineLoad::default()).is_some(),
        "one that lived ends the row of failures"
    );
}

#[test]
fn a_closed_pool_gives_and_starts_nothing() {
    let (mut shelf, now) = (shelf(2), Instant::now());
    let later = ask_regularly(&mut shelf, &class(1), now);
    assert!(shelf.next(later, MachineLoad::default()).is_some());
    shelf.started(Some(1), later);
    assert!(shelf.next(later, MachineLoad::default()).is_some());
    assert_eq!(shelf.close(), [1]);
    assert_eq!(shelf.started(Some(2), later), Some(2), "it came too late");
    assert_eq!(shelf.claim(&class(1), later), None);
    assert_eq!(shelf.next(later, MachineLoad::default()), None);
}
