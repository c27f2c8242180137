//! Reads `[packages]`.

use super::agent::Named;
use super::entry::Entry;
use super::reader::{Reader, read_all};
use super::settings::Packages;
use crate::packages::requirement::NameRules;

impl Reader<'_> {
    /// `users` and `groups` have the lists of single users and groups.
    pub(super) fn packages(&mut self, users: Named<NameRules>, groups: Named<NameRules>) -> Option<Packages> {
        let packages = read_all!(Packages {
            index: Some(self.optional("packages.index")),
            hosts: self.required("packages.hosts"),
            names: self.package_names(),
            names_by_user: Some(users),
            names_by_group: Some(groups),
            by_owner: self.required("packages.by_owner"),
            by_models: self.required("packages.by_models"),
            sources: self.required("packages.sources"),
            shared: self.required("packages.shared"),
            download_bytes: self.positive_bytes("packages.download"),
            unpacked_bytes: self.positive_bytes("packages.unpacked"),
            files: self.positive("packages.files"),
            timeout: self.positive("packages.timeout"),
            cache_bytes: self.bytes("packages.cache"),
        });
        let encrypted = packages.index.as_ref().is_none_or(|index| index.starts_with("https://"));
        self.check("packages.index", encrypted, "it has to be an `https://` URL");
        Some(packages)
    }

    fn package_names(&mut self) -> Option<NameRules> {
        let (allow, deny) =
            (self.required::<Vec<String>>("packages.allow"), self.required::<Vec<String>>("packages.deny"));
        Some(NameRules::new(&allow?, &deny?))
    }
}

/// The lists of one user or group.
pub(super) fn own_package_names(entry: &mut Entry<'_, '_>) -> NameRules {
    let (allow, deny): (Option<Vec<String>>, Option<Vec<String>>) =
        (entry.optional("packages_allow"), entry.optional("packages_deny"));
    NameRules::new(&allow.unwrap_or_default(), &deny.unwrap_or_default())
}

/// An address without what stands before its host, which may be a password.
pub(super) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://****@{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::load_text;
    use super::*;
    use crate::protocol::principal::Principal;

    #[test]
    fn all_lists_that_are_about_a_user_hold() {
        let text = "[packages]\ndeny = [\"Evil_*\"]\n[user.alice]\npackages_deny = [\"torch\"]\nsessions = 3\n\
                    [user.1001]\npackages_allow = [\"numpy\"]\n[group.students]\npackages_deny = [\"Big.Thing\"]\n";
        let packages = load_text("c.toml".as_ref(), text).unwrap().settings.packages;
        let may = |uid, name: Option<&str>, groups: &[&str], package: &str| {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            let rules = packages.rules_of(Principal::new(uid), name, &groups);
            rules.iter().all(|rules| rules.permits(package))
        };
        assert!(may(1000, None, &[], "torch") && !may(1000, None, &[], "evil-twin"));
        assert!(!may(1000, Some("alice"), &[], "torch") && may(1000, Some("alice"), &[], "numpy"));
        assert!(may(1001, None, &[], "numpy") && !may(1001, None, &[], "torch"));
        assert!(!may(1000, None, &["students"], "big-thing") && may(1000, None, &["staff"], "big-thing"));
        assert!(load_text("c.toml".as_ref(), "[user.alice]\npackages_denied = []\n").is_err());
    }

    #[test]
    fn no_value_shows_a_password() {
        for (url, shown) in [
            ("https://me:pass@a.test/simple", "https://****@a.test/simple"),
            ("https://me:p@ss@a.test", "https://****@a.test"),
            ("https://token@a.test:8/", "https://****@a.test:8/"),
            ("https://a.test/@x", "https://a.test/@x"),
        ] {
            assert_eq!(without_password(url), shown);
        }
        let text = "[packages]\nindex = \"https://me:pass@a.test/simple\"\n";
        let values = load_text("c.toml".as_ref(), text).unwrap().values;
        assert_eq!(values["packages.index"].as_ref().unwrap().value, "https://****@a.test/simple");
    }
}
