//! The variables of the environment that a session sets in its sandboxes: which can be set, and how many.

use std::collections::BTreeMap;

use super::limits::{ENV_BYTES, ENV_NAME_CHARS, ENV_VARIABLES};
use super::text::quotable;
use super::values::is_ascii_identifier;

pub type Environment = BTreeMap<String, String>;

/// Beginnings of names that decide how the kernel and Python start.
const STEERING_PREFIXES: [(&str, &str); 4] = [
    ("LD_", "the loader of programs"),
    ("GLIBC_", "the C library"),
    ("PYTHON", "the session's Python itself"),
    ("BELLJAR_", "Belljar"),
];
/// Names with values that every sandbox has.
const FIXED: [&str; 5] = ["HOME", "MATPLOTLIBRC", "MPLCONFIGDIR", "PATH", "TMPDIR"];

/// Checks names, number and size of the variables.
///
/// # Errors
/// Says what is wrong with the first variable that cannot be set, or that they are too many.
pub fn check(variables: &Environment) -> Result<(), String> {
    if variables.len() > ENV_VARIABLES {
        return Err(format!("more than {ENV_VARIABLES} variables of the environment are to be set"));
    }
    let bytes: usize = variables.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ENV_BYTES {
        return Err(format!(
            "the variables of the environment have {bytes} bytes, more than {ENV_BYTES}; put large data into a file of \
             the workspace"
        ));
    }
    variables.iter().try_for_each(|(name, value)| check_one(name, value))
}

fn check_one(name: &str, value: &str) -> Result<(), String> {
    if !is_ascii_identifier(name) || name.len() > ENV_NAME_CHARS {
        return Err(format!(
            "`{}` is no name of a variable: it has to consist of at most {ENV_NAME_CHARS} letters, digits and `_`, \
             and not to begin with a digit",
            quotable(name)
        ));
    }
    let steered = STEERING_PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
    if let Some((_, steered)) = steered {
        return Err(format!(
            "`{name}` cannot be set for a session: it would steer {steered}, before any of your code runs; set it in \
             a cell for the programs that the cell starts, with `os.environ`"
        ));
    }
    if FIXED.contains(&name) {
        return Err(format!(
            "`{name}` cannot be set for a session: every sandbox has its own value; set it in a cell for the \
             programs that the cell starts, with `os.environ`"
        ));
    }
    if value.contains('\0') {
        return Err(format!("the value of `{name}` has a zero byte in it, which no variable can have"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: &str) -> Environment {
        [(name.to_owned(), value.to_owned())].into()
    }

    #[test]
    fn ordinary_names_can_be_set_and_steering_ones_cannot() {
        for fine in ["TZ", "_x", "OMP_NUM_THREADS", "LANG", "MPLBACKEND", "HOMEPAGE", "PATH_TO", "LDFLAGS"] {
            assert_eq!(check(&of(fine, "ä = b\n")), Ok(()), "{fine}");
        }
        for (wrong, why) in [
            ("LD_PRELOAD", "steer the loader"),
            ("PYTHONPATH", "steer the session's Python"),
            ("BELLJAR_HOME", "steer Belljar"),
            ("GLIBC_TUNABLES", "steer the C library"),
            ("PATH", "its own value"),
            ("HOME", "its own value"),
            ("", "no name"),
            ("1A", "no name"),
            ("A-B", "no name"),
            ("A=B", "no name"),
            ("Ä", "no name"),
        ] {
            let refused = check(&of(wrong, "x")).unwrap_err();
            assert!(refused.contains(why), "{wrong}: {refused}");
        }
        assert!(check(&of("A", "a\0b")).unwrap_err().contains("zero byte"));
        assert!(check(&of(&"A".repeat(ENV_NAME_CHARS + 1), "")).is_err());
    }

    #[test]
    fn number_and_size_are_bounded() {
        let many = |count: usize| (0..count).map(|n| (format!("A{n}"), String::new())).collect();
        assert_eq!(check(&many(ENV_VARIABLES)), Ok(()));
        assert!(check(&many(ENV_VARIABLES + 1)).is_err());
        assert_eq!(check(&of("A", &"x".repeat(ENV_BYTES - 1))), Ok(()));
        assert!(check(&of("A", &"x".repeat(ENV_BYTES))).unwrap_err().contains("more than"));
    }
}
