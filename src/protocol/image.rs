//! Images that users build for themselves: the request, and what is known of such an image.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::principal::Principal;

/// `POST /v1/images/build`: build an image for sessions of the caller, of packages or of a Dockerfile. The answer is a
/// stream of JSON lines, as for a pull; the last one has the `image`, or a `problem`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildImage {
    /// The name by which sessions ask for it, with a tag or without; no registry has it.
    pub name: String,
    /// The image to which packages are added; if not set, the one of sessions that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Packages to add, written as for an installation into a session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// The text of a Dockerfile, which is built with no other file. Its steps have the rights and the network of the
    /// container engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<String>,
}

/// How an image of a user came to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageOrigin {
    /// Who built it, and whose sessions alone may use it.
    pub owner: Principal,
    pub built_at: String,
    /// The image to which packages were added; none for a Dockerfile.
    pub from: Option<String>,
    /// What was asked for; empty for a Dockerfile.
    pub packages: Vec<String>,
}
