//! The configuration of a daemon, as it tells of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A header of every answer to whoever runs the daemon: the configuration file that it has read.
pub const CONFIG_HEADER: &str = "belljar-config";

/// `GET /v1/config`: the configuration in use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigView {
    /// The file that is read; where there is none, the defaults hold.
    pub file: String,
    /// The values by `section.key`.
    pub values: BTreeMap<String, ConfigValue>,
}

/// A value and where it came from; both are null for one that is not set anywhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigValue {
    pub value: Value,
    pub from: Option<String>,
}

/// `POST /v1/config/reload`: what has changed in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigReloaded {
    pub file: String,
    /// Keys whose new values hold from now on.
    pub applied: Vec<String>,
    /// Keys whose new values hold when the daemon is started anew.
    pub needs_restart: Vec<String>,
}
