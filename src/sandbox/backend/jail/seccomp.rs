//! Compiles the one seccomp profile, which an engine takes as JSON, to the form that the kernel takes.
//!
//! Only the features that this profile uses are supported; anything else in it is an error and never a gap. As in an
//! engine, names of calls that this processor or this list does not have are left out: a call that is not named is
//! denied.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, thiserror::Error)]
#[error("the seccomp profile cannot be compiled: {0}")]
pub struct ProfileError(String);

impl ProfileError {
    fn of(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Profile {
    default_action: Action,
    default_errno_ret: u32,
    #[serde(rename = "archMap")]
    _architectures: serde_json::Value,
    syscalls: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    #[serde(rename = "comment")]
    _comment: Option<String>,
    names: Vec<String>,
    action: Action,
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Vec<Argument>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
enum Action {
    #[serde(rename = "SCMP_ACT_ALLOW")]
    Allow,
    #[serde(rename = "SCMP_ACT_ERRNO")]
    Errno,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Argument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: Operator,
}

#[derive(Clone, Copy, Deserialize)]
enum Operator {
    #[serde(rename = "SCMP_CMP_EQ")]
    Equal,
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    MaskedEqual,
}

impl Argument {
    /// All 64 bits are compared, as in an engine, so a call is also denied for bits that the kernel would ignore.
    fn condition(&self) -> Result<SeccompCondition, ProfileError> {
        let (operator, value) = match self.op {
            Operator::Equal => (SeccompCmpOp::Eq, self.value),
            Operator::MaskedEqual => (SeccompCmpOp::MaskedEq(self.value), self.value_two),
        };
        SeccompCondition::new(self.index, SeccompCmpArgLen::Qword, operator, value).map_err(ProfileError::of)
    }
}

/// `ENOSYS`
const NO_SUCH_CALL: u32 = 38;

/// Calls with the conditions under which they match; a call without a condition always matches.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Filters that must be loaded together: one that denies every call that is not allowed, and one for each other error
/// that a denied call returns. The kernel applies the strictest result.
pub fn compile(profile: &str) -> Result<Vec<Vec<u8>>, ProfileError> {
    let profile: Profile = serde_json::from_str(profile).map_err(ProfileError::of)?;
    if profile.default_action != Action::Errno {
        return Err(ProfileError("it does not deny by default".into()));
    }
    let mut allowed = Rules::new();
    let mut refused: BTreeMap<u32, Rules> = BTreeMap::new();
    for rule in &profile.syscalls {
        for name in &rule.names {
            let Ok(call) = name.parse::<syscalls::Sysno>() else { continue };
            let call = i64::from(call.id());
            match (rule.action, rule.errno_ret) {
                (Action::Allow, None) => add(&mut allowed, call, &rule.args)?,
                // This filter allows the call, so that the other filter decides its error.
                (Action::Errno, Some(errno)) if rule.args.is_empty() => {
                    add(&mut allowed, call, &[])?;
                    add(refused.entry(errno).or_default(), call, &[])?;
                }
                _ => return Err(ProfileError(format!("the rule for `{name}` is of an unknown kind"))),
            }
        }
    }
    let deny = SeccompAction::Errno(profile.default_errno_ret);
    let mut filters = vec![filter(allowed, deny, SeccompAction::Allow)?];
    for (errno, rules) in refused {
        filters.push(filter(rules, SeccompAction::Allow, SeccompAction::Errno(errno))?);
    }
    Ok(filters)
}

/// An extra filter for jails in which only the guardian counts memory: a `memfd` lies in memory and is counted for no
/// process. The call seems not to exist, so that programs use a temporary file instead.
pub fn without_nameless_files() -> Result<Vec<u8>, ProfileError> {
    let rules = Rules::from([(i64::from(syscalls::Sysno::memfd_create.id()), Vec::new())]);
    filter(rules, SeccompAction::Allow, SeccompAction::Errno(NO_SUCH_CALL))
}

fn add(rules: &mut Rules, call: i64, arguments: &[Argument]) -> Result<(), ProfileError> {
    let known = rules.contains_key(&call);
    let entry = rules.entry(call).or_default();
    if arguments.is_empty() {
        entry.clear();
        return Ok(());
    }
    if known && entry.is_empty() {
        return Ok(());
    }
    let conditions = arguments.iter().map(Argument::condition).collect::<Result<Vec<_>, _>>()?;
    entry.push(SeccompRule::new(conditions).map_err(ProfileError::of)?);
    Ok(())
}

fn filter(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<Vec<u8>, ProfileError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(ProfileError::of)?;
    let filter = SeccompFilter::new(rules, otherwise, matched, arch).map_err(ProfileError::of)?;
    let program = BpfProgram::try_from(filter).map_err(ProfileError::of)?;
    // The bytes are in the layout of `struct sock_filter`.
    Ok(program
        .iter()
        .flat_map(|step| {
            let mut bytes = step.code.to_ne_bytes().to_vec();
            bytes.extend([step.jt, step.jf]);
            bytes.extend(step.k.to_ne_bytes());
            bytes
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::spec::seccomp::seccomp_profile;

    /// The kernel's limit for the length of a filter.
    const STEPS: usize = 4096;

    #[test]
    fn the_profile_of_sessions_compiles() {
        let filters = compile(seccomp_profile()).unwrap();
        // The list itself, and the calls that seem not to exist: `clone3`, `openat2` and `splice`.
        assert_eq!(filters.len(), 2);
        for filter in filters {
            assert!(filter.len() % 8 == 0 && filter.len() / 8 <= STEPS, "{}", filter.len());
        }
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        let with = |rule: &str, action: &str| {
            format!(r#"{{"defaultAction":"{action}","defaultErrnoRet":1,"archMap":[],"syscalls":[{rule}]}}"#)
        };
        let fine = r#"{"names":["read","no_such_call"],"action":"SCMP_ACT_ALLOW"}"#;
        assert!(compile(&with(fine, "SCMP_ACT_ERRNO")).is_ok());
        for (rule, action) in [
            (fine, "SCMP_ACT_ALLOW"),
            (r#"{"names":["read"],"action":"SCMP_ACT_TRACE"}"#, "SCMP_ACT_ERRNO"),
            (r#"{"names":["read"],"action":"SCMP_ACT_ERRNO"}"#, "SCMP_ACT_ERRNO"),
            (r#"{"names":["read"],"action":"SCMP_ACT_ALLOW","includes":{}}"#, "SCMP_ACT_ERRNO"),
            (
                r#"{"names":["read"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":1,"op":"SCMP_CMP_GT"}]}"#,
                "SCMP_ACT_ERRNO",
            ),
        ] {
            assert!(compile(&with(rule, action)).is_err(), "{rule}");
        }
    }
}
