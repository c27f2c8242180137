//! The queue, and what stops a cell or its session's sandbox.

use serde_json::json;
use std::time::Duration;

use super::helpers::{
    S, assert_ended, go, names, number, outcome, post, printed, queue, restart_by, session, session_with,
    take_away, text, value, wait_for_line, with_go,
};
use crate::support::{Daemon, eventually, keeps_variables};

#[test]
pub fn cells_run_first_in_first_out_and_the_queue_is_bounded() {
    let Some(daemon) = session() else { return };
    let first = queue(&daemon, &json!({"code": with_go("order = [0]\nprint('busy')\nwait_for_go()")}));
    wait_for_line(&daemon, first, "busy");
    let waiting: Vec<u64> =
        (1..=16).map(|n| queue(&daemon, &json!({"code": format!("order.append({n})")}))).collect();
    assert_eq!(waiting, (first + 1..=first + 16).collect::<Vec<_>>());
    let refused = post(&daemon, "cells", &json!({"code": "order.append('too many')"}));
    assert_eq!(text(&refused.expect_status(409), "code"), "busy");
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    assert_eq!(
        (&view["state"], &view["running"], &view["queued"]),
        (&json!("busy"), &json!(first), &json!(16))
    );
    let view = daemon.http("GET", &format!("/v1/sessions/s/cells/{}", waiting[3]), b"").expect_status(200);
    assert_eq!(view["state"], "queued");
    go(&daemon);
    for cell in waiting {
        assert_eq!(text(&outcome(&daemon, cell), "status"), "success");
    }
    assert_eq!(value(&daemon, "order == list(range(17))"), "True");
    let started: Vec<u64> = daemon
        .events(S, 0)
        .iter()
        .filter(|event| event["type"] == "cell_started")
        .map(|event| number(event, "/cell"))
        .collect();
    assert_eq!(started, (1..=18).collect::<Vec<_>>());
}

#[test]
pub fn waiting_is_not_counted_as_run_time() {
    let Some(daemon) = session() else { return };
    // The second one waits three times as long as it may run.
    let first = queue(&daemon, &json!({"code": "import time; time.sleep(1.5)"}));
    let result = daemon.run_with(S, json!({"code": "1 + 1", "timeout_s": 0.5}));
    assert_ended(&result, "success", "ok", 0);
    assert_eq!(text(&outcome(&daemon, first), "status"), "success");
}

#[test]
pub fn a_reset_ends_what_runs_and_what_waits_and_starts_afresh() {
    let Some(daemon) = session_with("", json!({"seed": {"a": 1}})) else { return };
    printed(&daemon, "a = 2; b = 3; open('file', 'w').write('kept')");
    for mode in ["main", "fork"] {
        let code =
            "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('busy')\nwhile True: pass";
        let running = queue(&daemon, &json!({"code": code, "mode": mode}));
        wait_for_line(&daemon, running, "busy");
        // A copy holds up no other cell, so it has to be a cell of the main line that one waits for.
        let holding = (mode == "fork").then(|| queue(&daemon, &json!({"code": "while True: pass"})));
        let waiting = queue(&daemon, &json!({"code": "a = 'ran'"}));
        post(&daemon, "reset", &json!({})).expect_status(200);
        let result = outcome(&daemon, running);
        assert_ended(&result, "interrupted", "by_cancel", -9);
        assert_eq!(text(&result, "stdout"), "busy\n", "{mode}");
        assert_eq!(text(&result, "/state/note"), "The session was reset or removed while the cell ran.");
        if let Some(holding) = holding {
            assert_eq!(text(&outcome(&daemon, holding), "reason"), "by_cancel");
        }
        let result = outcome(&daemon, waiting);
        assert_eq!((text(&result, "status"), text(&result, "reason")), ("interrupted", "by_cancel"));
        assert_eq!(text(&result, "/state/note"), "The session was reset before this cell ran.");
        assert_eq!(names(&daemon), ["a"]);
        assert_eq!(value(&daemon, "(a, open('file').read())"), "(1, 'kept')");
        printed(&daemon, "c = 4");
    }
    // While nothing runs.
    post(&daemon, "reset", &json!({})).expect_status(200);
    assert_eq!(names(&daemon), ["a"]);
    let events = daemon.events(S, 0);
    assert_eq!(events.iter().filter(|event| event["type"] == "reset").count(), 3);
    assert!(!events.iter().any(|event| event["type"] == "state_lost"), "a reset is no accident");
}

#[test]
pub fn a_removal_tells_the_running_cell() {
    let Some(daemon) = session() else { return };
    let code = "print('busy', flush=True)\nwhile True: pass";
    let result = std::thread::scope(|scope| {
        let running = scope.spawn(|| daemon.run(S, code));
        wait_for_line(&daemon, 1, "busy");
        daemon.http("DELETE", "/v1/sessions/s", b"").expect_status(200);
        running.join().expect("a result")
    });
    assert_eq!((text(&result, "status"), text(&result, "reason")), ("interrupted", "by_cancel"));
    assert_eq!((text(&result, "code"), text(&result, "stdout")), (code, "busy\n"));
    assert_eq!(text(&result, "/state/kind"), "lost");
    assert_eq!(daemon.http("GET", "/v1/sessions/s", b"").status, 404);
}

#[test]
pub fn an_interrupt_keeps_the_state() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 1");
    for (code, doing) in [
        ("x += 1; print('looping')\nwhile True: pass", "looping"),
        ("x += 1; print('sleeping')\nimport time; time.sleep(1000)", "sleeping"),
        ("x += 1; print('child')\nimport subprocess; subprocess.run(['sleep', '1000'])", "child"),
        ("x += 1; print('reading')\nimport os; os.read(os.pipe()[0], 1)", "reading"),
        ("x += 1; print('joining')\nimport threading; threading.Event().wait()", "joining"),
    ] {
        let cell = queue(&daemon, &json!({ "code": code }));
        wait_for_line(&daemon, cell, doing);
        post(&daemon, "interrupt", &json!({})).expect_status(200);
        let result = outcome(&daemon, cell);
        assert_ended(&result, "interrupted", "by_user", 0);
        assert_eq!(
            (text(&result, "/state/kind"), &result["state"]["note"]),
            ("kept", &json!(null)),
            "{doing}"
        );
        assert_eq!(text(&result, "/exception/type"), "KeyboardInterrupt");
    }
    assert_eq!(value(&daemon, "x"), "6");
    // Many at once do no more harm than one.
    let cell = queue(&daemon, &json!({"code": "print('many')\nwhile True: pass"}));
    wait_for_line(&daemon, cell, "many");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| post(&daemon, "interrupt", &json!({})).expect_status(200));
        }
    });
    assert_eq!(text(&outcome(&daemon, cell), "status"), "interrupted");
    assert_eq!(value(&daemon, "x"), "6");
}

#[test]
pub fn an_interrupt_reaches_a_cell_however_early_it_comes() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 1");
    for round in 0..40 {
        let mode = if round % 2 == 0 { "main" } else { "fork" };
        let cell = queue(&daemon, &json!({"code": "while True: pass", "mode": mode}));
        eventually("there is a cell to interrupt", || {
            let told = post(&daemon, "interrupt", &json!({})).expect_status(200);
            (told["cell"] == json!(cell)).then_some(())
        });
        assert_ended(&outcome(&daemon, cell), "interrupted", "by_user", 0);
    }
    assert_eq!(value(&daemon, "x"), "1");
}

#[test]
pub fn an_interrupt_of_a_stubborn_cell_ends_it() {
    if !keeps_variables() {
        return;
    }
    let Some(daemon) = session() else { return };
    let code = "import itertools\nprint('stubborn')\nall(itertools.repeat(True))";
    let cell = queue(&daemon, &json!({"code": code, "timeout_s": 60}));
    wait_for_line(&daemon, cell, "stubborn");
    post(&daemon, "interrupt", &json!({})).expect_status(200);
    let result = outcome(&daemon, cell);
    assert_ended(&result, "interrupted", "by_user", -15);
    assert_eq!(text(&result, "stdout"), "stubborn\n");
    let note = "The cell did not stop when it was interrupted, so its process was killed.";
    assert_eq!(text(&result, "/state/note"), note);
    assert_eq!(printed(&daemon, "print('alive')"), "alive\n");
}

#[test]
pub fn an_unused_sandbox_goes_and_the_next_cell_gets_a_new_one() {
    let Some(daemon) = session_with("", json!({"idle_s": 1, "seed": {"a": 1}})) else { return };
    printed(&daemon, "a = 2; b = 3; open('file', 'w').write('kept')");
    let receipt = |daemon: &Daemon| daemon.http("GET", "/v1/sessions/s/receipt", b"");
    let old = daemon.containers();
    eventually("the session sleeps", || {
        let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
        (view["state"] == "asleep").then_some(())
    });
    eventually("its container is gone", || daemon.containers().is_empty().then_some(()));
    assert_eq!(text(&receipt(&daemon).expect_status(409), "code"), "busy");
    let result = daemon.run(S, "(a, 'b' in globals(), open('file').read())");
    assert_eq!(text(&result, "/result/repr"), "(2, True, 'kept')");
    let note = text(&result, "/state/note");
    assert!(
        note.starts_with("The session woke in a new sandbox: its variables are as after cell 1."),
        "{note}"
    );
    let new = daemon.containers();
    assert_eq!(new.len(), 1);
    assert_ne!(new, old);
    let events = daemon.events(S, 0);
    let kinds: Vec<&str> =
        events.iter().map(|event| text(event, "type")).filter(|kind| kind.starts_with("sandbox")).collect();
    assert_eq!(
        kinds[..5],
        ["sandbox_starting", "sandbox_ready", "sandbox_gone", "sandbox_starting", "sandbox_ready"]
    );
    // A cell that runs for longer than that is use.
    let result = daemon.run(S, "import time; time.sleep(2.5); 'awake'");
    assert_eq!(text(&result, "/result/repr"), "'awake'");
}

#[test]
fn the_time_without_use_goes_on_over_restarts_and_stands_still_while_frozen() {
    let Some(mut daemon) = session_with("", json!({"idle_s": 2})) else { return };
    printed(&daemon, "x = 1");
    post(&daemon, "freeze", &json!({})).expect_status(200);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(value(&daemon, "x"), "1");
    daemon.session("t", json!({"image": "belljar/base"}));
    std::thread::sleep(Duration::from_secs(2));
    restart_by(&mut daemon, "KILL");
    let view = daemon.http("GET", "/v1/sessions/t", b"").expect_status(200);
    assert!(number(&view, "/idle_for_s") >= 2, "{view}");
}

#[test]
pub fn of_freezes_and_thaws_the_last_counts_however_fast_they_come() {
    let Some(daemon) = session() else { return };
    let ticks = "import threading, time\nn = 0\ndef count():\n    global n\n    while True:\n        n += 1\n        \
                 open('ticks', 'w').write(str(n))\n        time.sleep(0.01)\n\
                 threading.Thread(target=count, daemon=True).start()";
    printed(&daemon, ticks);
    let counted = || daemon.http("GET", "/v1/sessions/s/files/ticks", b"").body;
    for _ in 0..5 {
        post(&daemon, "freeze", &json!({})).expect_status(200);
        post(&daemon, "thaw", &json!({})).expect_status(200);
        post(&daemon, "freeze", &json!({})).expect_status(200);
    }
    std::thread::sleep(Duration::from_millis(500));
    let before = counted();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(before, counted(), "it is said to be frozen and goes on");
    assert_eq!(value(&daemon, "n > 0"), "True");
}

/// The session thaws for a cell, which must not overtake the freeze that it is meant for.
#[test]
pub fn a_cell_that_comes_right_behind_a_freeze_runs() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 1");
    for _ in 0..40 {
        std::thread::scope(|scope| {
            let cell = scope.spawn(|| value(&daemon, "x"));
            post(&daemon, "freeze", &json!({})).expect_status(200);
            // The cell may have come first, and is frozen then.
            post(&daemon, "thaw", &json!({})).expect_status(200);
            assert_eq!(cell.join().expect("the cell ends"), "1");
        });
    }
}

#[test]
fn a_session_keeps_its_image_when_the_default_becomes_another() {
    let images = |first: &str, second: &str| format!("[sandbox]\nimages = [\"{first}\", \"{second}\"]\n");
    let before = images("belljar/base", "belljar/science");
    let Some(mut daemon) = session_with(&before, json!({})) else { return };
    std::fs::write(daemon.home().join("config.toml"), images("belljar/science", "belljar/base"))
        .expect("written");
    restart_by(&mut daemon, "KILL");
    take_away(&daemon);
    printed(&daemon, "1");
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    assert_eq!(text(&view, "/image/reference"), "belljar/base", "{view}");
}

#[test]
pub fn a_sandbox_that_dies_is_replaced_and_the_loss_is_told() {
    let Some(daemon) = session() else { return };
    let cell = queue(&daemon, &json!({"code": "x = 1; print('busy')\nwhile True: pass"}));
    wait_for_line(&daemon, cell, "busy");
    daemon.remove_sandboxes();
    let result = outcome(&daemon, cell);
    assert_eq!((text(&result, "status"), text(&result, "reason")), ("crashed", "sandbox_lost"));
    assert_eq!((text(&result, "stdout"), &result["exit_code"]), ("busy\n", &json!(null)));
    assert_eq!(text(&result, "/state/kind"), "lost");
    let result = daemon.run(S, "'x' in globals()");
    assert_eq!(text(&result, "/result/repr"), "False");
    assert!(text(&result, "/state/note").starts_with("The sandbox is a new one"), "{result:#}");
}
