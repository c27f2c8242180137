//! What is kept of installed packages: for whom, how long, and what goes first.

use serde_json::{Value, json};

use super::helpers::{S, end, list, restart_by, text, value};
use super::many_users::{ALICE, ask, shared};
use super::packages::install;
use crate::support::{Daemon, PackageIndex, engine, eventually};

const DEEP: &str = "import bell_dep.inner as inner; inner.DEEP";
/// What is uploaded; much less than `bell-many` takes, and more than is left.
const UPLOAD_BYTES: usize = 1 << 20;
/// Room beside what is there already.
const LEFT_BYTES: u64 = 64 * 1024;

fn kept(daemon: &Daemon) -> Vec<Value> {
    let answer = daemon.http("GET", "/v1/packages", b"").expect_status(200);
    list(&answer, "sets").to_vec()
}

/// The names of the packages of a set.
fn names(set: &Value) -> Vec<&str> {
    list(set, "packages").iter().map(|package| text(package, "name")).collect()
}

/// The sets that have a package of this name.
fn sets_with(daemon: &Daemon, name: &str) -> Vec<Value> {
    kept(daemon).into_iter().filter(|set| names(set).contains(&name)).collect()
}

fn remove(daemon: &Daemon, session: &str) {
    daemon.http("DELETE", &format!("/v1/sessions/{session}?wait=true"), b"").expect_status(200);
}

/// Waits until nothing uses the set with this package, which takes a moment longer than the removal of its session.
fn is_unused(daemon: &Daemon, name: &str) {
    let is_used = || sets_with(daemon, name).iter().any(|set| set["in_use"] == json!(true));
    eventually("nothing uses it", || (!is_used()).then_some(()));
}

fn used_disk(daemon: &Daemon) -> u64 {
    let quota = daemon.http("GET", "/v1/quota", b"").expect_status(200);
    let disk = list(&quota, "quotas").iter().find(|quota| quota["kind"] == "workspace").expect("that quota");
    disk["used"].as_u64().expect("a number")
}

#[test]
pub fn what_no_session_uses_makes_room_and_what_a_sleeping_session_uses_stays() {
    if !engine() {
        return;
    }
    let mut index = PackageIndex::start();
    let mut daemon = index.daemon("");
    daemon.session(S, json!({"image": "belljar/base", "idle_s": 1}));
    daemon.session("t", json!({"image": "belljar/base"}));
    install(&daemon, S, &["bell-dep"], 200);
    install(&daemon, "t", &["bell-many"], 200);
    remove(&daemon, "t");
    index.stop();
    eventually("the sandbox goes", || {
        let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
        (text(&view, "state") == "asleep").then_some(())
    });
    // The next daemon has almost no room beside all of that.
    let quota = format!("\n[quota]\nworkspace = \"{}B\"\n", used_disk(&daemon) + LEFT_BYTES);
    daemon.kill();
    let config = daemon.home().join("config.toml");
    let before = std::fs::read_to_string(&config).expect("a configuration");
    std::fs::write(config, before + &quota).expect("a configuration");
    daemon.restart();
    eventually("it is known what the session uses", || {
        let set = sets_with(&daemon, "bell-dep").pop()?;
        (set["used_by"] == json!([S]) && set["in_use"] == json!(true)).then_some(())
    });
    assert_eq!(sets_with(&daemon, "bell-many").len(), 1, "nothing needs its room yet");
    let uploaded = daemon.http("PUT", "/v1/sessions/s/files/x", &vec![b'x'; UPLOAD_BYTES]);
    uploaded.expect_status(200);
    eventually("what nothing uses goes", || sets_with(&daemon, "bell-many").is_empty().then_some(()));
    // There is no index to install it from again.
    assert_eq!(value(&daemon, DEEP), "7");
    assert_eq!(sets_with(&daemon, "bell-dep").len(), 1);
    end(&mut daemon, "TERM");
}

#[test]
pub fn kept_packages_are_listed_and_those_that_nothing_uses_are_cleared() {
    if !engine() {
        return;
    }
    let mut index = PackageIndex::start();
    let mut daemon = index.daemon("");
    assert!(daemon.cli(["packages", "ls"]).ok().stderr.contains("belljar install"));
    daemon.session(S, json!({"image": "belljar/base"}));
    daemon.session("t", json!({"image": "belljar/base"}));
    install(&daemon, S, &["bell-dep"], 200);
    install(&daemon, "t", &["bell-set-id"], 200);
    remove(&daemon, "t");
    is_unused(&daemon, "bell-set-id");
    let table = daemon.cli(["packages", "ls"]).ok().stdout;
    let row = |name: &str| table.lines().find(|line| line.contains(name)).expect("a row").to_owned();
    assert!(row("bell-dep 1.0").contains(" s "), "{table}");
    assert!(row("bell-set-id 1.0").contains(" - "), "{table}");
    let bytes = sets_with(&daemon, "bell-set-id")[0]["bytes"].as_u64().expect("a number");
    let before = used_disk(&daemon);
    let said = daemon.cli(["packages", "clear"]).ok().stdout;
    assert!(said.contains(&format!("removed 1 set of packages, {bytes} bytes")), "{said}");
    assert!(said.contains("1 set in use"), "{said}");
    assert!(sets_with(&daemon, "bell-set-id").is_empty());
    assert!(used_disk(&daemon) + bytes <= before, "its bytes are free");
    // The answer that leads to what is in use is kept, and both outlive a death of the daemon.
    index.stop();
    restart_by(&mut daemon, "KILL");
    assert_eq!(value(&daemon, DEEP), "7");
    daemon.session("u", json!({"image": "belljar/base"}));
    assert_eq!(install(&daemon, "u", &["bell-dep"], 200)["cached"], json!(true));
    for session in [S, "u"] {
        remove(&daemon, session);
    }
    is_unused(&daemon, "bell-dep");
    let cleared = daemon.http("DELETE", "/v1/packages", b"").expect_status(200);
    assert_eq!((&cleared["sets"], &cleared["in_use"]), (&json!(1), &json!(0)), "{cleared:#}");
    assert_eq!(kept(&daemon), Vec::<Value>::new());
    end(&mut daemon, "TERM");
}

#[test]
fn kept_packages_of_others_are_for_administrators() {
    if !engine() {
        return;
    }
    let daemon = shared("");
    let nothing = ask(&daemon, ALICE, "GET", "/v1/packages", Value::Null).expect_status(200);
    assert_eq!(nothing, json!({"sets": []}));
    for method in ["GET", "DELETE"] {
        let refused = ask(&daemon, ALICE, method, "/v1/packages?all=true", Value::Null).expect_status(403);
        assert_eq!(text(&refused, "code"), "forbidden", "{refused:#}");
        daemon.http(method, "/v1/packages?all=true", b"").expect_status(200);
    }
}
