//! Security controls that a test build can switch off, one at a time, to prove that a test notices.
//!
//! In every ordinary build each control holds, and the check is compiled away. With the cargo feature `mutate`, which
//! no release has, the environment variable `BELLJAR_MUTATE` names the controls that do not hold, joined by `+`.

/// Whether the control is applied.
#[cfg(not(feature = "mutate"))]
pub const fn holds(_control: &str) -> bool {
    true
}

/// Whether the control is applied: every control is, except those that the environment names.
#[cfg(feature = "mutate")]
pub fn holds(control: &str) -> bool {
    static SWITCHED_OFF: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let switched_off = SWITCHED_OFF.get_or_init(|| std::env::var("BELLJAR_MUTATE").unwrap_or_default());
    switched_off.split('+').all(|name| name != control)
}
