//! Packages that are installed into a session: the request, and what came of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ids::SessionName;
use super::principal::Principal;

/// Packages to install into a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPackages {
    /// Names with extras, ranges of versions and markers, as in `pandas[excel]>=2,<3`. No URLs, paths or options.
    pub packages: Vec<String>,
    /// Versions that the session or its image has may be replaced by others; the session is reset then.
    #[serde(default)]
    pub reset: bool,
    /// A package that has no wheel may be built from its source, which runs its code in the installer's sandbox. The
    /// administrator has to allow it (`packages.sources`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sources: bool,
}

/// A package in one version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct PackageVersion {
    pub name: String,
    pub version: String,
}

/// A package whose files the daemon has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct InstalledPackage {
    pub name: String,
    pub version: String,
    /// The SHA-256 of the package's `RECORD`, which has the hashes of all its files.
    pub sha256: String,
}

impl From<&InstalledPackage> for PackageVersion {
    fn from(package: &InstalledPackage) -> Self {
        Self { name: package.name.clone(), version: package.version.clone() }
    }
}

/// A version that gives way to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplacedPackage {
    pub name: String,
    pub has: String,
    pub wants: String,
}

/// All packages of a session beside those of its image, as one folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PackageSet {
    /// The key by which the daemon keeps the folder: of the image, its Python, the platform and the packages.
    pub key: String,
    /// Everything that was asked for so far.
    pub requirements: Vec<String>,
    pub packages: Vec<InstalledPackage>,
    pub bytes: u64,
    /// Whether packages without a wheel were built from their sources.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sources: bool,
}

/// What came of a request for packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstalledPackages {
    /// All packages that the session has beside those of its image.
    pub packages: Vec<InstalledPackage>,
    /// What was asked for, or is needed for it, and is in the image already.
    pub in_image: Vec<PackageVersion>,
    /// Whether nothing had to be downloaded.
    pub cached: bool,
    /// What gave way to other versions; the session was reset then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<ReplacedPackage>,
}

/// How an installation ended that brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstallEnd {
    /// The image has all that was asked for.
    InImage,
    Failed,
    /// The daemon ended while it was under way. Nothing of it is there; who asked for it may ask again.
    Interrupted,
}

/// A set of packages that is kept for later sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptPackages {
    /// User id of who pays for it.
    pub owner: Principal,
    /// The key of the set: of the image, its Python, the platform and the packages.
    pub set: String,
    /// Its packages; of a very large set the first.
    pub packages: Vec<PackageVersion>,
    /// What it takes on the disk.
    pub bytes: u64,
    /// The sessions that use it, with or without a sandbox; of other users only for administrators who ask for all.
    pub used_by: Vec<SessionName>,
    /// Whether anything uses it, so that it is not removed.
    pub in_use: bool,
    /// When a session asked for it last.
    pub last_used: String,
}

/// `GET /v1/packages`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptPackagesList {
    pub sets: Vec<KeptPackages>,
}

/// `DELETE /v1/packages`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClearedPackages {
    /// The number of sets that were removed.
    pub sets: u64,
    /// What they took on the disk.
    pub bytes: u64,
    /// The number of sets that stay, because something uses them.
    pub in_use: u64,
}
