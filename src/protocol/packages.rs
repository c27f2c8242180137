//! Packages that are installed into a session: the request, and what came of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Packages to install into a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPackages {
    /// Names with extras, ranges of versions and markers, as in `pandas[excel]>=2,<3`. No URLs, paths or options.
    pub packages: Vec<String>,
    /// Versions that the session or its image has may be replaced by others; the session is reset then.
    #[serde(default)]
    pub reset: bool,
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
