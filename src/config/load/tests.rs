//! Tests of reading the configuration.

use super::super::settings::{LogLevel, Pull};
use super::*;
use crate::protocol::api::Checkpointing;
use crate::protocol::receipt::Isolation;
use std::time::Duration;

fn with(text: &str) -> Result<Loaded, ConfigError> {
    load_text(Path::new("config.toml"), text)
}

#[test]
fn the_defaults_are_the_ones_documented() {
    let settings = resolve(&[]).unwrap().settings;
    // The agent's settings and the quotas are tested next to the code that reads them.
    let agent = settings.agent.clone();
    assert_eq!(
        settings,
        Settings {
            agent,
            models: BTreeMap::new(),
            command_tools: BTreeMap::new(),
            templates: BTreeMap::new(),
            sandbox: Sandbox {
                backend: Backend::Auto,
                minimum_isolation: Isolation::None,
                image: None,
                images: ["python:3.12", "belljar/science", "belljar/base"].map(String::from).to_vec(),
                pull: Pull::Never,
                runtime: None,
                memory_bytes: 1 << 30,
                max_memory_bytes: 16 << 30,
                cpus: 1.0,
                max_cpus: 16.0,
                pids: 256,
                open_files: 1024,
                tmp_bytes: 64 << 20,
                tmp_inodes: 16384,
                shm_bytes: 16 << 20,
                workspace_bytes: 1 << 30,
                disk_reserve_bytes: 256 << 20,
                memory_reserve_bytes: 256 << 20,
                max_age: Duration::from_secs(24 * 3600),
                orphan_life: Duration::from_secs(3600),
                checkpoints: 8,
                checkpointing: Checkpointing::Every,
                checkpoint_bytes: 512 << 20,
                uid_first: 2_100_000_000,
                uid_count: 10_000,
            },
            cells: Cells {
                timeout: Duration::from_secs(30),
                max_timeout: Duration::from_secs(3600),
                queue: 16,
                output_head: 64 << 10,
                output_tail: 64 << 10,
                spill: 256 << 20,
            },
            snapshots: Snapshots {
                enabled: true,
                at_rest: Duration::from_secs(30),
                max_bytes: 2 << 30,
                names: 16,
                wake: true,
            },
            sessions: Sessions { idle: Duration::from_secs(3600), preload: Vec::new() },
            pool: Pool {
                size: 1,
                memory_bytes: 1 << 30,
                preload: PoolPreload(BTreeMap::from([("*".into(), Vec::new())])),
            },
            jobs: Jobs { slots: 4, timeout: Duration::from_secs(600), keep: Duration::from_secs(7 * 86_400) },
            packages: settings.packages.clone(),
            quota: settings.quota.clone(),
            admin: Admin { group: "belljar-admin".into() },
            api: Api { body: 16 << 20 },
            daemon: Daemon { log_level: LogLevel::Info },
        }
    );
}

#[test]
fn modules_to_begin_with_may_be_in_a_file_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine.py"), "import json  # text\n").unwrap();
    let config = folder.path().join("config.toml");
    let load = |text: &str| load_text(&config, &format!("[sessions]\npreload = {text}\n"));
    let settings = load("[\"numpy as np\", \"@mine.py\"]").unwrap().settings;
    assert_eq!(settings.sessions.preload, ["numpy as np", "import json"]);
    for (wrong, expected) in [("[\"@absent\"]", "cannot be read"), ("[\"x = 1\"]", "is no import")] {
        let error = load(wrong).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("line 2") || error.contains(":2"), "{error}");
    }
}

#[test]
fn the_pools_modules_are_for_all_images_or_by_image() {
    let load = |text: &str| with(&format!("[pool]\npreload = {text}\n"));
    let modules =
        |loaded: &Loaded, image: &str| loaded.settings.pool.preload.of(|name| name == image).to_vec();
    let all = load("[\"numpy\"]").unwrap();
    assert_eq!(modules(&all, "belljar/base"), ["numpy"]);
    let table = load(r#"{ "belljar/science" = ["numpy", "pandas"], "*" = ["json"] }"#).unwrap();
    assert_eq!(modules(&table, "belljar/science"), ["numpy", "pandas"]);
    assert_eq!(modules(&table, "belljar/base"), ["json"]);
    let one = with("[pool.preload]\n\"belljar/science\" = [\"numpy\"]\n").unwrap();
    assert!(modules(&one, "belljar/base").is_empty());
    for (wrong, said) in [
        ("3", "a table of such by image"),
        ("{ a = 3 }", "`a`: expected"),
        ("{ a = [\"x = 1\"] }", "is no import"),
    ] {
        let error = load(wrong).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_file_changes_what_it_names_and_nothing_else() {
    let loaded = with("[sandbox]\nmemory = \"2GiB\"\ncpus = 2\n[cells]\ntimeout = 45\n").unwrap();
    let source = |key: &str| loaded.values[key].as_ref().map(|sourced| sourced.source.clone());
    assert_eq!(loaded.settings.sandbox.memory_bytes, 2 << 30);
    assert!((loaded.settings.sandbox.cpus - 2.0).abs() < f64::EPSILON);
    assert_eq!(loaded.settings.cells.timeout, Duration::from_secs(45));
    assert_eq!(loaded.settings.sandbox.pids, 256);
    assert_eq!(source("sandbox.memory"), Some(Source::File("config.toml".into())));
    assert_eq!(source("sandbox.pids"), Some(Source::Default));
    assert_eq!(source("sandbox.image"), None);
}

#[test]
fn all_problems_are_told_at_once_with_their_lines() {
    let error = with(
        r#"memory = "1GiB"
api = 3

[sandbox]
memroy = "1GiB"
memory = "12x"
cpus = "two"
backend = "chroot"
image = "busybox"
images = ["python:3.12", 7]
pids = -4

[cells]
timeout = "2h"
spill = "100KiB"

[agents]
steps = 3

[sessions]
idle = 0

[quota]
sessions = 1.5
"#,
    )
    .unwrap_err();
    insta::assert_snapshot!(error, @r#"
        the configuration has 13 problems:
          config.toml:1: `memory`: there is no such key
          config.toml:2: `api`: expected a section, found a whole number
          config.toml:5: `sandbox.memroy`: there is no such key; did you mean `sandbox.memory`?
          config.toml:6: `sandbox.memory`: invalid size `12x`: there is no unit `x`; use `KiB`, `MiB`, `GiB` or `TiB`, as in `512MiB`
          config.toml:7: `sandbox.cpus`: expected a number, found text
          config.toml:8: `sandbox.backend`: `chroot` is none of `auto`, `docker`, `bubblewrap`, `process`
          config.toml:10: `sandbox.images`: expected text, found a whole number
          config.toml:11: `sandbox.pids`: `-4` is not a whole number from 0 to 9223372036854775807
          config.toml:14: `cells.timeout`: it is more than `cells.max_timeout`
          config.toml:15: `cells.spill`: `cells.output_head` and `cells.output_tail` do not fit into `cells.spill`
          config.toml:17: `agents`: there is no such section
          config.toml:21: `sessions.idle`: it has to be more than 0
          config.toml:24: `quota.sessions`: expected a whole number, found a number
        "#);
}

#[test]
fn contradictions_are_problems_of_the_value_that_was_set() {
    let error = with(
        "[sandbox]\nmemory = \"32MiB\"\nmax_cpus = 0.5\nimage = \"busybox\"\nuid_first = 1000\n\
             runtime = \"\"\n[machine]\nsessions = 8\n",
    )
    .unwrap_err();
    insta::assert_snapshot!(error, @r#"
        the configuration has 6 problems:
          config.toml:2: `sandbox.memory`: it has to be at least 64MiB
          config.toml:3: `sandbox.max_cpus`: it is less than `sandbox.cpus`
          config.toml:4: `sandbox.image`: it is not among `sandbox.images`
          config.toml:5: `sandbox.uid_first`: ids below 100000 may belong to people and services
          config.toml:6: `sandbox.runtime`: it is empty; leave it out for the engine's default
          config.toml:8: `machine.sessions`: it is less than `quota.sessions`
        "#);
}

#[test]
fn broken_syntax_is_told_with_its_line() {
    insta::assert_snapshot!(with("[sandbox]\npids = \n").unwrap_err(), @r#"the configuration is wrong: config.toml:2: string values must be quoted, expected literal string"#);
}

#[test]
fn a_named_file_has_to_be_there_and_the_usual_one_need_not() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_owned();
    let env = move |name: &str| (name == "HOME").then(|| home.clone().into_os_string());
    let paths = Paths::discover(false, &env).unwrap();
    assert!(load(None, &paths).is_ok());
    let missing = dir.path().join("missing.toml");
    let error = load(Some(&missing), &paths).unwrap_err().to_string();
    assert!(error.contains("missing.toml: it cannot be read"), "{error}");
    std::fs::write(&missing, "[cells]\nqueue = 3\n").unwrap();
    assert_eq!(load(Some(&missing), &paths).unwrap().settings.cells.queue, 3);
}

proptest::proptest! {
    #[test]
    fn any_text_is_answered(text in "\\PC*") {
        let _ = with(&text);
    }
}
