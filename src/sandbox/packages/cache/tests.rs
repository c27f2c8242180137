use super::*;

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

fn put(cache: &PackageCache, user: &UserCache, ledger: &Ledger, key: &str) {
    let made = user.own.join("drafts").join(key);
    std::fs::create_dir_all(made.join(SITE)).unwrap();
    std::fs::write(made.join(SITE).join("x.py"), "1").unwrap();
    let copied = Copied { bytes: KEPT_BYTES, ..Copied::default() };
    cache.keep(user, ledger, &made, key, &copied).unwrap();
}

fn answer(key: Option<&str>) -> Answer {
    Answer {
        key: key.map(str::to_owned),
        packages: Vec::new(),
        bytes: KEPT_BYTES,
        in_image: Vec::new(),
        replaced: Vec::new(),
    }
}

#[test]
fn the_least_recently_used_goes_first_and_answers_go_with_their_files() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), "cache = \"1KiB\"\n"), ledger());
    let user = cache.of(Principal::ANN).unwrap();
    for key in ["a1", "b2"] {
        put(&cache, &user, &ledger, key);
        cache.remember(&user, &ledger, Some((key, &answer(Some(key))))).unwrap();
    }
    let old = std::fs::File::options().write(true).open(user.find("b2").unwrap().note_file).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(user.answer("a1").is_some(), "which is a use");
    put(&cache, &user, &ledger, "c3");
    assert!(user.answer("b2").is_none() && user.answer("a1").is_some() && user.find("c3").is_some());
    assert!(user.find("../a1").is_none());
    cache.remember(&user, &ledger, None).unwrap();
    assert_eq!(entries(&user.folder.join("requests")).count(), 1, "the answer that leads nowhere is gone");
}

#[test]
fn caches_are_private_unless_the_administrator_shares_them() {
    let home = tempfile::tempdir().unwrap();
    let (private, ledger) = (cache(home.path(), ""), ledger());
    put(&private, &private.of(Principal::ANN).unwrap(), &ledger, "a1");
    assert!(private.of(Principal::BOB).unwrap().find("a1").is_none());
    let shared = cache(home.path(), "shared = true\n");
    let (ann, bob) = (shared.of(Principal::ANN).unwrap(), shared.of(Principal::BOB).unwrap());
    put(&shared, &ann, &ledger, "b2");
    assert!(bob.find("b2").is_some());
    // The program that installs, and the folders in which it does, are nobody else's even then.
    assert_ne!(ann.uv(), bob.uv());
    assert_ne!(ann.own, bob.own);
}

#[test]
fn everything_is_charged_to_the_user_and_a_shared_cache_to_the_daemon() {
    let home = tempfile::tempdir().unwrap();
    let (private, ledger) = (cache(home.path(), ""), ledger());
    let used = |ledger: &Ledger, owner| ledger.used(owner, Kind::Workspace);
    let ann = private.of(Principal::ANN).unwrap();
    put(&private, &ann, &ledger, "a1");
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
    let bob = shared.of(Principal::BOB).unwrap();
    put(&shared, &bob, &ledger, "b2");
    shared.remember(&bob, &ledger, Some(("r2", &answer(Some("b2"))))).unwrap();
    assert_eq!(used(&ledger, Principal::BOB), 0);
    assert_eq!(used(&ledger, Principal::ROOT), KEPT_BYTES + tree::disk_bytes(1));
}

#[test]
fn an_answer_without_room_is_not_written_and_a_program_is_charged_before_its_draft_is_not() {
    let home = tempfile::tempdir().unwrap();
    let settings = settings("[quota]\nworkspace = \"8KiB\"\n");
    let (cache, ledger) = (cache(home.path(), ""), Ledger::new(&settings.quota));
    let ann = cache.of(Principal::ANN).unwrap();
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
fn what_a_cache_removes_is_charged_as_long_as_somebody_has_it() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), "cache = \"500B\"\n"), ledger());
    let user = cache.of(Principal::ANN).unwrap();
    put(&cache, &user, &ledger, "a1");
    let note = user.find("a1").unwrap().note;
    let shown = cache.charges.of_copy(Principal::ANN, &note, |_| panic!("it is charged already")).unwrap();
    put(&cache, &user, &ledger, "b2");
    assert!(user.find("a1").is_none());
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 2 * KEPT_BYTES);
    drop(shown);
    assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), KEPT_BYTES);
}

#[test]
fn answers_are_bounded() {
    let home = tempfile::tempdir().unwrap();
    let (cache, ledger) = (cache(home.path(), ""), ledger());
    let user = cache.of(Principal::ANN).unwrap();
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
    let user = cache.of(Principal::ANN).unwrap();
    let left = user.own.join("drafts/left");
    std::fs::create_dir(&left).unwrap();
    put(&cache, &user, &ledger, "a1");
    let first = user.find("a1").unwrap().note;
    put(&cache, &user, &ledger, "a1");
    assert_eq!(user.find("a1").unwrap().note, first);
    assert!(cache.unfinished().contains(&left));
    // What has no note, and so could not be charged, is no set.
    std::fs::create_dir_all(user.folder.join("sets/bad1/site")).unwrap();
    cache.charge_all(&ledger);
    assert!(!user.folder.join("sets/bad1").exists() && user.find("a1").is_some());
}
