//! Turns the TOML that people write into [`Settings`] that the rest of Belljar can rely on.
//!
//! Layers, each over the one before: the embedded `config/default.toml`, then one file: the one
//! named by `--config` or `BELLJAR_CONFIG`, else the machine's (for a daemon of root) or the user's own. All problems
//! of all layers are reported at once, each with its place in the file, and
//! [`Loaded::values`] says where each value came from.
//!
//! This module knows nothing about actors, HTTP or Docker.

mod agent;
mod entry;
mod layer;
mod live;
mod load;
mod load_agent;
mod load_models;
mod load_packages;
mod load_programs;
mod load_quota;
mod paths;
mod quota;
mod reader;
mod settings;
mod units;

pub use agent::{Agent, CommandTool, Model, Named, Provider, Template, TemplateParameter};
pub use live::{Changes, LiveSettings, merged};
pub use load::{ConfigError, Loaded, SourcedValue, load, load_text};
pub use paths::{Paths, SYSTEM_SOCKET, Serving, has_user_manager, is_system};
pub use quota::{Limits, Quota};
pub use settings::{InstallPolicy, MIN_MEMORY_BYTES, Packages, Pull, Sandbox, Settings};
pub use units::{parse_duration, parse_size, show_size};
