//! The tools of the configuration, checked before the daemon serves.

use super::serve::DaemonError;
use crate::config::Settings;
use crate::protocol::ask::ApprovalPolicy;
use crate::tools::{Allowed, Registry, RegistryError};

/// The tools of every session: the built-in ones and those of the configuration, as far as the configuration allows
/// them.
pub(super) fn load(settings: &Settings) -> Result<Registry, DaemonError> {
    let wrong = |error: RegistryError| {
        let hint = match &error {
            RegistryError::Collision(name) => {
                format!(
                    "Belljar has a tool of this name; call `[tool.{name}]` of the configuration otherwise"
                )
            }
            RegistryError::BadName(name) | RegistryError::BadSchema { tool: name, .. } => {
                format!("mend `[tool.{name}]` of the configuration")
            }
            RegistryError::Unknown { .. } => "mend `agent.tools` in the configuration".to_owned(),
            RegistryError::NoRoom(no_room) => no_room.hint(),
        };
        DaemonError::Config(format!("{error}\n\nhint: {hint}"))
    };
    let all = Registry::built_in()
        .and_then(|built_in| built_in.with_commands(&settings.command_tools))
        .and_then(|tools| tools.with_templates(&settings.templates));
    let tools = all.and_then(|all| narrowed(&all, settings.agent.tools.as_deref())).map_err(wrong)?;
    if settings.agent.tools.as_ref().is_some_and(Vec::is_empty) {
        tracing::warn!("`agent.tools` is empty: models have no tools, and cannot run Python");
    }
    // With a misspelt name the intended tool would run without approval.
    if let ApprovalPolicy::Tools(names) = &settings.agent.approval
        && let Some(name) = names.iter().find(|name| tools.definition(name).is_none())
    {
        return Err(DaemonError::Config(format!(
            "`agent.approval` names `{name}`, which is no tool\n\nhint: known are: {}",
            tools.names().join(", ")
        )));
    }
    Ok(tools)
}

/// The tools that the setting names; `*` stands for all that need not be named.
fn narrowed(all: &Registry, names: Option<&[String]>) -> Result<Registry, RegistryError> {
    let usual = all.narrowed(&Allowed::All)?;
    let Some(names) = names else { return Ok(usual) };
    let (stars, named): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| *name == "*");
    let usual = if stars.is_empty() { Vec::new() } else { usual.names() };
    all.narrowed(&Allowed::only(named.into_iter().cloned().chain(usual)))
}
