//! The settings in use, part of which can be exchanged while the daemon runs.

use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::load::{Loaded, SourcedValue};
use super::settings::Settings;

/// The settings in use. Clones see the same ones.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    settings: Arc<RwLock<Arc<Settings>>>,
}

impl LiveSettings {
    #[must_use]
    pub fn new(settings: Arc<Settings>) -> Self {
        Self { settings: Arc::new(RwLock::new(settings)) }
    }

    /// The settings as they are now. Whoever needs several that have to fit together asks once.
    #[must_use]
    pub fn now(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }

    pub fn replace(&self, settings: Arc<Settings>) {
        *self.settings.write() = settings;
    }
}

/// What a configuration that was read again changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Keys whose new values hold from now on.
    pub applied: Vec<String>,
    /// Keys whose new values hold when the daemon is started anew.
    pub needs_restart: Vec<String>,
}

/// Whether a change of this key can hold without a restart. What shapes sandboxes, the registry of tools, the rules of
/// sessions that are there, or the books of the machine is read once.
fn can_change(key: &str) -> bool {
    let (section, name) = key.split_once('.').unwrap_or((key, ""));
    match section {
        "quota" | "user" | "group" | "model" | "template" | "admin" => true,
        "agent" => !matches!(name, "tools" | "approval"),
        _ => false,
    }
}

/// What is said of packages in the table of a user or group, and read once, unlike the rest of the table.
const PACKAGE_LISTS: [&str; 2] = ["packages_allow", "packages_deny"];

/// The configuration in use after `new` was read: what can change is taken from it, all else stays as it is.
#[must_use]
pub fn merged(old: &Loaded, new: &Loaded) -> (Loaded, Changes) {
    let mut now = old.clone();
    let mut changes = Changes::default();
    let stays = |name: &String| is_template_tool(&format!("template.{name}"), old, new);
    let templates = old.settings.templates.iter().filter(|(name, _)| stays(name));
    let others = new.settings.templates.iter().filter(|(name, _)| !stays(name));
    // A template that stays may name a model that the file does not have any more.
    let needed: BTreeSet<&str> = templates
        .clone()
        .filter_map(|(_, template)| template.model.as_deref())
        .filter(|model| !new.settings.models.contains_key(*model))
        .collect();
    let is_needed = |key: &str| key.strip_prefix("model.").is_some_and(|name| needed.contains(name));
    let keys: BTreeSet<&String> = old.values.keys().chain(new.values.keys()).collect();
    let mut wanted = new.values.clone();
    let of_users = keys.iter().filter(|key| key.starts_with("user.") || key.starts_with("group."));
    let lists: Vec<String> = of_users.flat_map(|key| keep_lists(key, &old.values, &mut wanted)).collect();
    let value = |values: &Values, key: &str| values.get(key).cloned().flatten().map(|found| found.value);
    // The values do not show its password.
    let has_new_index = old.settings.packages.index != new.settings.packages.index;
    for key in keys {
        let differs = value(&old.values, key) != value(&wanted, key);
        if differs || (has_new_index && key == "packages.index") {
            let applies = can_change(key) && !is_template_tool(key, old, new) && !is_needed(key);
            if applies { &mut changes.applied } else { &mut changes.needs_restart }.push(key.clone());
        }
    }
    changes.needs_restart.extend(lists);
    for key in &changes.applied {
        take(&mut now.values, &wanted, key);
    }
    now.settings.quota =
        super::Quota { machine: old.settings.quota.machine.clone(), ..new.settings.quota.clone() };
    now.settings.admin = new.settings.admin.clone();
    let models = old.settings.models.iter().filter(|(name, _)| needed.contains(name.as_str()));
    let models = models.chain(&new.settings.models);
    now.settings.models = models.map(|(name, model)| (name.clone(), model.clone())).collect();
    let (agent, before) = (new.settings.agent.clone(), &old.settings.agent);
    now.settings.agent =
        super::Agent { tools: before.tools.clone(), approval: before.approval.clone(), ..agent };
    now.settings.templates =
        templates.chain(others).map(|(name, template)| (name.clone(), template.clone())).collect();
    (now, changes)
}

/// Whether a template is or would be a tool: the registry of tools is made once.
fn is_template_tool(key: &str, old: &Loaded, new: &Loaded) -> bool {
    let Some(name) = key.strip_prefix("template.") else { return false };
    let found = [old, new].map(|loaded| loaded.settings.templates.get(name));
    found.into_iter().flatten().any(|template| template.description.is_some())
}

type Values = BTreeMap<String, Option<SourcedValue>>;

/// Puts the package lists in use of a user or group in the place of new ones; returns the keys of those that differ.
fn keep_lists(key: &str, old: &Values, new: &mut Values) -> Vec<String> {
    let (before, after) = (old.get(key).cloned().flatten(), new.get(key).cloned().flatten());
    let list_in =
        |table: Option<&SourcedValue>, list: &str| table.and_then(|table| table.value.get(list).cloned());
    let differs = |list: &&str| list_in(before.as_ref(), list) != list_in(after.as_ref(), list);
    let lists: Vec<&str> = PACKAGE_LISTS.into_iter().filter(differs).collect();
    let emptied = || before.clone().map(|found| SourcedValue { value: serde_json::json!({}), ..found });
    if !lists.is_empty()
        && let Some(mut table) = after.or_else(emptied)
        && let Some(fields) = table.value.as_object_mut()
    {
        for list in &lists {
            match list_in(before.as_ref(), list) {
                Some(used) => fields.insert((*list).to_owned(), used),
                None => fields.remove(*list),
            };
        }
        // A table that would only have new lists is not there yet.
        if before.is_some() || !fields.is_empty() {
            new.insert(key.to_owned(), Some(table));
        } else {
            new.remove(key);
        }
    }
    lists.into_iter().map(|list| format!("{key}.{list}")).collect()
}

fn take(into: &mut Values, from: &Values, key: &str) {
    match from.get(key) {
        Some(value) => into.insert(key.to_owned(), value.clone()),
        None => into.remove(key),
    };
}

#[cfg(test)]
mod tests {
    use super::super::load::load_text;
    use super::*;
    use std::path::Path;

    fn loaded(text: &str) -> Loaded {
        load_text(Path::new("/c.toml"), text).unwrap()
    }

    #[test]
    fn what_can_change_does_and_the_rest_is_named() {
        let tool = "[template.t]\nprompt = 'a'\ndescription = 'd'\n";
        let old =
            loaded(&format!("{tool}[quota]\nsessions = 5\n[model.a]\nprovider = 'vllm'\nmodel = 'x'\n"));
        let new = "[sandbox]\npids = 9\n[machine]\nsessions = 40\n[agent]\nlanguage = 'zh'\ntools = []\n\
                   [quota]\nsessions = 7\n[model.b]\nprovider = 'vllm'\nmodel = 'y'\n\
                   [user.ann]\npackages_allow = ['numpy']\nsessions = 2\n\
                   [template.t]\nprompt = 'b'\ndescription = 'd'\n[template.u]\nprompt = 'c'\n";
        let new = loaded(new);
        let (now, changes) = merged(&old, &new);
        let keys = |keys: &[String]| keys.join(" ");
        assert_eq!(
            keys(&changes.applied),
            "agent.language model.a model.b quota.sessions template.u user.ann"
        );
        assert_eq!(
            keys(&changes.needs_restart),
            "agent.tools machine.sessions sandbox.pids template.t user.ann.packages_allow"
        );
        assert_eq!(now.settings.agent.language, new.settings.agent.language);
        assert_eq!(now.settings.agent.tools, None);
        assert_eq!(now.settings.sandbox, old.settings.sandbox);
        assert_eq!(now.settings.quota.machine, old.settings.quota.machine);
        assert_eq!(now.settings.quota.everyone, new.settings.quota.everyone);
        assert_eq!(now.settings.models.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(now.settings.templates["t"].prompt, "a");
        assert_eq!(now.settings.templates["u"].prompt, "c");
        assert_eq!(now.values["sandbox.pids"], old.values["sandbox.pids"]);
        assert_eq!(now.values["quota.sessions"], new.values["quota.sessions"]);
        assert!(!now.values.contains_key("model.a"));
        assert_eq!(merged(&now, &now).1, Changes::default());
    }

    #[test]
    fn a_template_that_stays_keeps_its_model() {
        let with = |name: &str| {
            let model = format!("[model.{name}]\nprovider = 'vllm'\nmodel = 'x'\n");
            loaded(&format!("{model}[template.t]\nprompt = 'a'\ndescription = 'd'\nmodel = '{name}'\n"))
        };
        let (old, new) = (with("a"), with("b"));
        let (now, changes) = merged(&old, &new);
        assert_eq!(changes.applied, ["model.b"]);
        assert_eq!(changes.needs_restart, ["model.a", "template.t"]);
        assert_eq!(now.settings.models.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(now.values["model.a"], old.values["model.a"]);
    }

    #[test]
    fn package_lists_of_users_and_a_new_password_need_a_restart() {
        let old = "[packages]\nindex = 'https://me:old@a.test/'\n[user.ann]\npackages_deny = ['x']\n\
                   [user.bob]\npackages_deny = ['x']\n";
        let new = "[packages]\nindex = 'https://me:new@a.test/'\n[user.ann]\nsessions = 2\n\
                   [group.g]\npackages_allow = ['y']\n";
        let (now, changes) = merged(&loaded(old), &loaded(new));
        assert_eq!(changes.applied, ["user.ann"]);
        let lists = ["group.g.packages_allow", "user.ann.packages_deny", "user.bob.packages_deny"];
        assert_eq!(changes.needs_restart[0], "packages.index");
        assert_eq!(changes.needs_restart[1..], lists);
        let shown = |key: &str| now.values.get(key).cloned().flatten().map(|found| found.value);
        let deny = serde_json::json!({"packages_deny": ["x"]});
        assert_eq!(shown("user.ann"), Some(serde_json::json!({"sessions": 2, "packages_deny": ["x"]})));
        assert_eq!((shown("user.bob"), shown("group.g")), (Some(deny), None));
    }
}
