//! Combines the layers into [`Settings`]: the last layer that sets a key wins, then the whole is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use super::layer::{ConfigProblem, Layer, Source};
use super::paths::Paths;
use super::reader::{Reader, read_all};
use super::settings::{
    Admin, Api, Cells, Daemon, Jobs, MIN_MEMORY_BYTES, Pool, PoolPreload, Sandbox, Sessions, Settings,
    Snapshots,
};
use crate::protocol::config::ConfigValue;
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

impl Loaded {
    /// The values as they are told to people and programs.
    #[must_use]
    pub fn views(&self) -> BTreeMap<String, ConfigValue> {
        let view = |found: &SourcedValue| ConfigValue {
            value: found.value.clone(),
            from: Some(found.source.to_string()),
        };
        let views = |(key, found): (&String, &Option<SourcedValue>)| {
            (key.clone(), found.as_ref().map(view).unwrap_or_default())
        };
        self.values.iter().map(views).collect()
    }
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
            snapshots: self.snapshots(),
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
            preload: self.pool_preload("pool.preload"),
        });
        self.check("pool.size", pool.size <= MAX_POOL, "it has to be at most 256");
        Some(pool)
    }

    fn snapshots(&mut self) -> Option<Snapshots> {
        Some(read_all!(Snapshots {
            enabled: self.required("snapshots.enabled"),
            at_rest: self.positive("snapshots.at_rest"),
            max_bytes: self.positive_bytes("snapshots.max_bytes"),
            names: self.required("snapshots.names"),
            wake: self.required("snapshots.wake"),
        }))
    }

    /// Reads the modules to preload; files with imports are read here, once.
    fn preload(&mut self, key: &'static str) -> Option<Vec<String>> {
        let entries = self.required::<Vec<String>>(key)?;
        Some(self.imports(key, entries))
    }

    fn pool_preload(&mut self, key: &'static str) -> Option<PoolPreload> {
        let lists = self.required::<PoolPreload>(key)?.0;
        let lists = lists.into_iter().map(|(image, entries)| (image, self.imports(key, entries)));
        Some(PoolPreload(lists.collect()))
    }

    /// The entries, with those of files in the places of their names.
    fn imports(&mut self, key: &'static str, given: Vec<String>) -> Vec<String> {
        let mut entries = Vec::new();
        for entry in given {
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
        entries
    }
}

#[cfg(test)]
mod tests;
