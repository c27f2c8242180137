//! What a session is asked for when packages are to be installed.

use crate::actors::calls::Reply;
use crate::packages::requirement::Requirement;
use crate::protocol::packages::InstalledPackages;

/// A request for packages that was checked.
pub struct InstallRequest {
    pub requirements: Vec<Requirement>,
    /// Whether versions that are there may give way to others, with a reset.
    pub replace: bool,
    /// Whether packages without a wheel may be built from their sources.
    pub sources: bool,
    pub reply_to: Reply<InstalledPackages>,
}
