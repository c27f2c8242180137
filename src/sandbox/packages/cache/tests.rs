use super::*;
use crate::protocol::quota::Kind;
use crate::sandbox::packages::charges::disk;
use crate::sandbox::packages::tree;

const KEPT_BYTES: u64 = 400;

fn settings(text: &str) -> crate::config::Settings {
    crate::config::load_text(Path::new("c.toml"), text).unwrap().settings
}

fn cache(home: &Path, more: &str) -> PackageCache {
    let settings = settings(&format!("[packages]\n{more}"));
    PackageCache::new(home.join("packages"), &settings.packages, Principal::ROOT)
}

fn ledger() -> Ledger {
    Ledger::new(&settings("").quota)
}

/// Keeps a set, which is used as long as the answer is held.
fn put(cache: &PackageCache, user: &UserCache, ledger: &Ledger, key: &str) -> CopyUse {
    let made = user.own.join("drafts").join(key);
    std::fs::create_dir_all(made.join(SITE)).unwrap();
    std::fs::write(made.join(SITE).join("x.py"), "1").unwrap();
    let copied = Copied { bytes: KEPT_BYTES, ..Copied::default() };
    cache.keep(user, ledger, &made, key, &copied, None).unwrap()
}

fn answer(key: Option<&str>) -> Answer {
    Answer {
        key: key.map(str::to_owned),
        packages: Vec::new(),
        bytes: KEPT_BYTES,
        in_image: Vec::new(),
        replaced: Vec::new(),
        pinned: Vec::new(),
    }
}

#[test]
fn the_least_recently_used_goes_first_and_answers_go_with_their_files() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), "cache = \"1KiB\"\n"), ledger());
    let user = cache.of(Principal::ANN, false).unwrap();
    for key in ["a1", "b2"] {
        drop(put(&cache, &user, &ledger, key));
        cache.remember(&user, &ledger, Some((key, &answer(Some(key))))).unwrap();
    }
    let old = std::fs::File::options().write(true).open(user.find("b2").unwrap().note_file).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(user.answer("a1").is_some(), "which is a use");
    drop(put(&cache, &user, &ledger, "c3"));
    assert!(user.answer("b2").is_none() && user.answer("a1").is_some() && user.find("c3").is_some());
    assert!(user.find("../a1").is_none());
    cache.remember(&user, &ledger, None).unwrap();
    assert_eq!(entries(&user.folder.join("requests")).count(), 1, "the answer that leads nowhere is gone");
}

#[test]
fn caches_are_private_unless_the_administrator_shares_them() {
    let home = tempfile::tempdir().unwrap();
    let (private, ledger) = (cache(home.path(), ""), ledger());
    drop(put(&private, &private.of(Principal::ANN, false).unwrap(), &ledger, "a1"));
    assert!(private.of(Principal::BOB, false).unwrap().find("a1").is_none());
    let shared = cache(home.path(), "shared = true\n");
    let (ann, bob) = (shared.of(Principal::ANN, false).unwrap(), shared.of(Principal::BOB, false).unwrap());
    drop(put(&shared, &ann, &ledger, "b2"));
    assert!(bob.find("b2").is_some());
    // The program that installs, and the folders in which it does, are nobody else's even then.
    assert_ne!(ann.uv(), bob.uv());
    assert_ne!(ann.own, bob.own);
}

#[test]
fn built_packages_are_their_users_own_also_where_the_cache_is_shared() {
    let home = tempfile::tempdir().unwrap();
    let (shared, ledger) = (cache(home.path(), "shared = true\n"), ledger());
    let ann = shared.of(Principal::ANN, true).unwrap();
    drop(put(&shared, &ann, &ledger, "a1"));
    shared.remember(&ann, &ledger, Some(("b2", &answer(Some("a1"))))).unwrap();
    assert!(shared.of(Principal::ANN, true).unwrap().answer("b2").is_some());
    let others = [(Principal::ANN, false), (Principal::BOB, false), (Principal::BOB, true)];
    for other in others.map(|(owner, built)| shared.of(owner, built).unwrap()) {
        assert!(other.find("a1").is_none() && other.answer("b2").is_none());
    }
    assert!(ledger.used(Principal::ANN, Kind::Workspace) >= KEPT_BYTES, "who pays for it, too");
}

#[test]
fn everything_is_charged_to_the_user_and_a_shared_cache_to_the_daemon() {
    let home = tempfile::tempdir().unwrap();
    let (private, ledger) = (cache(home.path(), ""), ledger());
    let used = |ledger: &Ledger, owner| ledger.used(owner, Kind::Workspace);
    let ann = private.of(Principal::ANN, false).unwrap();
    drop(put(&private, &ann, &ledger, "a1"));
    assert_eq!(used(&ledger, Principal::ANN), KEPT_BYTES);
    // An answer without files, and the program, take their blocks.
    private.remember(&ann, &ledger, Some(("r1", &answer(None)))).unwrap();
    assert_eq!(used(&ledger, Principal::ANN), KEPT_BYTES + tree::disk_bytes(1));
    std::fs::write(ann.uv(), "uv").unwrap();
    private.remember(&ann, &ledger, None).unwrap();
    let all = KEPT_BYTES + 2 * tree::disk_bytes(1);
    assert_eq!(used(&ledger, Principal::ANN), all);
    // The next daemon charges the same.
    let next = self::ledger();
    let again = cache(home.path(), "");
    again.charge_all(&next);
    assert_eq!((used(&next, Principal::ANN), used(&next, Principal::ROOT)), (all, 0));
    let shared = cache(home.path(), "shared = true\n");
    let bob = shared.of(Principal::BOB, false).unwrap();
    drop(put(&shared, &bob, &ledger, "b2"));
    shared.remember(&bob, &ledger, Some(("r2", &answer(Some("b2"))))).unwrap();
    assert_eq!(used(&ledger, Principal::BOB), 0);
    assert_eq!(used(&ledger, Principal::ROOT), KEPT_BYTES + tree::disk_bytes(1));
}

#[test]
fn an_answer_without_room_is_not_written_and_a_program_is_charged_before_its_draft_is_not() {
    let home = tempfile::tempdir().unwrap();
    let settings = settings("[quota]\nworkspace = \"8KiB\"\n");
    let (cache, ledger) = (cache(home.path(), ""), Ledger::new(&settings.quota));
    let ann = cache.of(Principal::ANN, false).unwrap();
    let full = ledger.take(Principal::ANN, "a workspace", disk(8000)).unwrap();
    cache.remember(&ann, &ledger, Some(("r1", &answer(None)))).unwrap();
    assert!(ann.answer("r1").is_none());
    drop(full);
    cache.remember(&ann, &ledger, Some(("r1", &answer(None)))).unwrap();
    assert!(ann.answer("r1").is_some());
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), tree::disk_bytes(1));
    let made = home.path().join("made");
    std::fs::write(&made, "uv").unwrap();
    cache.keep_uv(&ann, &ledger, &made).unwrap();
    assert!(ann.has_uv());
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 2 * tree::disk_bytes(1));
}

#[test]
fn a_full_cache_gives_up_what_nothing_uses_then_what_sessions_use_and_nothing_that_is_read() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), "cache = \"1000B\"\n"), ledger());
    let user = cache.of(Principal::ANN, false).unwrap();
    let name = SessionName::parse("s").unwrap();
    for key in ["a1", "b2"] {
        drop(put(&cache, &user, &ledger, key));
    }
    let used = cache.use_again(&user, &ledger, "a1", &name).unwrap();
    assert!(used.is_some());
    let note = std::fs::File::options().write(true).open(user.find("a1").unwrap().note_file).unwrap();
    note.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    // Somebody looks at the cache, who is not waited for.
    let looked = user.uses.read();
    let missing = Missing { of_payers: BTreeMap::from([(Principal::ANN, 1)]), of_all: 0 };
    assert_eq!(cache.make_room(&cache.caches(), cache.unused_in(&user), &missing), (0, 0));
    drop(looked);
    let _read = put(&cache, &user, &ledger, "c3");
    assert_eq!(cache.sets_of(Principal::ANN), ["a1", "c3"], "the session's set is older, but in use");
    let _read_too = put(&cache, &user, &ledger, "d4");
    assert_eq!(cache.sets_of(Principal::ANN), ["c3", "d4"]);
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 2 * KEPT_BYTES, "nobody has the first");
    drop(put(&cache, &user, &ledger, "e5"));
    assert_eq!(cache.sets_of(Principal::ANN), ["c3", "d4", "e5"]);
    assert_eq!(entries(&user.own.join("drafts")).count(), 0);
}

#[test]
fn unused_sets_make_room_in_quotas_and_those_of_unread_sessions_do_not() {
    let home = tempfile::tempdir().unwrap();
    let quota = settings("[quota]\nworkspace = \"1000B\"\n").quota;
    let (cache, ledger) = (cache(home.path(), ""), Ledger::new(&quota));
    let user = cache.of(Principal::ANN, false).unwrap();
    for key in ["a1", "b2"] {
        drop(put(&cache, &user, &ledger, key));
    }
    let used = put(&cache, &user, &ledger, "c3");
    let old = std::fs::File::options().write(true).open(user.find("b2").unwrap().note_file).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    // A user who has no room but that of unused packages has it at once, and they go.
    let work = ledger.take(Principal::ANN, "work", disk(200)).unwrap();
    let name = SessionName::parse("s").unwrap();
    let unread = cache.unread_session(Some(Principal::ANN));
    cache.make_room_in_quotas(&ledger);
    assert_eq!(cache.sets_of(Principal::ANN), ["a1", "b2", "c3"]);
    drop(unread);
    cache.make_room_in_quotas(&ledger);
    assert_eq!(cache.sets_of(Principal::ANN), ["a1", "c3"]);
    // What is used again by a session of before is not removed, though it is too much.
    let again = cache.use_again(&user, &ledger, "a1", &name).unwrap();
    assert!(again.is_some() && cache.use_again(&user, &ledger, "b2", &name).unwrap().is_none());
    let more = ledger.keep(Principal::ANN, "measured", disk(500));
    cache.make_room_in_quotas(&ledger);
    assert_eq!(cache.sets_of(Principal::ANN), ["a1", "c3"]);
    drop((again, used, work, more));
    assert!(ledger.take(Principal::ANN, "work", disk(1000)).is_ok());
}

#[test]
fn what_cannot_be_read_is_neither_moved_nor_said_to_be_gone() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), ""), ledger());
    let user = cache.of(Principal::ANN, false).unwrap();
    drop(put(&cache, &user, &ledger, "a1"));
    let note = user.find("a1").unwrap().note_file;
    let text = std::fs::read(&note).unwrap();
    // Reading a folder fails, which says nothing about the note.
    std::fs::remove_file(&note).unwrap();
    std::fs::create_dir(&note).unwrap();
    let name = SessionName::parse("s").unwrap();
    assert_eq!(cache.unfinished(), Vec::<PathBuf>::new());
    cache.charge_all(&ledger);
    assert!(user.sets().is_empty() && user.find("a1").is_none());
    assert!(cache.use_again(&user, &ledger, "a1", &name).is_err());
    std::fs::remove_dir(&note).unwrap();
    std::fs::write(&note, text).unwrap();
    assert!(cache.use_again(&user, &ledger, "a1", &name).unwrap().is_some());
}

#[test]
fn a_set_with_a_damaged_note_is_no_set_and_is_installed_again() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), ""), ledger());
    let user = cache.of(Principal::ANN, false).unwrap();
    let name = SessionName::parse("s").unwrap();
    drop(put(&cache, &user, &ledger, "a1"));
    let note = user.find("a1").unwrap().note_file;
    for damage in ["half".to_owned(), "x".repeat(usize::try_from(NOTE_BYTES).unwrap() + 1)] {
        std::fs::write(&note, damage).unwrap();
        assert!(cache.use_again(&user, &ledger, "a1", &name).unwrap().is_none());
        drop(put(&cache, &user, &ledger, "a1"));
        assert!(cache.use_again(&user, &ledger, "a1", &name).unwrap().is_some());
        assert_eq!(entries(&user.own.join("drafts")).count(), 0, "nothing is left of the damaged one");
    }
}

#[test]
fn a_removal_that_comes_late_leaves_what_was_installed_again() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), ""), ledger());
    let user = cache.of(Principal::ANN, false).unwrap();
    drop(put(&cache, &user, &ledger, "a1"));
    let listed = cache.unused_in(&user).remove(0);
    // Another removal has taken the name, and is not done with the files.
    let moved = user.take_name("a1", &listed.copy).unwrap().unwrap();
    assert!(!cache.remove(&user, &listed));
    assert!(cache.charges.is_unused(&listed.copy), "it is not stuck");
    let used = put(&cache, &user, &ledger, "a1");
    let again = user.find("a1").unwrap().note;
    assert_ne!(again.copy, listed.copy);
    assert!(!cache.remove(&user, &listed));
    assert_eq!(user.find("a1").unwrap().note, again);
    assert!(moved.exists());
    drop(used);
}

#[test]
fn what_keeps_its_name_because_that_cannot_be_taken_is_removed_later() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), ""), ledger());
    let user = cache.of(Principal::ANN, false).unwrap();
    drop(put(&cache, &user, &ledger, "a1"));
    let listed = cache.unused_in(&user).remove(0);
    let drafts = user.own.join("drafts");
    std::fs::remove_dir(&drafts).unwrap();
    std::fs::write(&drafts, "in the way").unwrap();
    assert!(!cache.remove(&user, &listed));
    assert!(user.find("a1").is_some() && cache.charges.is_unused(&listed.copy));
    std::fs::remove_file(&drafts).unwrap();
    assert!(cache.remove(&user, &listed));
    assert!(user.find("a1").is_none());
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
}

#[test]
fn a_full_cache_gives_up_the_next_set_where_the_oldest_is_read() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), "cache = \"1000B\"\n"), ledger());
    let user = cache.of(Principal::ANN, false).unwrap();
    let name = SessionName::parse("s").unwrap();
    let _read = put(&cache, &user, &ledger, "a1");
    drop(put(&cache, &user, &ledger, "b2"));
    let _used = cache.use_again(&user, &ledger, "b2", &name).unwrap();
    let note = std::fs::File::options().write(true).open(user.find("a1").unwrap().note_file).unwrap();
    note.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    drop(put(&cache, &user, &ledger, "c3"));
    assert_eq!(cache.sets_of(Principal::ANN), ["a1", "c3"]);
}

impl PackageCache {
    /// The keys of a user's sets.
    fn sets_of(&self, owner: Principal) -> Vec<String> {
        let mut keys: Vec<String> =
            self.of(owner, false).unwrap().sets().into_iter().map(|(key, _)| key).collect();
        keys.sort();
        keys
    }
}

#[test]
fn answers_are_bounded() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), ""), ledger());
    let user = cache.of(Principal::ANN, false).unwrap();
    for number in 0..ANSWERS + 3 {
        user.write_answer(&number.to_string(), &serde_json::to_vec(&answer(None)).unwrap()).unwrap();
    }
    cache.remember(&user, &ledger, Some(("last", &answer(None)))).unwrap();
    assert_eq!(entries(&user.folder.join("requests")).count(), ANSWERS);
    assert!(user.answer("last").is_some());
    let many = PackageVersion { name: "x".repeat(100), version: "1".into() };
    let large = Answer { in_image: vec![many; 20_000], ..answer(None) };
    cache.remember(&user, &ledger, Some(("large", &large))).unwrap();
    assert!(user.answer("large").is_none());
}

#[test]
fn what_an_earlier_daemon_left_unfinished_is_found_and_a_set_is_never_replaced() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), ""), ledger());
    let user = cache.of(Principal::ANN, false).unwrap();
    let left = user.own.join("drafts/left");
    std::fs::create_dir(&left).unwrap();
    drop(put(&cache, &user, &ledger, "a1"));
    let first = user.find("a1").unwrap().note;
    drop(put(&cache, &user, &ledger, "a1"));
    assert_eq!(user.find("a1").unwrap().note, first);
    assert!(cache.unfinished().contains(&left));
    // What has no note, and so could not be charged, is no set, and is removed with the rest.
    std::fs::create_dir_all(user.folder.join("sets/bad1/site")).unwrap();
    let unfinished = cache.unfinished();
    assert!(!user.folder.join("sets/bad1").exists() && user.find("a1").is_some());
    assert!(unfinished.iter().any(|folder| folder.join("site").is_dir()), "{unfinished:?}");
}
