//! Who may install packages: owners and their code as `packages.by_owner` says, models and theirs as `packages.by_models`.

use serde_json::json;

use super::asking::{
    answer, begin as begin_ask, calls, conversation, decide_next, end_of, events_of, runs, says, told,
    wait_for_state, write_script,
};
use super::helpers::{S, outcome, queue, raised, text, value, with_go};
use super::packages::install;
use crate::support::{Daemon, PackageIndex, engine};

#[test]
fn an_ask_begins_with_packages_though_its_model_may_install_none() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = with_model(&index, "never");
    let cell = runs("import bell_hello\nopen('version', 'w').write(bell_hello.VERSION)");
    write_script(&daemon, &conversation("use it", &[cell, says("done")]));
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let out = out.to_str().expect("UTF-8");
    let asked =
        daemon.cli(["ask", "--image", "belljar/base", "--with", "bell-hello", "--out", out, "use it"]).ok();
    assert_eq!(asked.stdout, "done\n");
    assert_eq!(std::fs::read_to_string(format!("{out}/version")).expect("a file"), "2.0");
}

/// A daemon with a session whose model plays a cell that installs and imports a package.
fn with_model(index: &PackageIndex, policy: &str) -> Daemon {
    let model = "[model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n";
    let daemon = index.daemon(&format!("by_models = \"{policy}\"\n{model}"));
    daemon.session(S, json!({"image": "belljar/base"}));
    let cell = runs("!pip install bell-hello\nimport bell_hello\nprint(bell_hello.VERSION)");
    write_script(&daemon, &conversation("go", &[cell, says("done")]));
    daemon
}

#[test]
fn an_owner_installs_as_the_policy_says() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let with_policy = |policy: &str| {
        let daemon = index.daemon(&format!("by_owner = \"{policy}\"\n"));
        daemon.session(S, json!({"image": "belljar/base"}));
        daemon
    };
    let cell = json!({"code": "install_packages(['bell-dep'])"});

    let daemon = with_policy("never");
    let refused = install(&daemon, S, &["bell-dep"], 403);
    assert_eq!(text(&refused, "code"), "forbidden", "{refused:#}");
    let is_told = |said: &str| assert!(said.contains("`packages.by_owner` is `never`"), "{said}");
    is_told(text(&refused, "message"));
    is_told(text(&outcome(&daemon, queue(&daemon, &cell)), "/exception/value"));
    is_told(&daemon.run(S, "!pip install bell-dep").to_string());
    is_told(&daemon.cli(["new", "a", "--with", "bell-dep"]).exits(125).stderr);
    is_told(&daemon.cli(["image", "build", "bj-never", "--with", "bell-dep"]).exits(125).stderr);
    let hinted = raised(&daemon, "import sklearn", "ModuleNotFoundError");
    is_told(text(&hinted, "/exception/traceback"));
    assert!(!text(&hinted, "/exception/traceback").contains("%pip"), "{hinted:#}");
    let script = daemon.home().join("script.py");
    std::fs::write(&script, "import bell_dep\n").expect("a script");
    let script = script.to_str().expect("UTF-8");
    is_told(&daemon.cli(["job", "run", "--with", "bell-dep", script]).stderr);
    std::fs::write(script, "import polars\n").expect("a script");
    is_told(&daemon.cli(["job", "run", script]).exits(1).stderr);
    assert_eq!(index.requests(), Vec::<String>::new(), "nothing was asked for");

    // A thread that the owner's code has left behind does not get round it in the name of a model's cell.
    let more = "by_owner = \"never\"\nby_models = \"auto\"\n\
                [model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n";
    let daemon = index.daemon(more);
    daemon.session(S, json!({"image": "belljar/base"}));
    daemon.run(
        S,
        &with_go(
            "import threading\ndef later():\n    wait_for_go()\n    install_packages(['bell-dep'])\n\
             thread = threading.Thread(target=later)\nthread.start()",
        ),
    );
    let of_model = "open('/workspace/go', 'w').close()\nthread.join()";
    write_script(&daemon, &conversation("go", &[runs(of_model), says("done")]));
    let number = begin_ask(&daemon, json!({"text": "go"}));
    decide_next(&daemon, json!({"reject": {"reason": "not now"}}));
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    // The owner's own cell is refused without a person.
    is_told(text(&outcome(&daemon, queue(&daemon, &cell)), "/exception/value"));
    assert_eq!(events_of(&daemon, "approval_wanted").len(), 1);
    assert_eq!(index.requests(), Vec::<String>::new(), "nothing was asked for");

    let daemon = with_policy("ask");
    let waiting = queue(&daemon, &cell);
    decide_next(&daemon, json!({"reject": {"reason": "not now"}}));
    assert_eq!(text(&outcome(&daemon, waiting), "/exception/type"), "tools.ToolError");
    assert!(events_of(&daemon, "packages_installed").is_empty());
    let waiting = queue(&daemon, &cell);
    decide_next(&daemon, json!({"accept": {}}));
    assert_eq!(text(&outcome(&daemon, waiting), "/result/repr"), "['bell-dep 1.0']");
    // What an owner asks for is a person's own word.
    install(&daemon, S, &["bell-set-id"], 200);
}

#[test]
fn a_model_installs_as_the_policy_says() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let asked = json!({"text": "go", "fresh": true});

    let daemon = with_model(&index, "auto");
    assert_eq!(answer(&daemon, asked.clone()), "done");
    let said = &told(&daemon)[0];
    assert!(said.contains("bell-hello 2.0") && said.contains("\n2.0"), "{said}");

    let daemon = with_model(&index, "never");
    assert_eq!(answer(&daemon, asked.clone()), "done");
    let said = &told(&daemon)[0];
    assert!(said.contains("`install_packages` may not be used here"), "{said}");
    assert!(events_of(&daemon, "packages_installed").is_empty());

    let daemon = with_model(&index, "ask");
    // Before any code of a model, a cell of the owner just installs.
    assert_eq!(value(&daemon, "install_packages(['bell-dep'])"), "['bell-dep 1.0']");
    let number = begin_ask(&daemon, asked.clone());
    wait_for_state(&daemon, number, "waiting");
    assert_eq!(
        events_of(&daemon, "packages_installed").len(),
        1,
        "nothing is installed before a person decides"
    );
    decide_next(&daemon, json!({"accept": {}}));
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    assert!(told(&daemon)[0].contains("bell-hello 2.0"), "{:?}", told(&daemon));

    let daemon = with_model(&index, "ask");
    let number = begin_ask(&daemon, asked);
    decide_next(&daemon, json!({"reject": {"reason": "not now"}}));
    end_of(&daemon, number);
    assert!(events_of(&daemon, "packages_installed").is_empty());
    // The command line is the owner's own word.
    daemon.cli(["install", "-s", S, "bell-dep"]).ok();
}

#[test]
fn a_model_calls_the_tool_as_the_policy_says() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let asked = json!({"text": "go", "fresh": true});
    let with_policy = |policy: &str| {
        let daemon = with_model(&index, policy);
        let called = calls("install_packages", &json!({"packages": ["bell-hello"]}));
        write_script(&daemon, &conversation("go", &[called, runs("import sklearn"), says("done")]));
        daemon
    };

    let daemon = with_policy("auto");
    assert_eq!(answer(&daemon, asked.clone()), "done");
    let said = told(&daemon);
    assert!(said[0].contains("bell-hello 2.0"), "{said:?}");
    assert!(said[1].contains("`%pip install scikit-learn`"), "{said:?}");

    let daemon = with_policy("never");
    assert_eq!(answer(&daemon, asked.clone()), "done");
    let said = told(&daemon);
    assert!(said[0].contains("there is no tool `install_packages`"), "{said:?}");
    assert!(said[1].contains("this code may install none") && !said[1].contains("%pip"), "{said:?}");
    assert!(events_of(&daemon, "packages_installed").is_empty());

    let decisions =
        [(json!({"accept": {}}), 1, "answered"), (json!({"reject": {"reason": "not now"}}), 0, "rejected")];
    for (decision, installed, outcome) in decisions {
        let daemon = with_policy("ask");
        let number = begin_ask(&daemon, asked.clone());
        wait_for_state(&daemon, number, "waiting");
        assert!(events_of(&daemon, "packages_installed").is_empty(), "nothing before a person decides");
        decide_next(&daemon, decision);
        assert_eq!(text(&end_of(&daemon, number), "outcome"), outcome);
        assert_eq!(events_of(&daemon, "packages_installed").len(), installed);
    }
}
