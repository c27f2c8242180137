//! What is wanted of an installer, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use super::cache::Answer;
use super::charges::CopyUse;
use super::index::Index;
use crate::config::Packages;
use crate::packages::requirement::Requirement;
use crate::protocol::ids::SessionName;
use crate::protocol::packages::{PackageSet, PackageVersion, ReplacedPackage};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, ImageFact};
use crate::security_controls;

/// A request for packages, in the sandbox of a session.
pub struct WantedPackages {
    pub owner: Principal,
    pub backend: Backend,
    pub image: ImageFact,
    /// What the session has already.
    pub existing: Option<PackageSet>,
    /// What is wanted in addition.
    pub requirements: Vec<Requirement>,
    /// Whether versions that are there may give way to others.
    pub replace: bool,
    /// Whether packages without a wheel may be built from their sources.
    pub sources: bool,
    /// The session that uses what is installed.
    pub session: Option<SessionName>,
    /// Gives the installation up.
    pub stop: CancellationToken,
}

/// Refuses a backend whose sandboxes packages cannot appear in.
pub fn check_backend(backend: Backend) -> Result<(), Problem> {
    if backend != Backend::Process {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, "packages cannot be installed for the backend `process`")
        .hint("install them on the host, or use `docker` or `bubblewrap`"))
}

/// The outcome of an installation.
#[derive(Clone, Debug)]
pub struct Installed {
    /// All packages of the session; none if the image has everything.
    pub set: Option<PackageSet>,
    /// Keeps their files in the cache.
    pub used: Option<Arc<CopyUse>>,
    pub in_image: Vec<PackageVersion>,
    pub replaced: Vec<ReplacedPackage>,
    /// Whether nothing had to be downloaded.
    pub cached: bool,
}

impl WantedPackages {
    /// Whether sources are built: packages of the session that were built so before count, too.
    pub(super) fn builds_sources(&self) -> bool {
        self.sources || self.existing.as_ref().is_some_and(|set| set.sources)
    }

    /// Code of packages runs only where the administrator allows it.
    pub(super) fn check_sources(&self, settings: &Packages) -> Result<(), Problem> {
        let is_allowed = settings.sources || !security_controls::holds("sources_are_built_by_permission");
        if is_allowed || !self.builds_sources() {
            return Ok(());
        }
        let (what, hint) = if self.sources {
            (
                "packages are not built from their sources here: only wheels are installed",
                "the administrator can allow it with `packages.sources`; or choose a version that has a wheel",
            )
        } else {
            (
                "the session has packages that were built from their sources, which is not done any more",
                "the administrator can allow it again with `packages.sources`; a new session begins without them",
            )
        };
        Err(Problem::new(Code::Forbidden, what).hint(hint))
    }

    /// It runs for the request that asks for it, and not for later ones of the same session, which can be those of a
    /// model. An installer that works for a session with built packages may have to build, so those ask for it, too.
    pub(super) fn check_builds(&self) -> Result<(), Problem> {
        if self.sources || !self.builds_sources() || !security_controls::holds("builds_are_asked_for") {
            return Ok(());
        }
        let what = "the session has packages that were built from their sources, and more could be built beside them";
        Err(Problem::new(Code::Forbidden, what)
            .hint("allow it with `belljar install --sources`; a new session begins without them"))
    }

    /// Nor does it run where it could read a password: that of the index is told to the installer.
    pub(super) fn check_index(&self, index: &Index) -> Result<(), Problem> {
        if !self.builds_sources()
            || !index.has_password()
            || !security_controls::holds("sources_read_no_password")
        {
            return Ok(());
        }
        let what = "packages are not built from their sources while the index has a password, which their code could read";
        Err(Problem::new(Code::Forbidden, what)
            .hint("choose versions that have wheels, or use an index without a password"))
    }

    /// All requirements of the session after this request, as text.
    pub(super) fn all(&self) -> BTreeSet<String> {
        let superseded = if self.replace { self.superseded() } else { BTreeSet::new() };
        let before = self.existing.iter().flat_map(|set| &set.requirements);
        let wanted = self.requirements.iter().map(ToString::to_string);
        before.filter(|text| !superseded.contains(*text)).cloned().chain(wanted).collect()
    }

    /// Older requirements of packages that are named anew: where versions may give way, the newer ones stand alone.
    pub(super) fn superseded(&self) -> BTreeSet<String> {
        let wanted: BTreeSet<String> = self.requirements.iter().map(ToString::to_string).collect();
        let is_named = |name: &str| self.requirements.iter().any(|wanted| wanted.name == name);
        let before = self.existing.iter().flat_map(|set| &set.requirements);
        let is_older = |text: &&String| {
            !wanted.contains(*text) && Requirement::parse(text).is_ok_and(|old| is_named(&old.name))
        };
        before.filter(is_older).cloned().collect()
    }

    /// The versions that the session has, to which an installer keeps.
    pub(super) fn pinned(&self) -> Vec<PackageVersion> {
        self.existing.iter().flat_map(|set| &set.packages).map(PackageVersion::from).collect()
    }

    /// Whether a kept answer to the same requirements is one for this session.
    pub(super) fn is_answered_by(&self, answer: &Answer) -> bool {
        let has = self.pinned();
        let is_for_it = answer.pinned.iter().all(|pinned| has.contains(pinned))
            || !security_controls::holds("pinned_answers_are_for_who_has_them");
        is_for_it && (self.replace || self.changed_by(answer).is_empty())
    }

    /// Versions of the session and of its image that would change with an answer.
    pub(super) fn changed_by(&self, answer: &Answer) -> Vec<ReplacedPackage> {
        let brought = answer.packages.iter().map(|package| (&package.name, &package.version));
        let in_image = answer.in_image.iter().map(|package| (&package.name, &package.version));
        let wanted: BTreeMap<_, _> = brought.chain(in_image).collect();
        let packages = self.existing.iter().flat_map(|set| &set.packages);
        let changed = packages.filter_map(|has| {
            let wants = *wanted.get(&has.name)?;
            (*wants != has.version).then(|| ReplacedPackage {
                name: has.name.clone(),
                has: has.version.clone(),
                wants: wants.clone(),
            })
        });
        // The installer names those of the session, too.
        let all = changed.chain(answer.replaced.iter().cloned());
        all.map(|one| (one.name.clone(), one)).collect::<BTreeMap<_, _>>().into_values().collect()
    }

    pub(super) fn installed(
        &self,
        answer: Answer,
        used: Option<Arc<CopyUse>>,
        cached: bool,
    ) -> Result<Installed, Problem> {
        let replaced = self.changed_by(&answer);
        if !replaced.is_empty() && !self.replace {
            return Err(conflict(&replaced));
        }
        let Answer { key, packages, bytes, in_image, .. } = answer;
        let (requirements, sources) = (self.all().into_iter().collect(), self.builds_sources());
        let set = key.map(|key| PackageSet { key, requirements, packages, bytes, sources });
        Ok(Installed { set, used, in_image, replaced, cached })
    }
}

fn conflict(replaced: &[ReplacedPackage]) -> Problem {
    let list: Vec<String> = replaced
        .iter()
        .map(|one| format!("`{}` {} is there, {} is needed", one.name, one.has, one.wants))
        .collect();
    Problem::new(Code::PackageConflict, format!("versions do not fit together: {}", list.join("; "))).hint(
        "code may have imported what is there: `belljar install --reset` replaces it, and resets the session",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::packages::InstalledPackage;

    fn wanted(sources: bool, before: bool) -> WantedPackages {
        let set = |sources| PackageSet {
            key: "a1".into(),
            requirements: Vec::new(),
            packages: Vec::new(),
            bytes: 0,
            sources,
        };
        WantedPackages {
            owner: Principal::new(1000),
            backend: Backend::Docker,
            image: ImageFact { reference: "python:3.12".into(), id: "sha256:0".into() },
            existing: Some(set(before)),
            requirements: vec![Requirement::parse("bell").unwrap()],
            replace: false,
            sources,
            session: None,
            stop: CancellationToken::new(),
        }
    }

    /// A session that has `numpy` 2.0 and wants `pandas`.
    fn beside_numpy() -> WantedPackages {
        let numpy = InstalledPackage { name: "numpy".into(), version: "2.0".into(), sha256: String::new() };
        let mut wanted = wanted(false, false);
        wanted.requirements = vec![Requirement::parse("pandas").unwrap()];
        wanted.existing.as_mut().unwrap().packages.push(numpy);
        wanted
    }

    /// An answer for an image that has this version of `numpy`.
    fn answer(numpy: &str) -> Answer {
        Answer {
            key: None,
            packages: Vec::new(),
            bytes: 0,
            in_image: vec![PackageVersion { name: "numpy".into(), version: numpy.into() }],
            replaced: Vec::new(),
            pinned: Vec::new(),
        }
    }

    #[test]
    fn an_answer_beside_versions_of_a_session_is_none_for_sessions_without_them() {
        let (with_numpy, fresh) = (beside_numpy(), wanted(false, false));
        let beside_it = Answer { pinned: with_numpy.pinned(), ..answer("2.0") };
        let resets = WantedPackages { replace: true, ..wanted(false, false) };
        assert!(with_numpy.is_answered_by(&beside_it));
        assert!(!fresh.is_answered_by(&beside_it) && !resets.is_answered_by(&beside_it));
        // What anybody gets does for a session whose versions it has.
        assert!(with_numpy.is_answered_by(&answer("2.0")) && fresh.is_answered_by(&answer("2.1")));
        assert!(!with_numpy.is_answered_by(&answer("2.1")));
    }

    #[test]
    fn what_the_image_has_in_another_version_than_the_session_is_a_change() {
        let wanted = beside_numpy();
        let numpy = ReplacedPackage { name: "numpy".into(), has: "2.0".into(), wants: "2.1".into() };
        assert_eq!(wanted.changed_by(&answer("2.1")), [numpy]);
        assert_eq!(wanted.changed_by(&answer("2.0")), []);
    }

    #[test]
    fn sources_are_built_by_permission_and_where_no_password_can_be_read() {
        let settings =
            |text: &str| crate::config::load_text("c.toml".as_ref(), text).unwrap().settings.packages;
        let (refused, allowed) = (settings(""), settings("[packages]\nsources = true\n"));
        let (open, locked) = (Index::of_hosts(&[("a.test", 443)]), Index::with_password("hunter2"));
        for (sources, before) in [(true, false), (false, true), (true, true)] {
            let wanted = wanted(sources, before);
            assert_eq!(wanted.check_sources(&refused).unwrap_err().code, Code::Forbidden);
            assert!(wanted.check_sources(&allowed).is_ok() && wanted.check_index(&open).is_ok());
            assert_eq!(wanted.check_index(&locked).unwrap_err().code, Code::Forbidden);
        }
        let plain = wanted(false, false);
        assert!(plain.check_sources(&refused).is_ok() && plain.check_index(&locked).is_ok());
    }

    #[test]
    fn a_session_with_built_packages_builds_more_only_when_it_is_asked_for() {
        assert_eq!(wanted(false, true).check_builds().unwrap_err().code, Code::Forbidden);
        for (sources, before) in [(true, true), (true, false), (false, false)] {
            assert!(wanted(sources, before).check_builds().is_ok(), "{sources} {before}");
        }
    }
}
