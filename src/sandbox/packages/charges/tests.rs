use super::*;

const BYTES: u64 = 600;

fn ledger() -> Ledger {
    let settings = crate::config::load_text("c.toml".as_ref(), "[quota]\nworkspace = \"1000B\"\n").unwrap();
    Ledger::new(&settings.settings.quota)
}

fn note(copy: &str) -> SetNote {
    SetNote { copy: copy.into(), bytes: BYTES, ..SetNote::default() }
}

/// Whether a user could get so many bytes now.
fn has_room(ledger: &Ledger, owner: Principal, bytes: u64) -> bool {
    ledger.take(owner, "a test", disk(bytes)).is_ok()
}

#[test]
fn a_copy_is_paid_once_by_each_user_until_its_last_name_is_gone() {
    let (ledger, charges) = (ledger(), Charges::default());
    let used = |owner| ledger.used(owner, Kind::Workspace);
    let take = |owner, copy: &str| {
        charges.use_copy(owner, &note(copy), &ledger, Pay::IfThereIsRoom, UseKind::Reader)
    };
    let (first, second) = (take(Principal::ANN, "a").unwrap(), take(Principal::ANN, "a").unwrap());
    assert_eq!(used(Principal::ANN), BYTES);
    assert!(take(Principal::ANN, "b").is_err(), "another copy of the same packages is paid, too");
    let _other = take(Principal::BOB, "a").unwrap();
    drop(first);
    assert_eq!((used(Principal::ANN), used(Principal::BOB)), (BYTES, BYTES));
    drop(second);
    assert_eq!(used(Principal::ANN), 0);
    assert!(take(Principal::ANN, "b").is_ok());
}

#[test]
fn what_is_kept_and_not_used_is_spare_and_is_paid_for_before_it_is_used_again() {
    let (ledger, charges) = (ledger(), Charges::default());
    let session = SessionName::parse("s").unwrap();
    charges.keep(Principal::ANN, "key", &note("a"), &ledger);
    assert!(charges.is_unused("a") && has_room(&ledger, Principal::ANN, 1000));
    assert_eq!(charges.payers_of_unused(), BTreeSet::from([Principal::ANN]));
    let take =
        |pay| charges.use_copy(Principal::ANN, &note("a"), &ledger, pay, UseKind::Session(session.clone()));
    let used = take(Pay::IfThereIsRoom).unwrap();
    assert!(!charges.is_unused("a") && !has_room(&ledger, Principal::ANN, 500));
    assert_eq!(charges.users("a"), BTreeMap::from([(Principal::ANN, BTreeSet::from([session.clone()]))]));
    drop(used);
    assert!(charges.users("a").is_empty());
    let work = ledger.take(Principal::ANN, "work", disk(500)).unwrap();
    assert!(take(Pay::IfThereIsRoom).is_err());
    assert!(charges.is_unused("a"), "who was refused does not use it");
    // A session that had it before has it again.
    let used = take(Pay::Anyway).unwrap();
    drop(work);
    // What could not be removed counts, although nobody uses it.
    charges.is_stuck("a");
    drop(used);
    assert!(!charges.is_unused("a") && !has_room(&ledger, Principal::ANN, 500));
    charges.is_removed("a", "key");
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
}

#[test]
fn in_a_shared_cache_each_user_pays_for_what_its_sessions_use_and_keeps_it_there() {
    let (ledger, charges) = (ledger(), Charges::default());
    let used = |owner| ledger.used(owner, Kind::Workspace);
    charges.keep(Principal::ROOT, "key", &note("a"), &ledger);
    let of_ann =
        charges.use_copy(Principal::ANN, &note("a"), &ledger, Pay::IfThereIsRoom, UseKind::Reader).unwrap();
    assert_eq!((used(Principal::ROOT), used(Principal::ANN)), (BYTES, BYTES));
    assert!(!charges.is_unused("a") && !has_room(&ledger, Principal::ROOT, 500));
    drop(of_ann);
    assert_eq!((used(Principal::ROOT), used(Principal::ANN)), (BYTES, 0));
    assert!(charges.is_unused("a") && has_room(&ledger, Principal::ROOT, 500));
}

#[test]
fn nothing_is_spare_before_it_is_known_what_sessions_use() {
    let (ledger, charges) = (ledger(), Charges::default());
    let all = charges.unread(None);
    for (owner, copy) in [(Principal::ANN, "a"), (Principal::BOB, "b")] {
        charges.keep(owner, "key", &note(copy), &ledger);
    }
    let is_unused = || ["a", "b"].map(|copy| charges.is_unused(copy));
    assert_eq!(is_unused(), [false, false]);
    assert!(!has_room(&ledger, Principal::ANN, 500));
    let of_ann = [charges.unread(Some(Principal::ANN)), charges.unread(Some(Principal::ANN))];
    drop(all);
    assert_eq!(is_unused(), [false, true], "the sessions of another user are known");
    let [first, second] = of_ann;
    drop(first);
    assert_eq!(is_unused(), [false, true]);
    drop(second);
    assert_eq!(is_unused(), [true, true]);
    assert!(has_room(&ledger, Principal::ANN, 500));
}

#[test]
fn what_is_removed_is_paid_by_sandboxes_that_have_it_and_not_by_sessions_without_one() {
    let (ledger, charges) = (ledger(), Charges::default());
    let name = SessionName::parse("s").unwrap();
    charges.keep(Principal::ANN, "key", &note("a"), &ledger);
    let take =
        |kind| charges.use_copy(Principal::ANN, &note("a"), &ledger, Pay::IfThereIsRoom, kind).unwrap();
    let (session, sandbox) = (take(UseKind::Session(name.clone())), take(UseKind::Sandbox(name)));
    assert!(!charges.is_read("a"));
    drop(take(UseKind::Reader));
    charges.is_removed("a", "key");
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), BYTES);
    drop(sandbox);
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
    drop(session);
}

/// Otherwise the set goes again while the session sleeps, as if nothing used it.
#[test]
fn a_session_whose_set_was_removed_uses_it_again_when_it_is_installed_again() {
    let (ledger, charges) = (ledger(), Charges::default());
    let name = SessionName::parse("s").unwrap();
    let used_by = |copy| charges.users(copy).into_keys().collect::<Vec<_>>();
    charges.keep(Principal::ROOT, "key", &note("a"), &ledger);
    let kind = UseKind::Session(name);
    let sleeping = charges.use_copy(Principal::ANN, &note("a"), &ledger, Pay::IfThereIsRoom, kind).unwrap();
    charges.is_removed("a", "key");
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
    // The same key in another user's cache is another set.
    charges.keep(Principal::BOB, "key", &note("b"), &ledger);
    charges.keep(Principal::ROOT, "other", &note("c"), &ledger);
    assert_eq!((used_by("b"), used_by("c")), (vec![], vec![]));
    // Who has no room for it waits on.
    let work = ledger.take(Principal::ANN, "work", disk(500)).unwrap();
    charges.keep(Principal::ROOT, "key", &note("d"), &ledger);
    assert!(used_by("d").is_empty() && charges.is_unused("d"));
    drop(work);
    for copy in ["e", "f"] {
        charges.keep(Principal::ROOT, "key", &note(copy), &ledger);
        assert_eq!((used_by(copy), charges.is_unused(copy)), (vec![Principal::ANN], false));
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), BYTES);
        if copy == "e" {
            charges.is_removed(copy, "key");
        }
    }
    drop(sleeping);
    assert!(charges.is_unused("f"));
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
}
