//! Sandboxes without an engine. The suites of cells, checkpoints and restarts run here again, as root
//! and as a user without any rights; what is a jail's own has files of its own.
//!
//! What does not apply, and why:
//! - tests that ask the engine itself (`docker inspect`, `pause`, `rm`): there is none
//! - tests of images, pulls and of packages in an image: a jail shows the host's own Python, which has
//!   none of them; and what depends on the version of Python (`x02`)
//! - a bound on the inodes of `/tmp`, and files in it that cannot be run: bubblewrap has no such options
//! - CPU time of a user without a control group: nothing holds it, and the receipt says so

mod choice;
mod escape;
mod jobs;
mod life;
mod process;

use crate::support::User;

/// Nobody has this account; the kernel does not mind.
const ANN: User = User { uid: 61_101, gid: 61_101, group: None };

macro_rules! again {
    ($who:ident, $user:expr, $($module:ident: $($test:ident),+;)+) => {
        mod $who {
            $(mod $module {
                $(#[test]
                fn $test() {
                    crate::support::jails::in_a_jail($user, crate::docker::$module::$test);
                })+
            })+
        }
    };
}

again! { root, None,
    laws: law_01_seed_variables_are_readable, law_02_persistence_of_bindings,
        law_03_rebind_of_seeded_and_earlier_names_sticks, law_04_a_snippet_of_several_statements_runs_whole,
        law_05_printed_text_is_the_returned_text, law_06_a_syntax_error_is_text_and_the_session_survives,
        law_07_an_exception_is_traceback_text_and_bindings_survive, law_08_keyboard_interrupt_propagates,
        law_09_a_traceback_shows_only_frames_of_the_user,
        law_10_a_traceback_across_snippets_shows_the_earlier_source,
        law_11_nested_runs_do_not_corrupt_each_other;
    cases: failure_by_division, timeout_of_a_sleep_keeps_the_text_so_far, crash_by_an_exit_call,
        recursion_is_a_failure, memory_exhaustion_is_told_by_the_cgroup, timeout_of_an_infinite_loop,
        timeout_without_output, an_exit_of_the_script_is_its_own_reason, x01_python_exception,
        x03_timeout, x04_segfault, x05_out_of_memory, x06_deep_recursion,
        x08_second_error_while_reporting, x09_encoding, x10_end_of_pipe,
        x14_directory_that_cannot_be_entered, x15_cancel_propagates, x16_lost_variables_are_told;
    checkpoints: the_end_of_all_processes_is_told, honest_code_does_not_notice_that_there_are_copies,
        undo_gives_the_variables_of_some_cells_ago, undo_that_cannot_be_done_changes_nothing,
        questions_are_answered_while_a_cell_runs, without_checkpoints_a_crash_loses_the_state_and_says_so;
    output: writes_below_python_are_in_the_output_in_order, both_streams_are_kept_apart_and_in_order,
        a_flood_while_no_cell_runs_belongs_to_none, output_streams_while_the_cell_runs;
    modes: a_fork_cell_sees_everything_and_changes_nothing, isolated_expressions_cannot_get_out,
        an_interrupt_of_a_stubborn_cell_ends_it, an_unused_sandbox_goes_and_the_next_cell_gets_a_new_one;
    preload: modules_are_there_from_the_start_and_after_a_loss, what_cannot_be_imported_is_an_error_of_new,
        families_are_imported_as_far_as_they_are_there;
    restart: a_running_cell_goes_on, a_cell_that_ended_while_no_daemon_ran_has_its_result,
        a_cell_that_died_while_no_daemon_ran_is_told, checkpoints_undo_and_time_limits_outlive_the_daemon,
        restarts_one_after_the_other_lose_nothing;
    jobs: five_scripts_have_five_verdicts, a_script_begins_with_a_clean_slate_and_alone, artifacts_are_data,
        jobs_outlive_the_daemon, a_cancelled_run_leaves_nothing;
}

again! { ordinary_user, Some(super::super::ANN),
    laws: law_02_persistence_of_bindings, law_08_keyboard_interrupt_propagates;
    cases: memory_exhaustion_is_told_by_the_cgroup, timeout_of_an_infinite_loop, x04_segfault,
        x05_out_of_memory, x16_lost_variables_are_told;
    checkpoints: honest_code_does_not_notice_that_there_are_copies,
        without_checkpoints_a_crash_loses_the_state_and_says_so;
    output: writes_below_python_are_in_the_output_in_order;
    modes: a_fork_cell_sees_everything_and_changes_nothing;
    preload: modules_are_there_from_the_start_and_after_a_loss;
    restart: a_running_cell_goes_on, a_cell_that_died_while_no_daemon_ran_is_told,
        checkpoints_undo_and_time_limits_outlive_the_daemon;
    jobs: five_scripts_have_five_verdicts, artifacts_are_data;
}
