//! Reads `[packages]`.

use super::reader::{Reader, read_all};
use super::settings::Packages;
use crate::packages::requirement::NameRules;

impl Reader<'_> {
    pub(super) fn packages(&mut self) -> Option<Packages> {
        let packages = read_all!(Packages {
            index: Some(self.optional("packages.index")),
            hosts: self.required("packages.hosts"),
            names: self.package_names(),
            by_models: self.required("packages.by_models"),
            for_users: self.required("packages.for_users"),
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
        Some(read_all!(NameRules {
            allow: self.required("packages.allow"),
            deny: self.required("packages.deny"),
        }))
    }
}
