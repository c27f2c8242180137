//! The packages of an archive, in the versions that its variables were made with.

use tokio_util::sync::CancellationToken;

use super::import::ImportOptions;
use super::maker::SessionMaker;
use crate::actors::supervisor::admission::sandbox_request;
use crate::packages::requirement::{is_version, normalised};
use crate::protocol::api::NewSession;
use crate::protocol::branch::ArchiveManifest;
use crate::protocol::packages::PackageSet;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Backend;
use crate::protocol::text::quotable;
use crate::sandbox::launch::SandboxRequest;
use crate::sandbox::packages::WantedPackages;
use crate::sandbox::workspace::session_archive::EXPORT_AGAIN;

/// Installs the packages of the session, so that they are in the cache before its sandbox is.
pub(super) async fn install(
    maker: &SessionMaker,
    owner: Principal,
    (manifest, options): (&ArchiveManifest, &ImportOptions),
    request: &NewSession,
    is_trusted: bool,
) -> Result<Option<PackageSet>, Problem> {
    if manifest.packages.is_empty() {
        return Ok(None);
    }
    let requirements = maker.settings.packages.wanted_by_owner(&manifest.packages)?;
    let existing = pinned(manifest, options)?;
    let is_pinned = existing.is_some();
    let settings = &maker.settings.sandbox;
    let image = maker.launcher.built_images.wanted(owner, request.image.as_deref(), &settings.images);
    let sandbox = SandboxRequest { image, ..sandbox_request(settings, request, false) };
    let backend: Backend = request.backend.unwrap_or(settings.backend);
    let choice = maker.launcher.choose(backend, &sandbox.image).await?;
    let image = maker.launcher.backend(choice.backend).resolve_image(&sandbox, &|_| {}).await?;
    let mut wanted = WantedPackages {
        owner,
        backend: choice.backend,
        image,
        existing,
        requirements,
        replace: false,
        sources: false,
        session: request.name.clone(),
        stop: CancellationToken::new(),
    };
    let mut installed = maker.launcher.install(&wanted, &maker.ledger, &|_| {}).await;
    // Building runs code of packages that a stranger may have named, so it is done only where wheels do not do. Where another
    // version has one, the want of a wheel is told as a conflict.
    let lacks_wheels =
        |problem: &Problem| matches!(problem.code, Code::InstallFailed | Code::PackageConflict);
    let may_build = manifest.sources && is_trusted && maker.settings.packages.sources;
    if may_build && installed.as_ref().is_err_and(lacks_wheels) {
        wanted.sources = true;
        installed = maker.launcher.install(&wanted, &maker.ledger, &|_| {}).await;
    }
    let told = |problem: Problem| {
        match problem.code {
        Code::PackageConflict if is_pinned => {
            let what = "the packages of the archive cannot be had in its versions";
            Problem::new(Code::PackageConflict, format!("{what}: {}", problem.message)).hint(
                "use an index and an image that have them; or run the cells again, with others (`--replay --image IMAGE`)",
            )
        }
        Code::InstallFailed if manifest.sources && !is_trusted => problem.hint(
            "packages of the archive were built from their sources, whose code runs for it: `--trust` lets them be built",
        ),
        _ => problem,
    }
    };
    installed.map(|installed| installed.set).map_err(told)
}

/// The package versions that the archive's variables were made with, which the installer then keeps, because pickled objects
/// may not load under others. None if cells make the variables anew in another image, whose Python may need other versions.
fn pinned(manifest: &ArchiveManifest, options: &ImportOptions) -> Result<Option<PackageSet>, Problem> {
    let is_elsewhere = options.image.is_some() || options.backend.is_some();
    if manifest.installed.is_empty() || (options.replay && is_elsewhere) {
        return Ok(None);
    }
    // An installer is told them line by line, and they are a stranger's.
    for package in &manifest.installed {
        if normalised(&package.name).as_ref() != Some(&package.name) || !is_version(&package.version) {
            let shown = quotable(&format!("{}=={}", package.name, package.version));
            let message = format!("the archive cannot be used: `{shown}` is no version of a package");
            return Err(Problem::new(Code::BadRequest, message).hint(EXPORT_AGAIN));
        }
    }
    Ok(Some(PackageSet {
        key: String::new(),
        requirements: Vec::new(),
        packages: manifest.installed.clone(),
        bytes: 0,
        sources: false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::branch::ARCHIVE_FORMAT;
    use crate::protocol::ids::SessionName;
    use crate::protocol::packages::InstalledPackage;
    use crate::protocol::saved_state::BoundRules;

    fn manifest(name: &str, version: &str) -> ArchiveManifest {
        let (name, version) = (name.to_owned(), version.to_owned());
        ArchiveManifest {
            format: ARCHIVE_FORMAT,
            belljar: String::new(),
            exported_at: String::new(),
            session: SessionName::parse("lab").unwrap(),
            request: NewSession::default(),
            image: None,
            python: None,
            packages: vec!["bell".to_owned()],
            installed: vec![InstalledPackage { name, version, sha256: String::new() }],
            sources: false,
            cells: 1,
            snapshot: None,
            rules: BoundRules::default(),
            lacks: Vec::new(),
        }
    }

    #[test]
    fn versions_are_kept_unless_cells_run_again_in_another_image() {
        let archive = manifest("bell", "1.0");
        let is_pinned = |replay, image: Option<&str>| {
            let options =
                ImportOptions { replay, image: image.map(ToOwned::to_owned), ..ImportOptions::default() };
            pinned(&archive, &options).unwrap().is_some_and(|set| set.packages == archive.installed)
        };
        assert!(is_pinned(false, None) && is_pinned(false, Some("other")) && is_pinned(true, None));
        assert!(!is_pinned(true, Some("other")));
        let older = ArchiveManifest { installed: Vec::new(), ..manifest("bell", "1.0") };
        assert_eq!(pinned(&older, &ImportOptions::default()).unwrap(), None);
    }

    #[test]
    fn an_installer_is_told_nothing_but_names_and_versions() {
        for (name, version) in [
            ("bell", "1.0\n--index-url=https://example.org/"),
            ("bell", ""),
            ("bell\n-r /etc/passwd", "1.0"),
            ("--pre", "1.0"),
            ("Bell", "1.0"),
        ] {
            let refused = pinned(&manifest(name, version), &ImportOptions::default()).unwrap_err();
            assert_eq!(refused.code, Code::BadRequest, "{name} {version}");
        }
    }
}
