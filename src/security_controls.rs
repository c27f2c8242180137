//! Security controls that a test build can switch off, one at a time, to prove that a test notices.
//!
//! A control is named where it is applied: `if security_controls::holds("no_set_id_modes") { … }`, or, where it is a
//! setting, `security_controls::setting("read_only_root", true)`. In every ordinary build it holds, and the check is
//! compiled away. With the cargo feature `mutate`, which no release has, the environment variable `BELLJAR_MUTATE`
//! names the control that does not hold (or several, joined by `+`). `tests/mutate` lists every control with the
//! tests that must fail without it, and `make mutate` runs them.

/// Whether the control is applied.
#[cfg(not(feature = "mutate"))]
#[must_use]
pub const fn holds(_control: &str) -> bool {
    true
}

/// Whether the control is applied: every control is, except those that the environment names.
#[cfg(feature = "mutate")]
#[must_use]
pub fn holds(control: &str) -> bool {
    static SWITCHED_OFF: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let switched_off = SWITCHED_OFF.get_or_init(|| std::env::var("BELLJAR_MUTATE").unwrap_or_default());
    switched_off.split('+').all(|name| name != control)
}

/// The value that a control sets as an option of something larger; `None` if the control does not hold.
#[must_use]
pub fn setting<T>(control: &str, value: T) -> Option<T> {
    holds(control).then_some(value)
}

/// The environment variable that tells Belljar's own child processes which controls do not hold. In an ordinary build
/// all controls hold, so there is none.
#[cfg(not(feature = "mutate"))]
#[must_use]
pub const fn handed_on() -> Option<(&'static str, std::ffi::OsString)> {
    None
}

/// The environment variable that tells Belljar's own child processes which controls do not hold.
#[cfg(feature = "mutate")]
#[must_use]
pub fn handed_on() -> Option<(&'static str, std::ffi::OsString)> {
    const NAME: &str = "BELLJAR_MUTATE";
    std::env::var_os(NAME).map(|value| (NAME, value))
}

/// A file of the kernel, without the statements that apply controls which do not hold. Such a statement fills one line
/// and ends with the comment `# control: NAME`; `pass` takes its place.
#[must_use]
pub fn kernel_text(text: &'static str) -> std::borrow::Cow<'static, str> {
    let is_off = |line: &str| line.split_once("# control: ").is_some_and(|(_, name)| !holds(name.trim()));
    if !cfg!(feature = "mutate") || !text.lines().any(is_off) {
        return text.into();
    }
    let without = |line: &str| {
        let indent: String = line.chars().take_while(|c| c.is_whitespace()).collect();
        if is_off(line) { format!("{indent}pass\n") } else { format!("{line}\n") }
    };
    text.lines().map(without).collect::<String>().into()
}
