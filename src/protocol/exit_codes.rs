//! What an exit code says.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// `signal 11 (SIGSEGV)` for −11, and for 139, as shells report it.
pub fn signal_name(code: i32) -> Option<String> {
    let number = match code {
        -64..=-1 => -code,
        129..=192 => code - 128,
        _ => return None,
    };
    // The standard library has the names, if only as the text of an exit status.
    let text = ExitStatus::from_raw(number).to_string();
    text.strip_prefix("signal: ").map(|name| format!("signal {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(-11).as_deref(), Some("signal 11 (SIGSEGV)"));
        assert_eq!(signal_name(139).as_deref(), Some("signal 11 (SIGSEGV)"));
        assert_eq!(signal_name(-9).as_deref(), Some("signal 9 (SIGKILL)"));
        assert_eq!(signal_name(1), None);
        assert_eq!(signal_name(i32::MIN), None);
    }
}
