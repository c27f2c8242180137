//! Images are shared by all users of a machine: only administrators get one, and a session keeps its own.

use serde_json::{Value, json};
use std::process::Command;

use crate::docker::many_users::{ALICE, CAROL, ask, shared};
use crate::support::{Daemon, docker, engine};

/// A name for an image that no other test uses; gone at the end with what it stands for.
struct Name(String);

impl Name {
    fn fresh() -> Self {
        Self(format!("bj-pin-{}:1", uuid::Uuid::new_v4().simple()))
    }

    /// Lets it stand for a new image, and gives that image's id.
    fn renew(&self, label: &str) -> String {
        let container = docker(["create", "belljar/base", "true"]);
        let image = docker(["commit", "--change", &format!("LABEL test={label}"), &container, &self.0]);
        docker(["rm", &container]);
        image
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", "-f", &self.0]).output();
    }
}

#[test]
fn a_user_of_the_socket_cannot_pull_and_nobody_pulls_an_image_of_our_own() {
    if !engine() {
        return;
    }
    // Nothing listens there, so that a pull that is tried fails.
    let daemon = shared(
        "[sandbox]\nimages = [\"127.0.0.1:9/evil:1\", \"127.0.0.1:9/belljar/base\", \"belljar/base\"]\n",
    );
    let pull =
        |user, reference: &str| ask(&daemon, user, "POST", "/v1/images", json!({"reference": reference}));
    let refused = pull(ALICE, "127.0.0.1:9/evil:1").expect_status(403);
    assert_eq!(refused["code"], "forbidden");
    assert!(refused["hint"].as_str().expect("a hint").contains("games"), "{refused}");
    let tried = pull(CAROL, "127.0.0.1:9/evil:1");
    assert_eq!(tried.status, 200, "administrators may");
    assert!(tried.text().contains("image_missing"), "{}", tried.text());
    for own in ["belljar/base", "127.0.0.1:9/belljar/base"] {
        let text = pull(CAROL, own).text();
        assert!(text.contains("image_forbidden") && text.contains("never pulled"), "{own}: {text}");
    }
}

fn image_of(daemon: &Daemon) -> Value {
    daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200)["image"].clone()
}

#[test]
fn a_session_keeps_the_image_that_it_began_with() {
    if !engine() {
        return;
    }
    let name = Name::fresh();
    let first = name.renew("first");
    let config = format!("[sandbox]\nbackend = \"docker\"\nimages = [\"{}\"]\n", name.0);
    let mut daemon = Daemon::with_config(&config);
    daemon.session("s", json!({}));
    assert_eq!(image_of(&daemon), json!({"reference": name.0, "id": first}));

    // The name stands for another one now.
    let second = name.renew("second");
    daemon.remove_sandboxes();
    let again =
        |daemon: &Daemon| daemon.http("POST", "/v1/sessions/s/cells?wait=true", br#"{"code": "6 * 7"}"#);
    crate::support::eventually("a new sandbox", || {
        (again(&daemon).json()["result"]["repr"] == "42").then_some(())
    });
    assert_eq!(image_of(&daemon)["id"], json!(first));
    // Also for the next daemon.
    daemon.kill();
    daemon.remove_sandboxes();
    daemon.restart();
    crate::support::eventually("a new sandbox", || {
        (again(&daemon).json()["result"]["repr"] == "42").then_some(())
    });
    assert_eq!(image_of(&daemon)["id"], json!(first));
    daemon.session("t", json!({}));
    let other = daemon.http("GET", "/v1/sessions/t/receipt", b"").expect_status(200);
    assert_eq!(other["image"]["id"], json!(second), "a new session takes what the name stands for");

    // And if it is gone, that is said, and no other is taken.
    daemon.remove_sandboxes();
    docker(["rmi", "-f", &first]);
    let problem = crate::support::eventually("a refusal", || {
        let text = again(&daemon).text();
        text.contains("No sandbox could be started").then_some(text)
    });
    assert!(problem.contains("that this session began with is gone, and it takes no other"), "{problem}");
    docker(["rmi", "-f", &second]);
}
