//! Requirements as PEP 508 writes them: a name, extras, ranges of versions and a marker. URLs, paths and options are
//! refused.

use std::collections::BTreeSet;
use std::fmt;

use super::marker::Marker;
use crate::protocol::glob;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::text::quotable;

/// Most requirements of one request, and of a session in all.
pub const REQUIREMENTS: usize = 100;
/// Most bytes of one requirement.
pub const REQUIREMENT_BYTES: usize = 500;
/// Longest name of a package or an extra.
const NAME_BYTES: usize = 100;
/// Most ranges, and extras, of one requirement.
const PARTS: usize = 20;
/// Longer ones first, so that `<=` is not read as `<`.
const OPERATORS: [&str; 8] = ["===", "~=", "==", "!=", "<=", ">=", "<", ">"];
/// Endings of files that `pip` takes for packages.
const FILE_ENDINGS: [&str; 5] = [".whl", ".tar.gz", ".zip", ".egg", ".txt"];

/// Why a text is no requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequirementError {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {REQUIREMENT_BYTES} bytes")]
    TooLong,
    #[error("it holds a control character")]
    ControlCharacter,
    #[error("it is an option, not a package")]
    Option,
    #[error("it is a URL")]
    Url,
    #[error("it is a path or a file")]
    Path,
    #[error("`{0}` is no name of a package")]
    Name(String),
    #[error("the extras in `[…]` cannot be read")]
    Extras,
    #[error("`{0}` is no range of versions")]
    Version(String),
    #[error("the marker after `;` cannot be read")]
    Marker,
    #[error("it has more than {PARTS} parts")]
    TooManyParts,
}

impl RequirementError {
    /// What to write instead.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Option => {
                "name packages only; the index and all other settings of an installation are in `[packages]` of the configuration"
            }
            Self::Url | Self::Path => {
                "packages come from the configured index only: use a name, as in `polars`; a module of your own needs no installation in the workspace"
            }
            _ => {
                "write it as in `polars`, `numpy<3`, `pandas[excel]>=2,<3` or `tomli; python_version < '3.11'`"
            }
        }
    }
}

/// A requirement that was understood. Its text is made from its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    /// Lower case, with single hyphens, as indexes compare names.
    pub name: String,
    extras: BTreeSet<String>,
    versions: BTreeSet<(String, String)>,
    marker: Option<Marker>,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.extras.is_empty() {
            let extras: Vec<&str> = self.extras.iter().map(String::as_str).collect();
            write!(f, "[{}]", extras.join(","))?;
        }
        let versions: Vec<String> =
            self.versions.iter().map(|(by, version)| format!("{by}{version}")).collect();
        f.write_str(&versions.join(","))?;
        match &self.marker {
            Some(marker) => write!(f, " ; {marker}"),
            None => Ok(()),
        }
    }
}

impl Requirement {
    /// Operators and versions, as in `>=` and `2.1`.
    pub fn ranges(&self) -> impl Iterator<Item = (&str, &str)> {
        self.versions.iter().map(|(by, version)| (by.as_str(), version.as_str()))
    }

    /// Whether it is only a name with ranges of versions.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.extras.is_empty() && self.marker.is_none()
    }

    /// # Errors
    /// The text is no requirement, or one that is not allowed.
    pub fn parse(text: &str) -> Result<Self, RequirementError> {
        if text.len() > REQUIREMENT_BYTES {
            return Err(RequirementError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(RequirementError::ControlCharacter);
        }
        let text = text.trim();
        refuse_other_kinds(text)?;
        let (text, marker) = match text.split_once(';') {
            Some((text, marker)) => {
                (text.trim(), Some(Marker::parse(marker).ok_or(RequirementError::Marker)?))
            }
            None => (text, None),
        };
        let end = text.find(|c: char| !is_of_name(c)).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let name = normalised(name).ok_or_else(|| RequirementError::Name(quotable(text)))?;
        let (extras, rest) = extras(rest.trim())?;
        let rest = rest.trim();
        let rest = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(rest);
        let versions = versions(rest)?;
        Ok(Self { name, extras, versions, marker })
    }
}

/// What `pip` would take for something other than a named package.
fn refuse_other_kinds(text: &str) -> Result<(), RequirementError> {
    if text.is_empty() {
        return Err(RequirementError::Empty);
    }
    if text.starts_with('-') {
        return Err(RequirementError::Option);
    }
    let named = text.split(';').next().unwrap_or(text).trim();
    if named.contains("://") || named.contains('@') {
        return Err(RequirementError::Url);
    }
    let is_file = FILE_ENDINGS.iter().any(|ending| named.to_ascii_lowercase().ends_with(ending));
    if named.starts_with('.') || named.starts_with('~') || named.contains(['/', '\\']) || is_file {
        return Err(RequirementError::Path);
    }
    if named.split(' ').any(|word| word.starts_with('-')) {
        return Err(RequirementError::Option);
    }
    Ok(())
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// The name as indexes compare it; none if it is no name.
#[must_use]
pub fn normalised(name: &str) -> Option<String> {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if name.len() > NAME_BYTES || !ends(name.chars().next()) || !ends(name.chars().last()) {
        return None;
    }
    let mut normal = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '.' | '_' | '-' if normal.ends_with('-') => {}
            '.' | '_' | '-' => normal.push('-'),
            c if c.is_ascii_alphanumeric() => normal.push(c.to_ascii_lowercase()),
            _ => return None,
        }
    }
    Some(normal)
}

fn extras(text: &str) -> Result<(BTreeSet<String>, &str), RequirementError> {
    let Some(inside) = text.strip_prefix('[') else { return Ok((BTreeSet::new(), text)) };
    let (inside, rest) = inside.split_once(']').ok_or(RequirementError::Extras)?;
    let names: Option<BTreeSet<String>> = inside.split(',').map(|extra| normalised(extra.trim())).collect();
    let names = names.ok_or(RequirementError::Extras)?;
    if names.len() > PARTS {
        return Err(RequirementError::TooManyParts);
    }
    Ok((names, rest))
}

fn versions(text: &str) -> Result<BTreeSet<(String, String)>, RequirementError> {
    if text.trim().is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut ranges = BTreeSet::new();
    for range in text.split(',').map(str::trim) {
        let wrong = || RequirementError::Version(quotable(range));
        let operator = OPERATORS.into_iter().find(|by| range.starts_with(by)).ok_or_else(wrong)?;
        let version = range[operator.len()..].trim();
        let (base, any) = match version.strip_suffix(".*") {
            Some(base) => (base, true),
            None => (version, false),
        };
        if !is_version(base) || (any && !matches!(operator, "==" | "!=")) {
            return Err(wrong());
        }
        ranges.insert((operator.to_owned(), version.to_owned()));
    }
    if ranges.len() > PARTS {
        return Err(RequirementError::TooManyParts);
    }
    Ok(ranges)
}

/// Whether the text can be a version; the index decides whether there is such a version.
#[must_use]
pub fn is_version(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '!' | '+' | '-' | '_');
    text.len() <= NAME_BYTES
        && text.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(allowed)
}

/// Which packages may be asked for: patterns of names, with `*` and `?`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameRules {
    /// Empty: all.
    pub allow: Vec<String>,
    pub deny: Vec<String>,
}

impl NameRules {
    /// The patterns are compared with normal names, so they are made normal, too: `Bell_*` is `bell-*`.
    #[must_use]
    pub fn new(allow: &[String], deny: &[String]) -> Self {
        let normal = |patterns: &[String]| patterns.iter().map(|pattern| normal_pattern(pattern)).collect();
        Self { allow: normal(allow), deny: normal(deny) }
    }

    /// Whether a package that was not asked for may be there because another package needs it.
    #[must_use]
    pub fn tolerates(&self, name: &str) -> bool {
        !self.deny.iter().any(|pattern| glob::matches(pattern, name))
    }

    #[must_use]
    pub fn permits(&self, name: &str) -> bool {
        let is_allowed = || self.allow.iter().any(|pattern| glob::matches(pattern, name));
        self.tolerates(name) && (self.allow.is_empty() || is_allowed())
    }
}

fn normal_pattern(pattern: &str) -> String {
    let mut normal = String::with_capacity(pattern.len());
    for c in pattern.trim().chars() {
        match c {
            '.' | '_' | '-' if normal.ends_with('-') => {}
            '.' | '_' | '-' => normal.push('-'),
            c => normal.push(c.to_ascii_lowercase()),
        }
    }
    normal
}

/// The requirements of a request, each once, in a fixed order.
///
/// # Errors
/// One of them cannot be read or is not allowed, or there are none or too many. The problem says what to write instead.
pub fn parse_all(texts: &[String], rules: &NameRules) -> Result<Vec<Requirement>, Problem> {
    let bad = |message: String| Problem::new(Code::BadRequest, message);
    if texts.is_empty() {
        return Err(bad("no package is named".into()).hint("name at least one, as in `polars`"));
    }
    if texts.len() > REQUIREMENTS {
        return Err(bad(format!("more than {REQUIREMENTS} packages are named")).hint("install them in parts"));
    }
    let mut found = BTreeSet::new();
    for text in texts {
        let requirement = Requirement::parse(text).map_err(|error| {
            bad(format!("`{}` cannot be installed: {error}", quotable(text))).hint(error.remedy())
        })?;
        if !rules.permits(&requirement.name) {
            return Err(not_permitted(&requirement.name));
        }
        found.insert(requirement);
    }
    Ok(found.into_iter().collect())
}

/// The problem of a package that the administrator's lists do not permit.
#[must_use]
pub fn not_permitted(name: &str) -> Problem {
    Problem::new(Code::Forbidden, format!("the package `{}` may not be installed here", quotable(name)))
        .hint("`allow` and `deny` in `[packages]` of the configuration, and `packages_allow` and `packages_deny` of a user or a group, decide which may")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(text: &str) -> String {
        Requirement::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).to_string()
    }

    #[test]
    fn what_people_write_is_read_and_written_in_one_way() {
        for (written, read) in [
            ("polars", "polars"),
            (" Typing_Extensions ", "typing-extensions"),
            ("numpy<3", "numpy<3"),
            ("numpy >= 1.2 , <3", "numpy<3,>=1.2"),
            ("pandas[excel, SQL]~=2.1", "pandas[excel,sql]~=2.1"),
            ("a (>=1,!=1.5.*)", "a!=1.5.*,>=1"),
            ("torch==2.1.0+cpu", "torch==2.1.0+cpu"),
            ("x===1!2.0rc1", "x===1!2.0rc1"),
            ("tomli; python_version < '3.11'", "tomli ; python_version < \"3.11\""),
            (
                "a ; (os_name=='posix' or extra == \"x\") and sys_platform != 'win32'",
                "a ; (os_name == \"posix\" or extra == \"x\") and sys_platform != \"win32\"",
            ),
        ] {
            assert_eq!(text_of(written), read);
            assert_eq!(text_of(read), read, "and is the same when it is read again");
        }
    }

    #[test]
    fn options_urls_paths_and_garbage_are_refused_with_the_reason() {
        use RequirementError as E;
        for (text, why) in [
            ("", E::Empty),
            ("  ", E::Empty),
            ("--index-url=x", E::Option),
            ("-r", E::Option),
            ("polars --pre", E::Option),
            ("polars -i x", E::Option),
            ("https://example.org/x.whl", E::Url),
            ("x @ https://example.org/x.whl", E::Url),
            ("x@1", E::Url),
            ("git+ssh://example.org/x", E::Url),
            ("./x", E::Path),
            ("../x", E::Path),
            ("/etc/passwd", E::Path),
            ("a\\b", E::Path),
            (".", E::Path),
            ("x.whl", E::Path),
            ("requirements.txt", E::Path),
            ("a\nb", E::ControlCharacter),
            ("a\0", E::ControlCharacter),
            ("a\u{1b}[0m", E::ControlCharacter),
            ("a[", E::Extras),
            ("a[b c]", E::Extras),
            ("a;", E::Marker),
            ("a; import os", E::Marker),
            ("a; python_version < 3", E::Marker),
        ] {
            assert_eq!(Requirement::parse(text), Err(why), "{text}");
        }
        for text in
            ["$(id)", "a b", "a;b", "a`id`", "é", "a==", "a==1;;", "a>1.*", "a=1", "_a", "a|b", "a>b>c"]
        {
            assert!(Requirement::parse(text).is_err(), "{text}");
        }
        assert_eq!(Requirement::parse(&"a".repeat(501)), Err(E::TooLong));
    }

    #[test]
    fn every_refusal_says_what_to_write_instead() {
        let rules = NameRules { allow: Vec::new(), deny: vec!["evil*".into()] };
        for text in ["-r", "x @ y", "./x", "", "a=1", "evil-twin", "Evil.Twin"] {
            let problem = parse_all(&[text.to_owned()], &rules).unwrap_err();
            assert!(problem.hint.is_some(), "{problem:?}");
        }
        assert!(parse_all(&[], &rules).is_err());
        let many: Vec<String> = (0..=REQUIREMENTS).map(|n| format!("p{n}")).collect();
        assert!(parse_all(&many, &rules).is_err());
    }

    #[test]
    fn lists_permit_by_the_normal_name() {
        let only = NameRules { allow: vec!["numpy".into(), "my-*".into()], deny: vec!["my-evil".into()] };
        assert!(only.permits("numpy") && only.permits("my-x"));
        assert!(!only.permits("my-evil") && !only.permits("polars"));
        assert!(NameRules::default().permits("polars"));
        let written = NameRules::new(&["My.*".into()], &["Bell_.Denied".into(), "EVIL*".into()]);
        assert!(written.permits("my-x") && !written.permits("polars") && written.tolerates("polars"));
        assert!(!written.tolerates("bell-denied") && !written.tolerates("evil-twin"));
    }
}
