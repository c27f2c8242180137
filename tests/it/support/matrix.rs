//! What the environment says about a run of the tests: whether there is an engine, whether there is time, how large the pool is, when
//! checkpoints are made.

use std::time::Duration;

use super::jails;

/// How long a session rests between two cells where checkpoints wait for that, which takes a part of it.
const REST: Duration = Duration::from_millis(100);

/// False only if the environment says that there shall be no engine; a missing engine is a failure.
pub fn engine() -> bool {
    if jails::ground().is_some() {
        return true;
    }
    if has_no_engine() {
        eprintln!("NOT RUN: this test needs a container engine, and BELLJAR_TEST_NO_DOCKER=1 is set");
        return false;
    }
    true
}

/// Whether the environment says that there shall be no engine.
pub fn has_no_engine() -> bool {
    std::env::var_os("BELLJAR_TEST_NO_DOCKER").is_some_and(|value| value == "1")
}

/// Whether the environment asks for the whole of what an ordinary run takes a part of.
pub fn is_long_run() -> bool {
    std::env::var_os("BELLJAR_LONG_TESTS").is_some_and(|value| value == "1")
}

/// The configuration with a pool of the size that `BELLJAR_TEST_POOL` says, and with the checkpoints that
/// `BELLJAR_TEST_CHECKPOINTING` says, unless a test has its own. Without the first variable there is no pool, so that a
/// test finds the sandboxes that it made and no others.
pub fn of_the_matrix(config: &str) -> String {
    let mut config = config.to_owned();
    if !config.contains("[pool]") {
        let size = std::env::var("BELLJAR_TEST_POOL").unwrap_or_else(|_| "0".into());
        config = format!("{config}\n[pool]\nsize = {size}\n");
    }
    let Ok(policy) = std::env::var("BELLJAR_TEST_CHECKPOINTING") else { return config };
    let line = format!("[sandbox]\ncheckpointing = \"{policy}\"\n");
    if config.contains("checkpointing") {
        config
    } else if config.contains("[sandbox]\n") {
        config.replacen("[sandbox]\n", &line, 1)
    } else {
        config + &line
    }
}

/// False where the tests run without checkpoints: then a cell that dies takes the variables along, and nothing is undone.
pub fn keeps_variables() -> bool {
    needs_checkpoints("off")
}

/// False also where checkpoints wait until a session rests: then a death that comes at once goes back further.
pub fn keeps_every_state() -> bool {
    needs_checkpoints("idle") && keeps_variables()
}

/// False, and says so, if the tests run with this policy.
fn needs_checkpoints(policy: &str) -> bool {
    let is_set = is_policy(policy);
    if is_set {
        eprintln!("NOT RUN: this test needs checkpoints, and BELLJAR_TEST_CHECKPOINTING={policy} is set");
    }
    !is_set
}

/// Whether the tests run with this policy of checkpoints.
fn is_policy(policy: &str) -> bool {
    std::env::var("BELLJAR_TEST_CHECKPOINTING").is_ok_and(|set| set == policy)
}

/// Lets the checkpoint behind a cell be made, where that waits until the session rests.
pub fn rest_after_a_cell() {
    if is_policy("idle") {
        std::thread::sleep(REST);
    }
}
