//! Removal, death and leftovers of jails.

use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::ANN;
use crate::docker::helpers::{S, end, printed, restart_by, session, value};
use crate::support::{assert_nothing_left, eventually, jails};

/// Two sessions' worth of processes, then nothing.
fn leaves_nothing() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid)");
    let living = jails::living(daemon.home());
    assert_eq!(living.len(), 1);
    let names: Vec<String> = living.iter().map(|(folder, _)| jails::name(folder)).collect();
    let namespace = std::fs::read_link(format!("/proc/{}/ns/pid", living[0].1)).expect("it lives");
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
    assert_nothing_left(&daemon, &names);
    assert!(jails::groups(&names).is_empty(), "{:?}", jails::groups(&names));
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let inside = processes
        .filter(|entry| std::fs::read_link(entry.path().join("ns/pid")).is_ok_and(|own| own == namespace));
    assert_eq!(inside.count(), 0, "a process of the jail is left");
}

#[test]
fn a_removed_jail_leaves_nothing() {
    jails::in_a_jail(None, leaves_nothing);
    jails::in_a_jail(Some(ANN), leaves_nothing);
}

/// A jail of root's has a group of its own, so what it takes is known.
fn tells_its_load() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "print(sum(range(1_000_000)))");
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    let load = |name: &str| view["load"][name].as_u64().unwrap_or_default();
    assert!(load("cpu_us") > 0 && load("memory_bytes") > 0, "{view}");
}

#[test]
fn what_a_jail_takes_is_told() {
    jails::in_a_jail(None, tells_its_load);
}

/// A daemon that dies without a word is followed by one that removes what has no owner.
fn orphan_is_reaped() {
    let Some(mut daemon) = session() else { return };
    let living = jails::living(daemon.home());
    daemon.signal("KILL");
    daemon.wait();
    // The journal is removed, as if it had never heard of the sandbox.
    for file in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        let _ = std::fs::remove_file(daemon.home().join(file));
    }
    let journals = std::fs::read_dir(daemon.home()).expect("its home").flatten();
    for file in journals.filter(|file| file.file_name().to_string_lossy().contains(".db")) {
        let _ = std::fs::remove_file(file.path());
    }
    assert!(jails::is_alive(living[0].1));
    daemon.restart();
    eventually("it is reaped", || (!jails::is_alive(living[0].1)).then_some(()));
    eventually("its folder goes", || (!living[0].0.exists()).then_some(()));
}

#[test]
fn what_a_dead_daemon_left_is_reaped() {
    jails::in_a_jail(None, orphan_is_reaped);
    jails::in_a_jail(Some(ANN), orphan_is_reaped);
}

fn killed_from_outside() {
    let Some(mut daemon) = session() else { return };
    printed(&daemon, "x = 1");
    let (_, pid) = jails::living(daemon.home())[0].clone();
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().expect("kill").success());
    let next = eventually("the next cell has a new sandbox", || {
        let result = daemon.run(S, "print(x)");
        let note = result["state"]["note"].as_str();
        note.is_some_and(|note| note.starts_with("The sandbox is a new one")).then_some(result)
    });
    assert_eq!((&next["status"], &next["stdout"]), (&json!("success"), &json!("1\n")), "{next:#}");
    // One that goes while no daemon runs is missed by the next.
    let (folder, pid) = jails::living(daemon.home())[0].clone();
    daemon.signal("KILL");
    daemon.wait();
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().expect("kill").success());
    daemon.restart();
    eventually("it can be used again", || (daemon.run(S, "print(7)")["stdout"] == "7\n").then_some(()));
    assert!(jails::groups(&[jails::name(&folder)]).is_empty(), "its control group is left");
}

#[test]
fn a_jail_that_dies_is_replaced() {
    jails::in_a_jail(None, killed_from_outside);
}

fn freezes() {
    let Some(mut daemon) = session() else { return };
    printed(
        &daemon,
        "x = 41\nimport threading, time\nn = 0\ndef count():\n    global n\n    while True:\n        n += 1\n        time.sleep(0.01)\nthreading.Thread(target=count, daemon=True).start()",
    );
    daemon.http("POST", "/v1/sessions/s/freeze", b"{}").expect_status(200);
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    assert_eq!(view["state"], "frozen", "{view:#}");
    let (_, pid) = jails::living(daemon.home())[0].clone();
    let ticks = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    // A busy machine stops its last process a moment after the answer.
    eventually("it stands still", || {
        let before = ticks();
        std::thread::sleep(std::time::Duration::from_millis(200));
        (before == ticks()).then_some(())
    });
    // Also for the next daemon, which has to thaw it to hear of it.
    restart_by(&mut daemon, "KILL");
    assert_eq!(value(&daemon, "x + 1"), "42");
}

#[test]
fn a_jail_can_be_frozen() {
    jails::in_a_jail(None, freezes);
    jails::in_a_jail(Some(ANN), freezes);
}

/// The next daemon meant to freeze it again as soon as it is heard of; a cell that came before that wins.
fn is_wanted_before_it_is_attached() {
    let Some(mut daemon) = session() else { return };
    printed(&daemon, "x = 41");
    daemon.http("POST", "/v1/sessions/s/freeze", b"{}").expect_status(200);
    let bridge = jails::living(daemon.home())[0].0.join("b");
    let allow =
        |mode| std::fs::set_permissions(&bridge, std::fs::Permissions::from_mode(mode)).expect("chmod");
    end(&mut daemon, "KILL");
    // Only root gets to the socket, so the kernel cannot be heard of.
    allow(0o700);
    daemon.restart();
    eventually("the cell is queued", || {
        let cell = daemon.http("POST", "/v1/sessions/s/cells", br#"{"code": "x += 0"}"#);
        (cell.status == 202).then_some(())
    });
    allow(0o711);
    assert_eq!(value(&daemon, "x + 1"), "42");
}

#[test]
fn a_cell_that_comes_before_a_frozen_jail_is_attached_runs() {
    jails::in_a_jail(None, is_wanted_before_it_is_attached);
}
