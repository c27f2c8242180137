//! Each quota: refused before anything exists, told with numbers and names, and given back after
//! every kind of end.

use serde_json::{Value, json};

use super::asking::{conversation, says};
use super::many_users::{ALICE, BOB, ask, run, session, shared, used};
use crate::model_server::{Fault, ModelServer};
use crate::support::{Daemon, engine, eventually};

/// A sandbox of 256 MiB with as much for its checkpoints.
const SMALL: &str = "[sandbox]\nmemory = \"256MiB\"\ncheckpoint_budget = \"256MiB\"\ncpus = 0.5\n";

fn create(daemon: &Daemon, name: &str) -> crate::support::Response {
    let request = json!({"name": name, "image": "belljar/base"}).to_string();
    daemon.http("POST", "/v1/sessions", request.as_bytes())
}

fn own(daemon: &Daemon, kind: &str) -> u64 {
    let quota = daemon.http("GET", "/v1/quota", b"").expect_status(200);
    let quotas = quota["quotas"].as_array().expect("a list").clone();
    let found = quotas.into_iter().find(|quota| quota["kind"] == kind).expect("that quota");
    found["used"].as_u64().expect("a number")
}

/// No other user could start a process if one user had all ids of the host.
#[test]
fn processes_of_sandboxes_are_charged_to_their_owner() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config(&format!("{SMALL}[quota]\nprocesses = 300\n"));
    let create = |name: &str, pids: u64| {
        let request = json!({"name": name, "image": "belljar/base", "pids": pids}).to_string();
        daemon.http("POST", "/v1/sessions", request.as_bytes())
    };
    create("a", 200).expect_status(201);
    assert_eq!(own(&daemon, "processes"), 200);
    for pids in [101, 30_000] {
        let refused = create("b", pids).expect_status(429);
        assert_eq!(refused["code"], "quota_exceeded", "{refused}");
        assert!(refused["hint"].as_str().is_some_and(|hint| hint.contains("quota.processes")), "{refused}");
    }
    create("b", 100).expect_status(201);
    daemon.cli(["rm", "a"]).ok();
    create("c", 200).expect_status(201);
    daemon.assert_sound();
}

#[test]
fn an_upload_beyond_the_quota_is_refused_and_costs_no_sandbox() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[quota]\nworkspace = \"8MiB\"\n");
    create(&daemon, "a").expect_status(201);
    daemon.run("a", "x = 42");
    let body = vec![7; 5 << 20];
    daemon.http("PUT", "/v1/sessions/a/files/one", &body).expect_status(200);
    let refused = daemon.http("PUT", "/v1/sessions/a/files/two", &body);
    assert!(refused.status >= 400, "{}", refused.text());
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(daemon.run("a", "x")["result"]["repr"], "42");
}

#[test]
fn memory_and_cpus_come_back_after_every_kind_of_end() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::with_config(&format!("{SMALL}[quota]\nmemory = \"1GiB\"\ncpus = 1\n"));
    create(&daemon, "a").expect_status(201);
    create(&daemon, "b").expect_status(201);
    assert_eq!((own(&daemon, "memory"), own(&daemon, "cpus")), (1 << 30, 1000));
    let problem = create(&daemon, "c").expect_status(429);
    let message = problem["message"].as_str().expect("a message");
    assert!(message.contains("quota of memory") && message.contains("1 GiB of 1 GiB"), "{message}");
    assert!(message.contains("`a` 512 MiB") && message.contains("`b` 512 MiB"), "{message}");
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("belljar quota")), "{problem}");
    assert_eq!(daemon.containers().len(), 2, "a refusal makes nothing");

    // Removed, and free at once.
    daemon.cli(["rm", "b"]).ok();
    create(&daemon, "c").expect_status(201);
    daemon.cli(["rm", "c"]).ok();
    // Could not be made.
    let request = json!({"name": "d", "image": "belljar/none"}).to_string();
    assert!(daemon.http("POST", "/v1/sessions", request.as_bytes()).status >= 400);
    assert_eq!((own(&daemon, "memory"), own(&daemon, "sessions")), (512 << 20, 1));
    // Its sandbox died; the session sleeps and holds nothing but its place.
    crate::support::docker(["rm", "-f", &daemon.containers().remove(0)]);
    eventually("it sleeps", || (own(&daemon, "memory") == 0).then_some(()));
    assert_eq!((own(&daemon, "cpus"), own(&daemon, "sessions"), own(&daemon, "cells")), (0, 1, 0));
    // Others took it meanwhile: waking is refused and told, and works when there is room again.
    create(&daemon, "e").expect_status(201);
    create(&daemon, "f").expect_status(201);
    let result = daemon.run("a", "1");
    let note = result["state"]["note"].as_str().expect("a note");
    assert!(note.contains("quota of memory with checkpoints is used up"), "{result}");
    daemon.cli(["rm", "f"]).ok();
    assert_eq!(daemon.run("a", "1 + 1")["result"]["repr"], "2");
    // A daemon that is killed counts the same again.
    let before = (own(&daemon, "memory"), own(&daemon, "cpus"), own(&daemon, "sessions"));
    daemon.kill();
    daemon.restart();
    eventually("they are attached", || {
        ((own(&daemon, "memory"), own(&daemon, "cpus"), own(&daemon, "sessions")) == before).then_some(())
    });
    daemon.cli(["rm", "a", "e"]).ok();
    assert_eq!((own(&daemon, "memory"), own(&daemon, "cpus"), own(&daemon, "sessions")), (0, 0, 0));
    daemon.assert_sound();
}

#[test]
fn cells_wait_in_turn_and_nobody_waits_for_another_user() {
    if !engine() {
        return;
    }
    let daemon = shared(&format!("{SMALL}[quota]\ncells = 1\n"));
    session(&daemon, ALICE, "first");
    session(&daemon, ALICE, "second");
    session(&daemon, BOB, "other");
    let begin = |session: &str, code: &str| {
        let path = format!("/v1/sessions/{session}/cells");
        ask(&daemon, ALICE, "POST", &path, json!({"code": code})).expect_status(202)
    };
    let state = |session: &str| {
        let path = format!("/v1/sessions/{session}/cells/1");
        ask(&daemon, ALICE, "GET", &path, Value::Null).expect_status(200)
    };
    begin("first", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)");
    eventually("it runs", || (state("first")["state"] == "running").then_some(()));
    begin("second", "2 + 2");
    assert_eq!(run(&daemon, BOB, "other", "40 + 2")["result"]["repr"], "42");
    assert_eq!((&state("first")["state"], &state("second")["state"]), (&json!("running"), &json!("queued")));
    assert_eq!((used(&daemon, ALICE, "cells"), used(&daemon, BOB, "cells")), (1, 0));
    ask(&daemon, ALICE, "PUT", "/v1/sessions/first/files/go", json!("x")).expect_status(200);
    let result = eventually("the second has its turn", || {
        let view = state("second");
        (view["state"] == "done").then(|| view["result"].clone())
    });
    assert_eq!(result["result"]["repr"], "4", "{result}");
    // Whatever a cell dies of, its place is free.
    for code in
        ["1 / 0", "import os; os._exit(3)", "import os; os.kill(os.getpid(), 11)", "raise SystemExit(2)"]
    {
        run(&daemon, ALICE, "first", code);
        assert_eq!(run(&daemon, ALICE, "second", "1")["result"]["repr"], "1", "after {code}");
    }
    eventually("all is given back", || (used(&daemon, ALICE, "cells") == 0).then_some(()));
    daemon.assert_sound();
}

/// Cells that come while there is no sandbox may all begin when there is one.
#[test]
fn cells_that_could_begin_at_once_wait_in_turn_as_well() {
    if !engine() {
        return;
    }
    let daemon =
        Daemon::with_config("[sandbox]\ncpus = 0.5\n[sessions]\nidle = \"1s\"\n[quota]\ncells = 2\n");
    create(&daemon, "a").expect_status(201);
    daemon.run("a", "import time");
    let get = |path: &str| daemon.http("GET", path, b"").expect_status(200);
    eventually("its sandbox is let go", || (get("/v1/sessions/a")["state"] == "asleep").then_some(()));
    let cells: Vec<u64> = ["main", "fork", "fork", "fork", "fork"]
        .iter()
        .map(|mode| {
            let cell = json!({"code": "import time; time.sleep(1)", "mode": mode}).to_string();
            let queued = daemon.http("POST", "/v1/sessions/a/cells", cell.as_bytes()).expect_status(202);
            queued["cell"].as_u64().expect("a number")
        })
        .collect();
    eventually("all have run", || {
        let state = |cell: &u64| get(&format!("/v1/sessions/a/cells/{cell}"))["state"].clone();
        cells.iter().all(|cell| state(cell) == "done").then_some(())
    });
    // The journal has them in the order in which they began and ended, which views asked for one by one do not show.
    let (mut running, mut most) = (0_i32, 0);
    for event in daemon.events("a", 0) {
        match event["type"].as_str() {
            Some("cell_started") => running += 1,
            Some("cell_finished") => running -= 1,
            _ => {}
        }
        most = most.max(running);
    }
    assert_eq!(most, 2);
    daemon.assert_sound();
}

#[test]
fn a_user_whose_workspaces_are_full_loses_the_cell_that_fills_them() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config(&format!("{SMALL}[quota]\nworkspace = \"24MiB\"\n"));
    create(&daemon, "a").expect_status(201);
    create(&daemon, "b").expect_status(201);
    let fill = "open('kept', 'wb').write(bytes(16 << 20)) and None";
    assert_eq!(daemon.run("a", fill)["status"], "success");
    eventually("it is measured", || (own(&daemon, "workspace") >= 16 << 20).then_some(()));
    // Neither has more than its own limit; both together have more than the user may.
    let grow =
        "import time\nfor n in range(60):\n    open(str(n), 'wb').write(bytes(1 << 20))\n    time.sleep(0.2)";
    let result = daemon.run("b", grow);
    assert_eq!(result["reason"], "policy_violation", "{result}");
    let told = result.to_string();
    assert!(told.contains("quota of disk of workspaces") && told.contains("`a` 16"), "{told}");
    assert_eq!(create(&daemon, "c").expect_status(429)["code"], "quota_exceeded");
    daemon.cli(["rm", "b"]).ok();
    create(&daemon, "c").expect_status(201);
    assert_eq!(daemon.run("a", "1 + 1")["result"]["repr"], "2");
}

/// The owner of a session sends requests while its code writes.
#[test]
fn a_client_that_removes_files_does_not_hide_a_workspace_that_grows() {
    if !engine() {
        return;
    }
    let limits = SMALL.replace("cpus", "workspace = \"24MiB\"\ncpus");
    let daemon = Daemon::with_config(&limits);
    create(&daemon, "a").expect_status(201);
    daemon.run("a", "for n in range(200): open(str(n), 'w').close()");
    let grow = "import time\nfor n in range(80):\n    open(f'large{n}', 'wb').write(bytes(1 << 20))\n    time.sleep(0.2)";
    let result = std::thread::scope(|scope| {
        let cell = scope.spawn(|| daemon.run("a", grow));
        for n in 0..200 {
            if cell.is_finished() {
                break;
            }
            daemon.http("DELETE", &format!("/v1/sessions/a/files/{n}"), b"").expect_status(200);
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        cell.join().expect("a result")
    });
    assert_eq!(result["reason"], "policy_violation", "{result}");
}

#[test]
fn the_disk_of_a_user_is_bounded_whatever_cells_come() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config(&format!("{SMALL}[quota]\nworkspace = \"24MiB\"\n"));
    create(&daemon, "a").expect_status(201);
    // All is written before the daemon can have measured it.
    let grow = "import time\nopen('large', 'wb').write(bytes(100 << 20))\ntime.sleep(20)";
    assert_eq!(daemon.run("a", grow)["reason"], "policy_violation");
    let again = json!({"code": "open('more', 'wb').write(bytes(100 << 20))"}).to_string();
    let refused = daemon.http("POST", "/v1/sessions/a/cells", again.as_bytes());
    let hint = refused.expect_status(429)["hint"].as_str().expect("a hint").to_owned();
    assert!(hint.contains("/v1/sessions/a/files/"), "{hint}");
    daemon.http("DELETE", "/v1/sessions/a/files/large", b"").expect_status(200);
    assert_eq!(daemon.run("a", "import os; os.listdir()")["result"]["repr"], "[]");
}

/// Each of these was not seen once: what lies in a folder whose name is no UTF-8, and what comes after the
/// first names of a folder.
#[test]
fn neither_names_nor_numbers_hide_from_the_quota() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config(&format!("{SMALL}[quota]\nworkspace = \"200MiB\"\n"));
    let named = "import os\nos.mkdir(b'/workspace/\\xff')\nplace = b'/workspace/\\xff/big'";
    let numbered = "for n in range(45_000): open(f'/workspace/f{n}', 'w').close()\nplace = b'/workspace/zzz'";
    for (name, hide) in [("named", named), ("numbered", numbered)] {
        create(&daemon, name).expect_status(201);
        assert_eq!(daemon.run(name, hide)["status"], "success", "{name}");
        let grow = "import time\nwith open(place, 'wb') as file:\n    for _ in range(300):\n        file.write(bytes(1 << 20)); time.sleep(0.02)\ntime.sleep(150)";
        // After a look that took long the next one comes late: many files are not looked at all the time.
        let result = daemon.run_with(name, json!({"code": grow, "timeout_s": 180}));
        assert_eq!(result["reason"], "policy_violation", "{name}: {result}");
        assert!(own(&daemon, "workspace") > 200 << 20, "{name}");
        daemon.cli(["rm", name]).ok();
    }
}

#[test]
fn a_user_whose_journal_is_full_runs_no_more_cells_until_a_session_goes() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config(&format!("{SMALL}[quota]\njournal = \"4MiB\"\n"));
    let id = create(&daemon, "a").expect_status(201)["id"].as_str().expect("an id").to_owned();
    let result = daemon.run("a", "import time\nprint('x' * (6 << 20))\ntime.sleep(20)");
    assert_eq!((&result["status"], &result["reason"]), (&json!("crashed"), &json!("journal_quota")));
    let request = json!({"code": "1"}).to_string();
    let problem =
        daemon.http("POST", "/v1/sessions/a/cells?wait=true", request.as_bytes()).expect_status(429);
    assert!(problem["message"].as_str().is_some_and(|text| text.contains("stored journal")), "{problem}");
    assert_eq!(create(&daemon, "b").status, 429);
    daemon.cli(["rm", "a"]).ok();
    create(&daemon, "b").expect_status(201);
    assert_eq!(daemon.run("b", "1 + 1")["result"]["repr"], "2");
    // What the removed one left is kept as long as no other session needs the room, and then it goes before its time.
    assert_eq!(daemon.run("b", "print('x' * (1 << 20))")["status"], "success");
    let output = daemon.home().join("spill").join(id);
    eventually("the removed one is forgotten", || (!output.exists()).then_some(()));
    assert!(own(&daemon, "journal") < 4 << 20);
    assert_eq!(daemon.run("b", "2 + 2")["result"]["repr"], "4");
}

#[test]
fn tokens_of_a_day_are_counted_across_restarts_and_removed_sessions() {
    let script = [conversation("hello", &[says("one")]), conversation("again", &[says("two")])].concat();
    let Some(mut daemon) = super::asking::scripted("[quota]\ntokens = 20\n", &script) else { return };
    let end = super::asking::ask(&daemon, json!({"text": "hello"}));
    assert_eq!(end["outcome"], "answered", "{end}");
    let spent = own(&daemon, "tokens");
    assert!(spent > 20, "{spent}");
    let refused = |daemon: &Daemon| {
        let end = super::asking::ask(daemon, json!({"text": "again", "fresh": true}));
        assert_ne!(end["outcome"], "answered", "{end}");
        let told = end.to_string();
        assert!(told.contains("quota of model tokens per day") && told.contains("tomorrow"), "{told}");
    };
    refused(&daemon);
    daemon.cli(["rm", super::helpers::S]).ok();
    daemon.kill();
    daemon.restart();
    assert!(own(&daemon, "tokens") > 20, "the journal knows");
    daemon.session(super::helpers::S, json!({"image": "belljar/base"}));
    refused(&daemon);
}

#[test]
fn tokens_of_requests_that_broke_off_or_were_cancelled_are_counted_across_restarts() {
    let server = ModelServer::start([Fault::Cut.into(), Fault::StallInStream.into()]);
    let config = super::asking::served(&server, "retries = 0").replace("\"1s\"", "\"60s\"");
    let Some(mut daemon) = super::helpers::session_with(&config, json!({"image": "belljar/base"})) else {
        return;
    };
    let end = super::asking::ask(&daemon, json!({"text": "hello"}));
    assert_eq!(end["outcome"], "model_failed", "{end}");
    let broken = own(&daemon, "tokens");
    let count = |ask: &Value, of: &str| ask["usage"][of].as_u64();
    let used = |ask: &Value| Some(count(ask, "prompt_tokens")? + count(ask, "completion_tokens")?);
    assert_eq!(used(&end), Some(broken), "{end}");
    let cancelled = super::asking::begin(&daemon, json!({"text": "again"}));
    eventually("it speaks", || (own(&daemon, "tokens") > broken).then_some(()));
    daemon.http("POST", &format!("/v1/sessions/s/asks/{cancelled}/cancel"), b"").expect_status(200);
    let noted = super::asking::events_of(&daemon, "model_spent");
    let noted: Vec<u64> = noted.iter().filter_map(|event| event["tokens"].as_u64()).collect();
    assert_eq!((noted.len(), noted.iter().sum::<u64>()), (2, own(&daemon, "tokens")), "{noted:?}");
    assert!(broken > 0 && noted[0] == broken, "{noted:?}");
    let end = super::asking::end_of(&daemon, cancelled);
    assert_eq!(used(&end), Some(noted[1]), "{end}");
    daemon.kill();
    daemon.restart();
    assert_eq!(own(&daemon, "tokens"), noted.iter().sum::<u64>(), "the journal knows");
    assert_eq!(used(&super::asking::view(&daemon, cancelled)), Some(noted[1]));
}

#[test]
fn quota_and_top_show_what_is_used() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config(SMALL);
    create(&daemon, "busy").expect_status(201);
    let shown = daemon.cli(["quota"]).ok().stdout;
    assert!(shown.contains("sessions") && shown.contains("busy 512 MiB"), "{shown}");
    let json: Value = serde_json::from_str(&daemon.cli(["quota", "--json"]).ok().stdout).expect("JSON");
    assert_eq!((&json["uid"], &json["user"]), (&json!(0), &json!("root")));
    let request = json!({"code": "import os, time\nwhile not os.path.exists('go'): pass"}).to_string();
    daemon.http("POST", "/v1/sessions/busy/cells", request.as_bytes()).expect_status(202);
    let row = eventually("it is busy", || {
        let shown = daemon.cli(["top", "--once", "--json"]).ok().stdout;
        let top: Value = serde_json::from_str(&shown).expect("JSON");
        let row = top["sessions"][0].clone();
        row["cpu_percent"].as_f64().is_some_and(|percent| percent > 5.0).then_some(row)
    });
    assert_eq!((&row["name"], &row["owner"], &row["state"]), (&json!("busy"), &json!(0), &json!("busy")));
    assert!(row["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20 && bytes < 512 << 20), "{row}");
    let shown = daemon.cli(["top", "--once"]).ok().stdout;
    assert!(shown.contains("OWNER") && shown.contains("root") && shown.contains("busy"), "{shown}");
    let listed = daemon.cli(["ps", "--all"]).ok().stdout;
    assert!(listed.contains("OWNER") && listed.contains("root"), "{listed}");
    daemon.http("PUT", "/v1/sessions/busy/files/go", b"x").expect_status(200);
}
