//! Images that users build for themselves, of packages from an index that the test starts, or of a Dockerfile.

use serde_json::{Value, json};
use std::process::Command;

use super::helpers::{list, text};
use super::many_users::{ALICE, CAROL, ask, shared};
use super::packages::install;
use crate::support::{Daemon, PackageIndex, docker, engine, eventually};

/// A name for an image that no other test uses; gone at the end with what it stands for. A test makes it before its daemon,
/// so that no container has the image by then.
pub struct Name(pub String);

impl Name {
    pub fn fresh() -> Self {
        Self(format!("bj-own-{}", uuid::Uuid::new_v4().simple()))
    }

    /// The id of the image that has the name now.
    pub fn id(&self) -> Option<String> {
        let shown = Command::new("docker").args(["image", "inspect", "-f", "{{.Id}}", &self.0]).output();
        let shown = shown.expect("the docker command is there");
        shown.status.success().then(|| String::from_utf8_lossy(&shown.stdout).trim().to_owned())
    }

    /// Gives the name to another image, as every user of the engine can.
    fn give_away(&self) -> String {
        let container = docker(["create", "belljar/base", "true"]);
        let image = docker(["commit", "--change", "LABEL test=another", &container, &self.0]);
        docker(["rm", &container]);
        image
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", "-f", &self.0]).output();
    }
}

/// The list of builds that the daemon keeps.
pub fn builds(daemon: &Daemon) -> Vec<Value> {
    let list = std::fs::read_to_string(daemon.home().join("images.json")).unwrap_or_else(|_| "[]".into());
    serde_json::from_str::<Vec<Value>>(&list).expect("a list")
}

/// Has a Dockerfile built, and gives the id of the image.
#[track_caller]
pub fn built(daemon: &Daemon, name: &Name, dockerfile: &str) -> String {
    let last = build(daemon, &json!({"name": name.0, "dockerfile": dockerfile}));
    assert_eq!(last["done"], json!(true), "{last:#}");
    name.id().expect("it is there")
}

/// Asks for a build, and gives the last line of the answer.
pub fn build(daemon: &Daemon, request: &Value) -> Value {
    let answer = daemon.http("POST", "/v1/images/build", request.to_string().as_bytes());
    let text = answer.text();
    serde_json::from_str(text.lines().last().expect("an answer")).expect("JSON")
}

#[track_caller]
fn value(daemon: &Daemon, session: &str, code: &str) -> String {
    text(&daemon.run(session, code), "/result/repr").to_owned()
}

#[test]
fn packages_are_built_into_an_image_that_needs_no_index() {
    if !engine() {
        return;
    }
    let mut index = PackageIndex::start();
    let name = Name::fresh();
    let mut daemon = index.daemon("");
    let image = name.0.as_str();
    let build = ["image", "build", image, "--from", "belljar/base"];
    let built = daemon.cli(build.into_iter().chain(["--with", "bell-hello<2", "--with", "bell-set-id"])).ok();
    assert_eq!(built.stdout, format!("{image}:latest\n"));
    let first = name.id().expect("it is there");
    let quota = daemon.cli(["quota"]).ok().stdout;
    assert!(quota.contains(&format!("image {image}")), "it is charged: {quota}");

    daemon.session("s", json!({"image": image}));
    let import = "import bell_hello, bell_dep.inner; bell_hello.VERSION";
    assert_eq!(value(&daemon, "s", import), "'1.0'");
    daemon.run("s", "import subprocess, sys, os\nrun = lambda *words: subprocess.run(words, capture_output=True, text=True)");
    // Every start of Python finds them, and their programs are on the path, after those of the image.
    let isolated = "run('python3', '-I', '-c', 'import bell_dep.inner as i; print(i.DEEP)').stdout";
    assert_eq!(value(&daemon, "s", isolated), "'7\\n'");
    assert_eq!(value(&daemon, "s", "run('bell-hello').stdout"), "'hello 1.0\\n'");
    let facts = "s = os.stat(bell_hello.__file__); (s.st_uid, s.st_gid, oct(s.st_mode & 0o7777))";
    assert_eq!(value(&daemon, "s", facts), "(0, 0, '0o644')");
    let program = "oct(os.stat('/usr/lib/belljar/site/bell_set_id/run.sh').st_mode & 0o7777)";
    assert_eq!(value(&daemon, "s", program), "'0o755'");
    // An installation knows them as packages of the image.
    let request = json!({"packages": ["bell-dep"]}).to_string();
    let known = daemon.http("POST", "/v1/sessions/s/install", request.as_bytes()).expect_status(200);
    assert_eq!(text(&list(&known, "in_image")[0], "name"), "bell-dep", "{known:#}");
    assert_eq!(list(&known, "packages").len(), 0, "{known:#}");

    // Neither the container nor the labels of it are left, so the reaper of no daemon takes a container of the image.
    assert_eq!(daemon.containers().len(), 1, "that of the session");
    let labels = docker(["image", "inspect", "-f", "{{json .Config.Labels}}", image]);
    let labels: Value = serde_json::from_str(&labels).expect("JSON");
    assert_eq!((text(&labels, "belljar.instance"), text(&labels, "belljar.sandbox")), ("", ""), "{labels}");

    // Nothing in it says where the packages came from.
    let facts = docker(["image", "inspect", image]) + &docker(["history", "--no-trunc", image]);
    let traces = index.traces();
    assert!(facts.contains(&first) && !traces.iter().any(|trace| facts.contains(trace)), "{facts}");
    let look = "files = [os.path.join(folder, name) for folder, _, names in os.walk('/usr/lib/belljar/site') for name in names]\n\
                contents = {file: open(file, 'rb').read() for file in files}\n";
    let found = format!(
        "{look}[(file, trace) for trace in {traces:?} for file in files if trace.encode() in contents[file]], len(files) > 5"
    );
    assert_eq!(value(&daemon, "s", &found), "([], True)");

    // A file of requirements makes another one of the same name; the session keeps its own.
    let file = daemon.home().join("requirements.txt");
    std::fs::write(&file, "# mine\nbell-hello  # the newest\n").expect("a file");
    daemon.cli(build.into_iter().chain(["--requirements", file.to_str().expect("UTF-8")])).ok();
    let second = name.id().expect("it is there");
    assert_ne!(first, second);
    index.stop();
    daemon.session("t", json!({"image": format!("{image}:latest")}));
    assert_eq!(value(&daemon, "t", import), "'2.0'");
    daemon.remove_sandboxes();
    assert_eq!(value(&daemon, "s", import), "'1.0'");
    let receipt = |session: &str| {
        daemon.http("GET", &format!("/v1/sessions/{session}/receipt"), b"").expect_status(200)
    };
    assert_eq!(text(&receipt("s"), "/image/id"), first);

    let shown = daemon.cli(["image", "ls"]).ok().stdout;
    assert!(shown.lines().any(|line| line.contains(image) && line.contains("root")), "{shown}");
    let shown = daemon.cli(["image", "show", image]).ok().stdout;
    assert!(shown.contains("of belljar/base with bell-hello") && shown.contains("(and 1 that"), "{shown}");

    // It stays while sessions use it, also for the next daemon.
    daemon.kill();
    daemon.restart();
    let busy = daemon.cli(["image", "rm", image]).exits(125).stderr;
    assert!(busy.contains("is used by the sessions") && busy.contains("`t`"), "{busy}");
    for session in ["s", "t"] {
        daemon.http("DELETE", &format!("/v1/sessions/{session}?wait=true"), b"").expect_status(200);
    }
    daemon.cli(["image", "rm", image]).ok();
    assert_eq!(name.id(), None);
    eventually("the older one goes, too", || builds(&daemon).is_empty().then_some(()));
    assert!(
        !Command::new("docker").args(["image", "inspect", &first]).output().expect("docker").status.success()
    );
    let refused = daemon.http("POST", "/v1/sessions", json!({"image": image}).to_string().as_bytes());
    assert_eq!(text(&refused.expect_status(403), "code"), "image_forbidden");
    assert!(!daemon.cli(["quota"]).ok().stdout.contains(&format!("image {image}")));
    daemon.assert_sound();
}

#[test]
fn a_version_that_the_image_has_in_another_is_told_and_a_reset_replaces_it() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let name = Name::fresh();
    let daemon = index.daemon("");
    let image = name.0.as_str();
    daemon.cli(["image", "build", image, "--from", "belljar/science", "--with", "bell-hello<2"]).ok();
    daemon.session("s", json!({"image": image}));
    let hello = "import bell_hello; bell_hello.VERSION";
    // The index has no `pandas`, which is no reason why the conflict would not be told.
    for packages in [&["bell-hello>=2"][..], &["pandas", "bell-hello>=2"]] {
        let conflict = install(&daemon, "s", packages, 409);
        assert_eq!(text(&conflict, "code"), "package_conflict", "{conflict:#}");
        let message = text(&conflict, "message");
        assert!(message.contains("`bell-hello` 1.0 is there, 2.0 is needed"), "{message}");
        assert!(text(&conflict, "hint").contains("--reset"), "{conflict:#}");
    }
    assert_eq!(value(&daemon, "s", hello), "'1.0'", "nothing has changed");
    let told = daemon.cli(["install", "-s", "s", "--reset", "pandas", "bell-hello>=2"]).ok();
    assert!(told.stderr.contains("bell-hello 1.0 by 2.0"), "{told:?}");
    assert_eq!(value(&daemon, "s", hello), "'2.0'");
    assert_eq!(value(&daemon, "s", "import pandas; pandas.__name__"), "'pandas'");
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
    daemon.cli(["image", "rm", image]).ok();
}

#[test]
fn what_cannot_be_built_is_refused_by_name_and_leaves_nothing() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let name = Name::fresh();
    let daemon = index.daemon("deny = [\"bell-denied\"]\n");
    let image = name.0.as_str();
    let refused = |request: Value, status: u16| {
        daemon.http("POST", "/v1/images/build", request.to_string().as_bytes()).expect_status(status)
    };
    for (wrong, word) in [
        (json!({"name": "belljar/x", "packages": ["bell-dep"]}), "Belljar's own"),
        (json!({"name": "host.example/x", "packages": ["bell-dep"]}), "registry"),
        (json!({"name": format!("{image}@sha256:aa"), "packages": ["bell-dep"]}), "digest"),
        (json!({"name": image}), "what the image is made of"),
        (json!({"name": image, "packages": ["bell-dep"], "dockerfile": "FROM x"}), "not of both"),
        (json!({"name": image, "from": "belljar/base", "dockerfile": "FROM x"}), "begins with"),
        (json!({"name": image, "packages": ["--index-url=https://localhost/"]}), "option"),
    ] {
        let problem = refused(wrong, 400);
        assert!(text(&problem, "message").contains(word), "{problem:#}");
        assert!(problem["hint"].is_string(), "{problem:#}");
    }
    assert_eq!(text(&refused(json!({"name": image, "packages": ["bell-denied"]}), 403), "code"), "forbidden");
    for arguments in [
        &["image", "build", "plots"][..],
        &["image", "build", "plots", "--from", "belljar/base"],
        &["image", "build", "plots", "--with", "a", "--dockerfile", "x"],
        &["image", "build", "plots", "--rootfs", "--with", "a"],
    ] {
        daemon.cli(arguments).exits(64);
    }
    assert_eq!(index.requests(), Vec::<String>::new(), "nothing was begun");
    for (packages, code, word) in [
        (json!(["bell-source"]), "install_failed", "bell-source"),
        (json!(["bell-needs-denied"]), "forbidden", "bell-denied"),
        (json!(["bell-nowhere"]), "install_failed", "bell-nowhere"),
    ] {
        let last = build(&daemon, &json!({"name": image, "from": "belljar/base", "packages": packages}));
        assert_eq!(text(&last, "/problem/code"), code, "{last:#}");
        assert!(text(&last, "/problem/message").contains(word), "{last:#}");
    }
    let from = build(&daemon, &json!({"name": image, "from": "evil/image", "packages": ["bell-dep"]}));
    assert_eq!(text(&from, "/problem/code"), "image_forbidden", "{from:#}");
    assert_eq!((name.id(), builds(&daemon), daemon.containers()), (None, Vec::new(), Vec::new()));

    // A name that another user gave to an image of the engine is not taken away.
    let foreign = name.give_away();
    let last = build(&daemon, &json!({"name": image, "from": "belljar/base", "packages": ["bell-dep"]}));
    assert!(text(&last, "/problem/message").contains("was not built here"), "{last:#}");
    assert_eq!(name.id(), Some(foreign));
    let none = daemon.cli(["image", "rm", image]).exits(125).stderr;
    assert!(none.contains("you have built no image"), "{none}");
}

#[test]
fn a_dockerfile_is_built_and_a_wrong_one_is_explained() {
    if !engine() {
        return;
    }
    let name = Name::fresh();
    let daemon = Daemon::start();
    let image = name.0.as_str();
    let file = daemon.home().join("Dockerfile");
    std::fs::write(
        &file,
        "FROM belljar/base\nUSER 0\nRUN echo made > /opt/made && chmod 444 /opt/made\nUSER 65534\n",
    )
    .expect("a file");
    let path = file.to_str().expect("UTF-8");
    let built = daemon.cli(["image", "build", image, "--dockerfile", path]).ok();
    assert!(built.stderr.contains("RUN echo made"), "the steps are told: {built:?}");
    let kernels = || std::fs::read_dir(daemon.home().join("kernel")).expect("a folder").count();
    let kernels_before = kernels();
    daemon.session("s", json!({"image": image}));
    assert_eq!(value(&daemon, "s", "open('/opt/made').read()"), "'made\\n'");
    assert_eq!(kernels(), kernels_before + 1);
    let jail = json!({"image": image, "backend": "bubblewrap"}).to_string();
    let jail = daemon.http("POST", "/v1/sessions", jail.as_bytes()).expect_status(424);
    assert!(text(&jail, "hint").contains("--backend docker"), "{jail:#}");
    let first = name.id();

    for (wrong, word) in [
        ("FROM belljar/base\nRUN echo why it fails; exit 3\n", "returned a non-zero code: 3"),
        ("FROM belljar/base\nFLY away\n", "unknown instruction: FLY"),
        ("RUN true\n", "no build stage"),
        ("FROM belljar/base\nCOPY config.toml /x\n", "config.toml"),
    ] {
        std::fs::write(&file, wrong).expect("a file");
        let failed = daemon.cli(["image", "build", image, "--dockerfile", path]).exits(125);
        assert!(failed.stderr.contains(word), "{word}: {failed:?}");
    }
    assert_eq!((name.id(), builds(&daemon).len()), (first, 1), "what was there stays");
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
    daemon.cli(["image", "rm", image]).ok();
    assert_eq!(kernels(), kernels_before, "what was compiled for it goes, too");
}

#[test]
fn a_name_that_stands_for_another_image_by_now_is_refused() {
    if !engine() {
        return;
    }
    let name = Name::fresh();
    let daemon = Daemon::start();
    let image = name.0.as_str();
    let last = build(&daemon, &json!({"name": image, "dockerfile": "FROM belljar/base\n"}));
    assert_eq!(last["done"], json!(true), "{last:#}");
    daemon.session("s", json!({"image": image}));
    let other = name.give_away();
    let request = json!({"image": image}).to_string();
    for request in [request.clone(), json!({"image": image, "backend": "docker"}).to_string()] {
        let refused = daemon.http("POST", "/v1/sessions", request.as_bytes()).expect_status(403);
        let message = text(&refused, "message");
        assert!(text(&refused, "code") == "image_forbidden" && message.contains(image), "{refused:#}");
    }
    // The session goes on with the image that it began with.
    daemon.remove_sandboxes();
    assert_eq!(value(&daemon, "s", "6 * 7"), "42");
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
    daemon.cli(["image", "rm", image]).ok();
    assert_eq!(name.id(), Some(other), "it is not Belljar's to remove");
}

#[test]
fn an_image_is_built_by_administrators_and_is_its_builders_alone() {
    if !engine() {
        return;
    }
    let name = Name::fresh();
    let daemon = shared("");
    let request = json!({"name": name.0, "dockerfile": "FROM belljar/base\n"});
    let refused = ask(&daemon, ALICE, "POST", "/v1/images/build", request.clone()).expect_status(403);
    assert!(text(&refused, "message").contains("only administrators"), "{refused:#}");
    let built = ask(&daemon, CAROL, "POST", "/v1/images/build", request);
    assert!(built.text().contains("\"done\":true"), "{}", built.text());
    let session =
        |user, name: &str| ask(&daemon, user, "POST", "/v1/sessions", json!({"image": name, "name": "s"}));
    session(CAROL, &name.0).expect_status(201);
    let theirs = session(ALICE, &name.0).expect_status(403);
    assert_eq!(text(&theirs, "code"), "image_forbidden");
    let seen = |user| ask(&daemon, user, "GET", "/v1/images", Value::Null).text().contains(&name.0);
    assert!(seen(CAROL) && !seen(ALICE));
    let remove = format!("/v1/images/{}:latest", name.0);
    let none = ask(&daemon, ALICE, "DELETE", &remove, Value::Null).expect_status(404);
    assert_eq!(text(&none, "code"), "no_such_image");
    ask(&daemon, CAROL, "DELETE", "/v1/sessions/s?wait=true", Value::Null).expect_status(200);
    ask(&daemon, CAROL, "DELETE", &remove, Value::Null).expect_status(200);
    assert_eq!(name.id(), None);
}

#[test]
fn a_session_gets_the_build_that_it_asked_for_though_its_name_went_to_another() {
    if !engine() {
        return;
    }
    let name = Name::fresh();
    let daemon = Daemon::start();
    let first = built(&daemon, &name, "FROM belljar/base\nLABEL test=1\n");
    daemon.session("s", json!({"image": name.0}));
    let second = built(&daemon, &name, "FROM belljar/base\nLABEL test=2\n");
    // The name stands for another build than the list says, as it does while a third one is built.
    docker(["tag", &first, &name.0]);
    daemon.session("t", json!({"image": name.0}));
    let receipt = daemon.http("GET", "/v1/sessions/t/receipt", b"").expect_status(200);
    assert_eq!(text(&receipt, "/image/id"), second);
    for session in ["s", "t"] {
        daemon.http("DELETE", &format!("/v1/sessions/{session}?wait=true"), b"").expect_status(200);
    }
    daemon.cli(["image", "rm", &name.0]).ok();
}
