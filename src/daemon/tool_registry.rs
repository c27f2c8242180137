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
    let all = Registry::built_in().and_then(|built_in| built_in.with_commands(&settings.command_tools));
    let allowed = match settings.agent.tools.as_slice() {
        [] => Allowed::All,
        names => Allowed::only(names),
    };
    let tools = all.and_then(|all| all.narrowed(&allowed)).map_err(wrong)?;
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
