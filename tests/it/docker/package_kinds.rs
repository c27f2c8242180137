//! Packages of many kinds: with compiled parts, with a source only, with names of the standard library, on another host.

use serde_json::{Value, json};
use std::process::Stdio;

use super::archives::{export, import};
use super::asking::events_of;
use super::helpers::{S, end, post, text, value};
use super::packages::install;
use super::repl::Step::Shows;
use super::repl::play;
use crate::support::{Daemon, PackageIndex, engine, eventually};

const HELLO: &str = "import bell_hello; bell_hello.VERSION";

/// An index, and a daemon that uses it with a session; none if there shall be no engine.
fn begin(more: &str) -> Option<(PackageIndex, Daemon)> {
    if !engine() {
        return None;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon(more);
    daemon.session(S, json!({"image": "belljar/base"}));
    Some((index, daemon))
}

/// What a Python says that a cell starts.
fn child_says(daemon: &Daemon, code: &str) -> String {
    let cell = format!(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {}], capture_output=True, text=True).stdout",
        json!(code)
    );
    value(daemon, &cell)
}

fn lines_of(daemon: &Daemon, line: &str) -> String {
    text(&post(daemon, "commands?wait=true", &json!({ "line": line })).expect_status(200), "stdout")
        .to_owned()
}

#[test]
pub fn compiled_wheels_are_installed() {
    let Some((_index, mut daemon)) = begin("") else { return };
    install(&daemon, S, &["bell-native"], 200);
    assert_eq!(value(&daemon, "import bell_native; bell_native.answer()"), "42");
    assert_eq!(child_says(&daemon, "import bell_native; print(bell_native.answer())"), "'42\\n'");
    assert_eq!(lines_of(&daemon, "python3 -c 'import bell_native; print(bell_native.answer())'"), "42\n");
    end(&mut daemon, "TERM");
}

#[test]
pub fn no_package_takes_the_place_of_the_standard_library() {
    let Some((_index, daemon)) = begin("") else { return };
    install(&daemon, S, &["bell-shadow"], 200);
    let shadows = "import bell_shadow, json, colorsys; print([hasattr(each, 'SHADOW') for each in (bell_shadow, json, colorsys)])";
    assert_eq!(text(&daemon.run(S, shadows), "stdout"), "[True, False, False]\n");
    assert_eq!(child_says(&daemon, shadows), "'[True, False, False]\\n'");
    assert_eq!(lines_of(&daemon, &format!("python3 -c \"{shadows}\"")), "[True, False, False]\n");
    daemon.http("POST", "/v1/sessions/s/reset", b"").expect_status(200);
    assert_eq!(text(&daemon.run(S, shadows), "stdout"), "[True, False, False]\n");
}

#[test]
pub fn files_of_an_index_on_another_host_are_fetched() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    index.elsewhere();
    let daemon = index.daemon("");
    daemon.session(S, json!({"image": "belljar/base"}));
    install(&daemon, S, &["bell-hello"], 200);
    assert_eq!(value(&daemon, HELLO), "'2.0'");
}

#[test]
pub fn packages_are_built_from_their_sources_only_where_the_administrator_allows_it() {
    let Some((index, daemon)) = begin("") else { return };
    let request = json!({"packages": ["bell-built"], "sources": true});
    let refused = post(&daemon, "install", &request).expect_status(403);
    assert!(text(&refused, "hint").contains("packages.sources"), "{refused:#}");
    assert_eq!(index.requests(), Vec::<String>::new(), "nothing was asked for");
    let daemon = index.daemon("sources = true\n");
    daemon.session(S, json!({"image": "belljar/base"}));
    let unasked = install(&daemon, S, &["bell-built"], 424);
    assert!(text(&unasked, "hint").contains("--sources"), "{unasked:#}");
    daemon.cli(["install", "-s", S, "--sources", "bell-built"]).ok();
    // Its code ran where no files and no network of anybody are.
    let saw = value(&daemon, "import bell_built; bell_built.SAW");
    let workspace =
        saw.strip_prefix("['kernel,output,relay,task', ").and_then(|rest| rest.strip_suffix(", ['lo']]"));
    assert!(matches!(workspace, Some("False" | "[]")), "{saw}");
    let set = events_of(&daemon, "packages_installed").pop().expect("it is in the journal");
    assert_eq!(set["set"]["sources"], json!(true), "{set:#}");
    // What was allowed once is not allowed for later requests, as those of a model.
    let refused = install(&daemon, S, &["bell-source"], 403);
    assert!(text(&refused, "hint").contains("--sources"), "{refused:#}");
    // What has a wheel comes beside it.
    post(&daemon, "install", &json!({"packages": ["bell-dep"], "sources": true})).expect_status(200);
    assert_eq!(value(&daemon, "import bell_dep.inner, bell_built; bell_dep.inner.DEEP"), "7");
    // An archive does not allow it either, unless it is the own one of who imports it.
    let archive = export(&daemon);
    let refused = import(&daemon, "name=moved", &archive).expect_status(424);
    assert!(text(&refused, "hint").contains("--trust"), "{refused:#}");
    import(&daemon, "name=moved&trust=true", &archive).expect_status(201);
    assert_eq!(text(&daemon.run("moved", "bell_built.SAW"), "/result/repr"), saw);
    let other = index.daemon("");
    other.session(S, json!({"image": "belljar/base"}));
    let refused = other.cli(["install", "-s", S, "--sources", "bell-built"]);
    assert!(refused.stderr.contains("only wheels are installed"), "{refused:?}");
    let refused = import(&other, "name=moved&trust=true", &archive).expect_status(424);
    assert!(text(&refused, "hint").contains("packages.sources"), "{refused:#}");
    // Where all of it has wheels, nothing has to be built, though it was allowed to be.
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
    daemon.session(S, json!({"image": "belljar/base"}));
    post(&daemon, "install", &json!({"packages": ["bell-dep"], "sources": true})).expect_status(200);
    let set = events_of(&daemon, "packages_installed").pop().expect("it is in the journal");
    assert_eq!(set["set"]["sources"], json!(true), "{set:#}");
    import(&other, "name=wheels&trust=true", &export(&daemon)).expect_status(201);
    assert_eq!(text(&other.run("wheels", "import bell_dep.inner; bell_dep.inner.DEEP"), "/result/repr"), "7");
}

#[test]
pub fn what_code_of_packages_left_beside_wheels_is_not_given_to_who_wants_only_wheels() {
    let Some((_index, mut daemon)) = begin("sources = true\nshared = true\n") else { return };
    // The installer turns to an older version with a wheel, but the code of the newest one has run by then.
    post(&daemon, "install", &json!({"packages": ["bell-trap"], "sources": true})).expect_status(200);
    let deep = "import bell_trap, bell_dep.inner; bell_dep.inner.DEEP";
    assert_eq!(value(&daemon, deep), "666", "who allowed it has what it made");
    daemon.session("t", json!({"image": "belljar/base"}));
    let clean = install(&daemon, "t", &["bell-trap"], 200);
    assert_eq!(clean["cached"], json!(false), "{clean:#}");
    assert_eq!(text(&daemon.run("t", deep), "/result/repr"), "7");
    end(&mut daemon, "TERM");
}

#[test]
pub fn the_progress_of_an_installation_names_packages_and_sizes() {
    let Some((index, daemon)) = begin("") else { return };
    index.trickle();
    let steps = [Shows("fetching bell-large \\(38\\.[01] MiB\\); .* downloaded"), Shows("^bell-large 1.0$")];
    play(&daemon, &["install", "-s", S, "bell-large"], &[], &steps);
    let is_told = |event: &Value| text(event, "status").contains("fetching bell-large (38.");
    assert!(events_of(&daemon, "packages_installing").iter().any(is_told));
}

#[test]
pub fn an_installation_goes_on_with_the_next_daemon() {
    let Some((index, mut daemon)) = begin("") else { return };
    daemon.run(S, "x = 41");
    index.slow(true);
    let mut command = daemon.command(["install", "-s", S, "bell-set-id"]);
    let client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("belljar runs");
    eventually("the installer fetches", || {
        index.requests().iter().any(|path| path.starts_with("/files/bell_set")).then_some(())
    });
    daemon.kill();
    index.slow(false);
    daemon.restart();
    let told = client.wait_with_output().expect("it ends");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    assert_eq!(String::from_utf8_lossy(&told.stdout), "bell-set-id 1.0\n");
    assert_eq!(value(&daemon, "import bell_set_id; x + 1"), "42");
    end(&mut daemon, "TERM");
}

/// Only for containers: a jail shows the host, which has its own test without a `uv`.
#[test]
fn an_image_without_a_uv_has_that_of_the_index() {
    if !engine() {
        return;
    }
    let (index, image) = (PackageIndex::start(), PackageIndex::image_without_uv());
    let daemon = index.daemon(&format!("[sandbox]\nimages = [\"{}\"]\n", image.0));
    daemon.session(S, json!({"image": image.0}));
    let fetched = || index.requests().iter().filter(|path| path.starts_with("/files/uv-")).count();
    daemon.run(S, "!pip install bell-hello");
    assert_eq!((value(&daemon, HELLO), fetched()), ("'2.0'".to_owned(), 1));
    assert_eq!(
        lines_of(&daemon, "uv pip install -q bell-set-id; uv pip freeze | grep bell-set"),
        "bell-set-id==1.0\n"
    );
    assert_eq!(fetched(), 1, "it is kept");
    let absent = post(&daemon, "commands?wait=true", &json!({"line": "uv venv x"})).expect_status(200);
    assert!(text(&absent, "stderr").contains("`uv venv x` is not there in this sandbox"), "{absent:#}");
    // Where nothing can be fetched, it is said what is missing.
    let bare = PackageIndex::without_uv();
    let daemon = bare.daemon(&format!("[sandbox]\nimages = [\"{}\"]\n", image.0));
    daemon.session(S, json!({"image": image.0}));
    let failed = install(&daemon, S, &["bell-hello"], 424);
    assert!(text(&failed, "message").contains("there is nothing to install packages with"), "{failed:#}");
}
