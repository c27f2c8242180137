//! The first thing that has to work.

use crate::support::{Daemon, engine};

#[test]
fn a_variable_lives_from_cell_to_cell() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.cli(["new", "a"]).ok();
    daemon.cli_with_input(["exec", "-s", "a", "-"], "x=41").ok();
    let answer = daemon.cli(["exec", "-s", "a", "x+1"]).ok();
    assert_eq!(answer.stdout, "42\n");
}
