//! Combines the layers into [`Settings`]: the last layer that sets a key wins, then the whole is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use super::layer::{ConfigProblem, Layer, Source};
use super::paths::Paths;
use super::reader::{Reader, read_all};
use super::settings::{Admin, Api, Cells, Daemon, Jobs, MIN_MEMORY_BYTES, Pool, Sandbox, Sessions, Settings};
use crate::protocol::preload::{Preload, entries_of};
use crate::protocol::receipt::Backend;

const DEFAULTS: &str = include_str!("../../config/default.toml");

/// A configuration file is written by people; a file larger than this is refused as something else.
const FILE_BYTES: u64 = 1024 * 1024;
/// Each sandbox that waits is a process of its own and a place in the range of user ids.
const MAX_POOL: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub settings: Settings,
    /// The value of each `section.key` in the last layer that sets it; `None` if no layer does.
    pub values: BTreeMap<String, Option<SourcedValue>>,
}

/// A value as written in a file, and the file.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcedValue {
    pub value: serde_json::Value,
    pub source: Source,
}

/// All problems of the configuration. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    pub problems: Vec<ConfigProblem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [one] => write!(f, "the configuration is wrong: {one}"),
            many => {
                write!(f, "the configuration has {} problems:", many.len())?;
                many.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

/// Loads the defaults with one file over them: the named file, which must then exist, or the usual file if it exists.
///
/// # Errors
/// All problems of the file, at once.
pub fn load(named: Option<&Path>, paths: &Paths) -> Result<Loaded, ConfigError> {
    let (path, required) = match named {
        Some(path) => (path, true),
        None => (paths.config_file(), paths.config_is_named()),
    };
    match read(path) {
        Ok(text) => load_text(path, &text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !required => resolve(&[]),
        Err(e) => Err(ConfigError {
            problems: vec![ConfigProblem {
                source: Source::File(path.to_owned()),
                line: None,
                key: String::new(),
                message: format!("it cannot be read: {e}"),
            }],
        }),
    }
}

/// Like [`load`], with the text of the file given.
///
/// # Errors
/// All problems of the text, at once.
pub fn load_text(path: &Path, text: &str) -> Result<Loaded, ConfigError> {
    resolve(&[(Source::File(path.to_owned()), text)])
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

fn resolve(texts: &[(Source, &str)]) -> Result<Loaded, ConfigError> {
    let mut problems = Vec::new();
    let layers: Vec<Layer<'_>> = std::iter::once(&(Source::Default, DEFAULTS))
        .chain(texts)
        .map(|(source, text)| Layer::parse(source.clone(), text, &mut problems))
        .collect();
    if !problems.is_empty() {
        // Further problems of a file that does not parse are mostly consequences of the syntax errors.
        return Err(ConfigError { problems });
    }
    let mut reader = Reader { layers, problems, known: BTreeSet::new(), winners: BTreeMap::new() };
    let settings = reader.settings();
    for layer in &reader.layers {
        layer.report_unknown(&reader.known, &mut reader.problems);
    }
    match settings {
        Some(settings) if reader.problems.is_empty() => {
            Ok(Loaded { settings, values: reader.sourced_values() })
        }
        _ => {
            let mut problems = reader.problems;
            problems.sort_by(|a, b| (&a.source, a.line).cmp(&(&b.source, b.line)));
            Err(ConfigError { problems })
        }
    }
}

impl Reader<'_> {
    /// Reads every section, even after one with problems, so that all problems are found.
    fn settings(&mut self) -> Option<Settings> {
        let models = self.models();
        let [(user_limits, user_names), (group_limits, group_names)] = self.users_and_groups();
        Some(read_all!(Settings {
            sandbox: self.sandbox(),
            cells: self.cells(),
            sessions: self.sessions(),
            pool: self.pool(),
            jobs: self.jobs(),
            packages: self.packages(user_names, group_names),
            quota: Some(self.quota(user_limits, group_limits)),
            admin: self.required("admin.group").map(|group| Admin { group }),
            api: self.positive_bytes("api.body").map(|body| Api { body }),
            daemon: self.required("daemon.log_level").map(|log_level| Daemon { log_level }),
            agent: self.agent(&models),
            command_tools: Some(self.command_tools()),
            templates: Some(self.templates(&models)),
            models: Some(models),
        }))
    }

    fn sandbox(&mut self) -> Option<Sandbox> {
        let sandbox = read_all!(Sandbox {
            backend: self.required("sandbox.backend"),
            minimum_isolation: self.required("sandbox.minimum_isolation"),
            image: Some(self.optional("sandbox.image")),
            images: self.required("sandbox.images"),
            pull: self.required("sandbox.pull"),
            runtime: Some(self.optional("sandbox.runtime")),
            memory_bytes: self.bytes("sandbox.memory"),
            max_memory_bytes: self.bytes("sandbox.max_memory"),
            cpus: self.positive("sandbox.cpus"),
            max_cpus: self.positive("sandbox.max_cpus"),
            pids: self.positive("sandbox.pids"),
            open_files: self.positive("sandbox.open_files"),
            tmp_bytes: self.positive_bytes("sandbox.tmp"),
            tmp_inodes: self.positive("sandbox.tmp_inodes"),
            shm_bytes: self.positive_bytes("sandbox.shm"),
            workspace_bytes: self.positive_bytes("sandbox.workspace"),
            disk_reserve_bytes: self.bytes("sandbox.disk_reserve"),
            memory_reserve_bytes: self.bytes("sandbox.memory_reserve"),
            max_age: self.positive("sandbox.life"),
            orphan_life: self.positive("sandbox.orphan_life"),
            checkpoints: self.required("sandbox.checkpoints"),
            checkpointing: self.required("sandbox.checkpointing"),
            checkpoint_bytes: self.bytes("sandbox.checkpoint_budget"),
            uid_first: self.positive("sandbox.uid_first"),
            uid_count: self.positive("sandbox.uid_count"),
        });
        self.check_sandbox(&sandbox);
        Some(sandbox)
    }

    fn check_sandbox(&mut self, sandbox: &Sandbox) {
        self.check("sandbox.images", !sandbox.images.is_empty(), "it has to name at least one image");
        let nameless = sandbox.images.iter().any(|image| image.trim().is_empty());
        self.check("sandbox.images", !nameless, "an image without a name is none");
        let enough =
            sandbox.backend == Backend::Auto || sandbox.backend.isolation() >= sandbox.minimum_isolation;
        self.check("sandbox.backend", enough, "it isolates less than `sandbox.minimum_isolation` asks for");
        let listed = sandbox.image.as_ref().is_none_or(|image| sandbox.images.contains(image));
        self.check("sandbox.image", listed, "it is not among `sandbox.images`");
        let named = sandbox.runtime.as_ref().is_none_or(|runtime| !runtime.trim().is_empty());
        self.check("sandbox.runtime", named, "it is empty; leave it out for the engine's default");
        self.check("sandbox.memory", sandbox.memory_bytes >= MIN_MEMORY_BYTES, "it has to be at least 64MiB");
        let within = sandbox.memory_bytes <= sandbox.max_memory_bytes;
        self.ordered("sandbox.memory", "sandbox.max_memory", within);
        self.ordered("sandbox.cpus", "sandbox.max_cpus", sandbox.cpus <= sandbox.max_cpus);
        let fits = sandbox.uid_first.checked_add(sandbox.uid_count).is_some();
        self.check("sandbox.uid_count", fits, "there are not so many user ids above `sandbox.uid_first`");
        let enough = sandbox.uid_count >= 2;
        self.check("sandbox.uid_count", enough, "one id is for a session, and one for what prepares images");
        let human = sandbox.uid_first < 100_000;
        self.check("sandbox.uid_first", !human, "ids below 100000 may belong to people and services");
    }

    fn cells(&mut self) -> Option<Cells> {
        let cells = read_all!(Cells {
            timeout: self.positive("cells.timeout"),
            max_timeout: self.positive("cells.max_timeout"),
            queue: self.positive("cells.queue"),
            output_head: self.bytes("cells.output_head"),
            output_tail: self.bytes("cells.output_tail"),
            spill: self.bytes("cells.spill"),
        });
        self.ordered("cells.timeout", "cells.max_timeout", cells.timeout <= cells.max_timeout);
        let total = cells.output_head.saturating_add(cells.output_tail);
        if total > cells.spill {
            // The problem is reported for each of these keys that the topmost layer sets, because any of them may be
            // the wrong one.
            let keys = ["cells.output_head", "cells.output_tail", "cells.spill"];
            let set_in = keys.map(|key| self.winners.get(key).copied());
            let top = set_in.iter().max().copied().flatten();
            for (key, _) in keys.into_iter().zip(set_in).filter(|(_, index)| *index == top) {
                self.problem(
                    key,
                    "`cells.output_head` and `cells.output_tail` do not fit into `cells.spill`",
                );
            }
        }
        Some(cells)
    }

    fn jobs(&mut self) -> Option<Jobs> {
        Some(read_all!(Jobs {
            slots: self.positive("jobs.slots"),
            timeout: self.positive("jobs.timeout"),
            keep: self.positive("jobs.keep"),
        }))
    }

    fn sessions(&mut self) -> Option<Sessions> {
        Some(read_all!(Sessions {
            idle: self.positive("sessions.idle"),
            preload: self.preload("sessions.preload")
        }))
    }

    fn pool(&mut self) -> Option<Pool> {
        let pool = read_all!(Pool {
            size: self.required("pool.size"),
            memory_bytes: self.bytes("pool.memory"),
            preload: self.preload("pool.preload"),
        });
        self.check("pool.size", pool.size <= MAX_POOL, "it has to be at most 256");
        Some(pool)
    }

    /// Reads the modules to preload; files with imports are read here, once.
    fn preload(&mut self, key: &'static str) -> Option<Vec<String>> {
        let mut entries = Vec::new();
        for entry in self.required::<Vec<String>>(key)? {
            let Some(file) = entry.strip_prefix('@') else {
                entries.push(entry);
                continue;
            };
            match read(&self.beside(key, file)) {
                Ok(text) => entries.extend(entries_of(&text)),
                Err(error) => self.problem(key, &format!("`{file}` cannot be read: {error}")),
            }
        }
        if let Err(message) = Preload::parse(&entries) {
            self.problem(key, &message);
        }
        Some(entries)
    }
}

#[cfg(test)]
mod tests {
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
                sessions: Sessions { idle: Duration::from_secs(3600), preload: Vec::new() },
                pool: Pool { size: 1, memory_bytes: 1 << 30, preload: Vec::new() },
                jobs: Jobs {
                    slots: 4,
                    timeout: Duration::from_secs(600),
                    keep: Duration::from_secs(7 * 86_400),
                },
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
}
