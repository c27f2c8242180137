//! What builds of images leave: those that end early, images that are not needed any more, and images whose names stand
//! for others.

use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

use super::helpers::text;
use super::own_images::{Name, build, builds, built};
use crate::support::{Daemon, PackageIndex, docker, engine, eventually};

/// A reaper that need not be waited for.
const REAPER: (&str, &str) = ("BELLJAR_PERIODS", "reaper:2");

/// A request to build an image. Its answer is not read; the client leaves when the connection is dropped.
fn begin_build(daemon: &Daemon, request: &Value) -> UnixStream {
    let request = request.to_string();
    let head = "POST /v1/images/build HTTP/1.1\r\nHost: belljar\r\nContent-Type: application/json\r\n";
    let mut open = daemon.connect().expect("the daemon is there");
    let sent = write!(open, "{head}Content-Length: {}\r\n\r\n{request}", request.len());
    sent.expect("it reads");
    open
}

/// The images in the engine that carry the id of a build.
fn images_of(build: &str) -> Vec<String> {
    let filter = format!("label=belljar.build={build}");
    docker(["images", "-aq", "--no-trunc", "--filter", &filter]).lines().map(str::to_owned).collect()
}

#[test]
fn a_build_that_a_death_ends_leaves_nothing() {
    if !engine() {
        return;
    }
    let name = Name::fresh();
    let mut daemon = Daemon::start();
    let dockerfile = "FROM belljar/base\nRUN sleep 60\n";
    let _open = begin_build(&daemon, &json!({"name": name.0, "dockerfile": dockerfile}));
    let id = eventually("the build begins", || Some(text(builds(&daemon).first()?, "id").to_owned()));
    daemon.kill();
    // The daemon may die at a later point, too: with the container of the build, and an image without a name.
    let instance = std::fs::read_to_string(daemon.home().join("instance")).expect("an id");
    let labels = [format!("belljar.instance={}", instance.trim()), format!("belljar.sandbox={id}")];
    let container = format!("belljar-{id}-image");
    docker(["create", "--name", &container, "--label", &labels[0], "--label", &labels[1], "belljar/base"]);
    docker(["commit", "--change", &format!("LABEL belljar.build={id}"), &container]);
    assert_eq!((images_of(&id).len(), daemon.containers().len()), (1, 1));
    daemon.restart();
    eventually("all of it goes", || {
        let left = (images_of(&id).len(), daemon.containers().len(), builds(&daemon).len());
        (left == (0, 0, 0)).then_some(())
    });
    assert_eq!(name.id(), None);
}

#[test]
fn an_image_that_was_made_but_not_named_gets_its_name() {
    if !engine() {
        return;
    }
    let name = Name::fresh();
    let mut daemon = Daemon::with_environment("", &[REAPER]);
    let made = built(&daemon, &name, "FROM belljar/base\n");
    daemon.kill();
    // The list is as a daemon leaves it that dies between making the image and naming it.
    let mut list = builds(&daemon);
    list[0]["state"] = json!({"state": "made", "image": made});
    std::fs::write(daemon.home().join("images.json"), json!(list).to_string()).expect("a list");
    let other = Name::fresh();
    docker(["tag", &made, &other.0]);
    docker(["rmi", &name.0]);
    daemon.restart();
    eventually("it is named", || (text(&builds(&daemon)[0], "/state/state") == "named").then_some(()));
    // The list on the disk comes before that in the daemon's memory.
    let request = json!({"name": "s", "image": name.0}).to_string();
    eventually("it can be used", || {
        (daemon.http("POST", "/v1/sessions", request.as_bytes()).status == 201).then_some(())
    });
    assert_eq!(name.id(), Some(made));
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);

    // One that the engine does not have any more never gets its name, and does not stay for ever.
    docker(["rmi", &name.0]);
    daemon.kill();
    list[0]["state"] = json!({"state": "made", "image": format!("sha256:{}", "0".repeat(64))});
    std::fs::write(daemon.home().join("images.json"), json!(list).to_string()).expect("a list");
    daemon.restart();
    eventually("it is forgotten", || builds(&daemon).is_empty().then_some(()));
}

#[test]
fn a_build_that_its_client_leaves_gives_nothing_back_before_its_installer_has_ended() {
    if !engine() {
        return;
    }
    let index = PackageIndex::without_uv();
    let name = Name::fresh();
    let daemon = index.daemon("");
    index.slow(true);
    let request = json!({"name": name.0, "from": "belljar/base", "packages": ["bell-set-id"]});
    let open = begin_build(&daemon, &request);
    eventually("the installer fetches", || {
        index.requests().iter().any(|path| path.starts_with("/files/bell_set")).then_some(())
    });
    let holds = || daemon.cli(["quota"]).ok().stdout.contains("packages that are being installed");
    assert!(holds() && daemon.containers().len() == 1);
    drop(open);
    eventually("its room is given back", || (!holds()).then_some(()));
    assert_eq!(daemon.containers(), Vec::<String>::new(), "the installer has ended by then");
    assert_eq!((name.id(), builds(&daemon)), (None, Vec::new()));
    index.slow(false);
    let last = build(&daemon, &request);
    assert_eq!(last["done"], json!(true), "{last:#}");
}

#[test]
fn an_image_that_somebody_else_named_keeps_that_name() {
    if !engine() {
        return;
    }
    let (name, other) = (Name::fresh(), Name::fresh());
    let daemon = Daemon::with_environment("", &[REAPER]);
    let image = built(&daemon, &name, "FROM belljar/base\n");
    docker(["tag", &image, &other.0]);
    daemon.cli(["image", "rm", &name.0]).ok();
    assert_eq!((name.id(), other.id()), (None, Some(image)));
    assert_eq!(builds(&daemon).len(), 1, "it is there, so it is known and charged");
    docker(["rmi", &other.0]);
    eventually("it is gone", || builds(&daemon).is_empty().then_some(()));
}

/// An engine that removes no image: it forwards everything else to the real one, from a socket in the folder.
fn engine_that_keeps_images(folder: &std::path::Path) -> String {
    let socket = folder.join("engine");
    let listener = UnixListener::bind(&socket).expect("a socket");
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let engine = UnixStream::connect("/var/run/docker.sock").expect("an engine");
            let (answers, asks) = (engine.try_clone().expect("a copy"), client.try_clone().expect("a copy"));
            std::thread::spawn(move || forward(answers, client));
            std::thread::spawn(move || forward(asks, engine));
        }
    });
    format!("unix://{}", socket.display())
}

/// Forwards until an end, or a request to remove an image, whose answer never comes.
fn forward(mut from: UnixStream, mut to: UnixStream) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let head = String::from_utf8_lossy(&bytes[..count.min(100)]);
        if head.starts_with("DELETE") && head.contains("/images/") {
            std::thread::sleep(std::time::Duration::from_secs(600));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

#[test]
fn an_engine_that_is_slow_to_remove_an_image_delays_no_start() {
    if !engine() {
        return;
    }
    let name = Name::fresh();
    let mut daemon = Daemon::start();
    let image = built(&daemon, &name, "FROM belljar/base\n");
    daemon.kill();
    let mut list = builds(&daemon);
    list[0]["state"] = json!({"state": "old", "image": image});
    std::fs::write(daemon.home().join("images.json"), json!(list).to_string()).expect("a list");
    let folder = tempfile::tempdir().expect("a folder");
    let host = engine_that_keeps_images(folder.path());
    daemon.set_environment(&[("DOCKER_HOST", &host)]);
    daemon.restart();
    daemon.session("s", json!({"image": "belljar/base"}));
    assert_eq!(name.id(), Some(image), "it is still to be removed");
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
    daemon.kill();
    daemon.set_environment(&[]);
    daemon.restart();
    eventually("it is removed", || builds(&daemon).is_empty().then_some(()));
}
