//! Sandboxes without an engine. The suites of cells, checkpoints and restarts run here again, as root
//! and as a user without any rights; what is a jail's own has files of its own.
//!
//! A test of containers that is `pub` runs here too, which a test of the layers holds. What does not apply, and why:
//! - `every_field_is_what_the_engine_and_the_kernel_say`, `a_container_that_is_taken_away`,
//!   `what_belongs_to_no_session`, `engine`, `pull`, `own_images`, `unfinished_images`: they ask an engine, or make containers of their own. What
//!   they are about has tests of its own here: `escape` (the receipt), `life`, `roots`
//! - `a_daemon_of_a_user`, `a_command_starts_a_daemon`: about Docker's group and its images; every test of
//!   `ordinary_user` is the one, `demo` the other
//! - packages of an image (`success_with_scipy`, `x13`, `what_was_restored`, `algebra`, `packages_of_the_image`,
//!   figures and tables in `rich`): the host's own Python has none of them. A folder with them has its test in
//!   `roots`, which takes minutes to build
//! - `x02`, which knows the words of a later Python than the host may have
//! - some of the probes of escapes: `escape` says which, and why
//! - of a user without a control group: CPU time, which nothing holds, as the receipt says; a session at rest, whose
//!   guardian adds its memory up every second, so that something has run whenever the daemon looks
//! - what is the daemon's alone, whatever holds the sandbox: asks, approvals, client tools, bad input, quotas,
//!   two gigabytes of output, large files

mod admission;
mod batches;
mod choice;
mod demo;
mod escape;
mod jobs;
mod life;
mod model_bench;
mod packages;
mod process;
mod roots;

use crate::support::User;

/// A user id without an account; the kernel does not mind.
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

/// Runs tests again in jails, as root and as an ordinary user.
macro_rules! both {
    ($($list:tt)+) => {
        again! { root, None, $($list)+ }
        again! { ordinary_user, Some(super::super::ANN), $($list)+ }
    };
}

both! {
    laws: law_08_keyboard_interrupt_propagates, law_12_effects_are_routed_through_the_sandbox;
    cases: timeout_of_a_sleep_keeps_the_text_so_far, crash_by_an_exit_call,
        memory_exhaustion_is_told_by_the_cgroup, timeout_of_an_infinite_loop,
        timeout_of_a_blocking_network_call, timeout_without_output, timeout_of_c_code_that_ignores_signals,
        x03_timeout, x04_segfault, x05_out_of_memory, x10_end_of_pipe, x14_directory_that_cannot_be_entered,
        x15_cancel_propagates, x16_lost_variables_are_told,
        files_are_not_looked_for_after_a_cell_that_can_write_none;
    checkpoints: every_way_to_die_leaves_the_state_before_it, a_memory_bomb_leaves_the_state_before_it,
        the_end_of_all_processes_is_told, two_hundred_deaths_leave_nothing_behind,
        honest_code_does_not_notice_that_there_are_copies,
        a_cell_that_only_reads_most_of_its_memory_is_not_killed,
        undo_gives_the_variables_of_some_cells_ago,
        an_undo_says_what_does_not_come_back,
        undo_that_cannot_be_done_changes_nothing, questions_are_answered_while_a_cell_runs,
        without_checkpoints_a_crash_loses_the_state_and_says_so,
        a_session_that_is_saved_at_rest_is_as_its_result_says;
    installer_programs: programs_that_code_starts_install_as_its_cells_do, commands_install_beside_the_cells,
        requests_of_before_a_reset_are_not_served_after_it,
        programs_that_hold_their_requests_keep_nobody_from_installing,
        one_program_more_than_are_served_at_a_time_is_told, a_request_ends_with_its_program,
        what_shows_variables_has_nothing_installed;
    packages: installed_packages_are_there_at_once_and_stay,
        branches_and_archives_have_the_packages_of_their_session,
        an_archive_brings_the_versions_that_its_variables_were_made_with,
        only_names_of_permitted_packages_reach_the_index_and_only_wheels_are_installed,
        an_installation_is_bounded, a_version_that_does_not_fit_is_told_and_a_reset_replaces_it,
        a_version_that_was_asked_for_gives_way_to_another_by_a_reset,
        the_progress_of_an_installation_is_its_own_and_not_for_programs,
        an_installer_sees_nothing_of_anybody_and_reaches_nothing_but_the_index,
        installations_at_once_do_not_spoil_the_cache_and_a_death_leaves_no_half_package,
        a_session_begins_with_packages;
    package_kinds: compiled_wheels_are_installed, no_package_takes_the_place_of_the_standard_library,
        files_of_an_index_on_another_host_are_fetched,
        packages_are_built_from_their_sources_only_where_the_administrator_allows_it,
        what_code_of_packages_left_beside_wheels_is_not_given_to_who_wants_only_wheels,
        the_progress_of_an_installation_names_packages_and_sizes,
        an_installation_goes_on_with_the_next_daemon;
    package_cache: what_no_session_uses_makes_room_and_what_a_sleeping_session_uses_stays,
        kept_packages_are_listed_and_those_that_nothing_uses_are_cleared;
    installer: every_set_of_a_session_is_charged_until_its_sandbox_is_gone,
        an_installation_that_does_not_fit_into_the_quota_is_refused_before_it_begins,
        what_the_cache_removed_is_installed_again_and_has_to_be_what_it_was,
        a_kill_at_any_moment_leaves_no_half_package, the_password_of_an_index_is_told_to_nobody,
        what_a_sandbox_has_is_charged_without_the_cache_and_the_index,
        a_little_room_is_enough_for_little_packages;
    commands: a_command_ends_with_the_code_or_the_signal_of_its_process,
        a_command_reads_what_it_is_given_and_nothing_else, a_command_has_the_standard_descriptors_only,
        a_hundred_megabytes_of_output_are_bounded_and_counted, a_cell_talks_to_a_server_that_runs_beside_it,
        a_command_that_is_killed_takes_along_what_it_started,
        cells_and_commands_are_told_apart_and_have_one_priority,
        the_death_of_a_cell_and_an_undo_spare_commands_and_a_reset_ends_them,
        a_fork_bomb_of_a_command_costs_no_variables, a_command_outlives_the_daemon_and_nothing_of_it_is_lost,
        commands_wait_for_no_cell_and_do_not_keep_a_sandbox, memory_of_a_command_costs_no_variables,
        the_command_line_passes_a_command_through, a_command_that_waits_for_others_says_so,
        neither_a_cell_nor_a_command_is_blamed_for_the_memory_of_the_other,
        what_a_command_left_behind_takes_its_memory_at_nobody_elses_cost,
        commands_are_interrupted_and_read_later;
    command_bounds: commands_stay_within_the_quotas, the_bytes_of_a_command_come_through_as_they_are,
        a_new_sandbox_is_told_of_once, more_input_than_a_command_takes_is_refused_with_a_way_that_works,
        programs_that_fill_the_screen_work_in_tmux;
    background: a_background_cell_shares_the_variables_and_has_a_result_of_its_own,
        the_command_line_prints_its_number_and_waits_for_it, a_reset_ends_it,
        an_interrupt_or_its_deadline_end_it_and_leave_the_line_alone,
        one_that_does_not_end_at_its_deadline_takes_the_session_back,
        a_crash_beside_it_and_an_undo_end_it_as_rolled_back, what_it_has_changed_outlives_a_crash_after_its_end,
        it_goes_on_while_no_daemon_runs_and_its_deadline_is_the_next_ones,
        a_scratch_cell_drops_its_names_and_shares_the_objects;
    command_terminals: a_person_types_into_a_shell, a_person_comes_back_to_a_shell,
        a_terminal_can_be_typed_into_and_resized_over_the_api;
    output: writes_below_python_are_in_the_output_in_order, both_streams_are_kept_apart_and_in_order,
        a_stream_that_a_cell_takes_away_is_back_for_the_next, a_cut_of_both_streams_counts_each,
        bytes_that_are_no_text_do_no_harm, characters_in_pieces_become_whole,
        a_flood_while_no_cell_runs_belongs_to_none, output_while_no_cell_runs_is_an_event_without_a_cell,
        output_streams_while_the_cell_runs, events_are_numbered_without_gaps;
    modes: a_fork_cell_sees_everything_and_changes_nothing, a_fork_cell_that_lacks_descriptors_says_so,
        a_variable_that_ends_its_process_costs_only_itself, isolated_expressions_cannot_get_out,
        tools_of_the_host_are_callables;
    stops: cells_run_first_in_first_out_and_the_queue_is_bounded, waiting_is_not_counted_as_run_time,
        a_reset_ends_what_runs_and_what_waits_and_starts_afresh, a_removal_tells_the_running_cell,
        an_interrupt_keeps_the_state, an_interrupt_reaches_a_cell_however_early_it_comes,
        an_interrupt_of_a_stubborn_cell_ends_it, an_unused_sandbox_goes_and_the_next_cell_gets_a_new_one,
        a_sandbox_that_dies_is_replaced_and_the_loss_is_told,
        of_freezes_and_thaws_the_last_counts_however_fast_they_come,
        a_cell_that_comes_right_behind_a_freeze_runs;
    smoke: a_script_is_run_as_python_would_run_it;
    pool: a_claimed_sandbox_is_what_a_new_one_is,
        what_was_claimed_outlives_the_daemon_and_what_waits_does_not, what_waits_is_removed_with_all_sandboxes,
        a_sandbox_that_was_taken_away_while_it_waited_is_no_error_for_a_session,
        modules_are_there_in_advance_and_no_name_of_them_is, modules_in_advance_are_those_for_the_image,
        branches_take_sandboxes_that_wait, packages_appear_in_a_claimed_sandbox, jobs_take_sandboxes_that_wait,
        a_pool_that_panics_costs_nobody_a_session;
    notebook: commands_of_notebooks_run_in_the_sandbox_and_in_a_replay,
        a_missing_package_and_a_missing_network_say_what_to_do;
    preload: modules_are_there_from_the_start_and_after_a_loss, what_cannot_be_imported_is_an_error_of_new,
        families_are_imported_as_far_as_they_are_there;
    files: files_and_folders_go_in_and_out, cp_copies_both_ways,
        links_pipes_and_devices_of_a_guest_are_no_doors, no_path_leads_out,
        a_tar_brings_only_files_and_folders, an_upload_that_breaks_off_leaves_nothing;
    rich: artifacts_are_files_that_changed, more_artifacts_than_a_result_lists_are_said_to_be_more;
    bombs: hundreds_of_busy_processes_cost_no_variables,
        forks_and_threads_are_bounded_and_others_still_answer, memory_is_bounded_wherever_it_is_taken,
        temporary_space_descriptors_and_files_are_bounded, a_workspace_that_grows_too_large_ends_the_cell,
        a_tree_of_any_depth_and_width_is_removed_with_its_session,
        a_background_process_neither_outlives_the_session_nor_disturbs_it;
    escape: all_probes_are_contained_in_every_image,
        there_is_no_network_and_no_place_to_write_but_the_workspace_and_tmpfs,
        the_guardian_outlives_every_signal_from_inside, the_bridge_and_the_kernel_cannot_be_replaced,
        garbage_in_every_descriptor_ends_at_worst_in_a_typed_crash,
        code_that_patches_its_own_kernel_harms_only_its_session;
    at_home: localhost_is_the_loopback_and_a_server_there_answers,
        the_guest_and_root_have_names_and_no_user_of_the_host_has,
        priorities_of_own_processes_can_be_lowered_but_not_that_of_pid_1, splice_seems_not_to_exist,
        a_terminal_takes_a_break_of_any_length;
    environment: variables_of_the_environment_are_there_in_every_sandbox_of_the_session,
        variables_that_steer_the_kernel_are_refused_by_name, sessions_are_found_by_their_labels;
    volumes: volumes_and_mounts_are_made_and_shown_by_commands;
    repl: a_person_types_python_and_comes_back, without_a_terminal_lines_are_read_all_the_same;
    restart: a_running_cell_goes_on, a_copy_that_runs_after_a_reset_goes_on, a_cell_that_ended_while_no_daemon_ran_has_its_result,
        a_cell_that_died_while_no_daemon_ran_is_told, checkpoints_undo_and_time_limits_outlive_the_daemon,
        a_reader_of_events_goes_on_where_it_was, restarts_one_after_the_other_lose_nothing,
        a_sandbox_that_was_taken_away_meanwhile_is_replaced, a_sandbox_that_a_stranger_paused_is_taken_up_again,
        no_cell_is_lost_or_run_twice_however_often_the_daemon_dies,
        a_client_that_shows_a_cell_goes_on_after_a_restart;
    resume: a_kill_for_memory_while_no_daemon_ran_is_told_as_one,
        a_stranger_who_pauses_the_sandbox_costs_nothing_but_time,
        a_frozen_session_is_frozen_also_for_the_next_daemon,
        files_tool_calls_and_threads_of_before_are_told_after,
        the_time_without_a_daemon_does_not_count_for_a_cell_that_was_done,
        a_replay_that_the_daemon_did_not_survive_can_be_made_again_without_calling_tools,
        what_was_lost_between_cells_is_told_with_the_next_one_as_past,
        a_session_without_a_sandbox_is_described_as_before,
        a_repeated_request_gets_what_the_first_would_have_got,
        a_session_that_is_asked_for_again_with_its_key_is_made_once,
        a_cell_that_comes_while_cells_are_undone_is_not_undone_with_them;
    gone: a_cell_that_comes_right_after_the_end_of_the_sandbox_runs_in_the_next_one,
        a_replay_right_after_the_end_of_the_sandbox_makes_a_new_one,
        an_expression_does_not_take_the_news_away_from_the_next_cell,
        a_daemon_that_ends_before_it_could_tell_leaves_the_news_to_the_next,
        an_undo_that_the_daemon_did_not_survive_is_told_by_the_next,
        a_reset_that_the_daemon_did_not_survive_is_done_by_the_next_or_never_was,
        what_is_asked_of_a_sandbox_that_is_not_attached_yet_waits_for_it;
    replays: nothing_else_changes_variables_while_a_replay_goes_on, a_replay_goes_on_when_its_client_leaves,
        a_replay_that_was_interrupted_is_told_and_forgets_nothing_that_is_undone_then,
        a_replay_that_the_daemon_did_not_survive_is_told_with_the_next_cell,
        a_replay_is_refused_while_a_cell_runs_and_leaves_out_what_was_interrupted,
        numbers_of_cells_and_addresses_are_no_difference;
    branches: a_branch_has_the_variables_and_files_of_its_session_and_goes_its_own_way,
        branches_begin_at_an_earlier_cell_if_its_state_is_kept,
        branches_begin_at_an_earlier_cell_if_exactly_its_variables_are_saved,
        branches_begin_with_a_saved_snapshot,
        of_several_branches_all_are_made_or_none,
        two_sessions_are_compared_by_what_they_hold;
    archives: a_session_moves_to_another_home_in_a_file,
        the_cells_of_an_archive_run_again_where_its_variables_are_not_wanted,
        a_session_that_is_not_saved_moves_with_its_cells,
        an_archive_that_was_changed_breaks_off_or_is_none_makes_no_session,
        variables_of_another_python_are_refused_and_its_cells_can_run_again,
        the_rules_in_an_archive_hold_and_one_without_rules_is_refused,
        files_are_exported_and_imported_by_the_command_line;
    disk: what_cannot_be_written_is_told, whoever_waits_for_a_cell_is_told_that_its_end_cannot_be_written,
        a_session_that_was_said_to_be_removed_does_not_come_back;
    rest: what_a_thread_writes_after_a_long_rest_is_noticed;
    guards: a_variable_that_cannot_be_shown_costs_only_itself,
        an_upload_that_does_not_fit_is_refused_and_a_full_workspace_can_be_used_and_tidied;
    snapshots: a_session_that_slept_wakes_as_it_was, a_session_says_what_it_sleeps_without_and_what_it_wakes_with,
        a_session_wakes_behind_a_sandbox_that_was_taken_away_and_a_daemon_that_was_killed,
        a_daemon_that_is_killed_while_it_saves_leaves_the_snapshot_before,
        a_snapshot_that_was_edited_on_the_disk_is_refused,
        a_snapshot_without_room_is_refused_and_the_session_goes_on, a_cell_does_not_wait_for_a_snapshot,
        the_output_of_a_cell_is_not_held_up_by_a_snapshot,
        snapshots_are_listed_removed_and_gone_with_their_session,
        a_removal_that_a_daemon_did_not_finish_takes_the_snapshots_with_the_next_start,
        a_death_at_any_commit_of_sleeping_and_waking_costs_no_variables;
    lost_sandboxes: sessions_whose_sandboxes_are_all_taken_away_have_their_variables_again,
        a_home_that_was_moved_has_the_sessions_of_the_first_one,
        a_daemon_that_is_killed_while_variables_are_loaded_leaves_them_to_the_next,
        a_death_at_any_commit_of_a_branch_leaves_a_whole_one_or_none,
        a_death_at_any_commit_of_an_import_leaves_a_whole_session_or_none;
    jobs: five_scripts_have_five_verdicts, artifacts_are_data, a_script_begins_with_a_clean_slate_and_alone,
        jobs_outlive_the_daemon, a_cancelled_run_leaves_nothing,
        a_script_that_lacks_a_package_or_a_network_says_what_to_do;
    batches: a_batch_outlives_the_daemon_and_each_of_its_jobs_runs_once,
        of_a_batch_as_many_run_as_it_says_until_it_is_cancelled, of_a_batch_all_jobs_are_taken_or_none;
    ephemeral: a_run_whose_client_was_killed_leaves_nothing,
        a_session_that_nobody_was_told_of_is_not_there_after_a_restart;
    lifecycle: rm_leaves_nothing, a_running_cell_of_a_removed_session_is_cancelled,
        whoever_waits_for_a_removal_is_told_when_the_sandbox_is_gone, a_session_can_be_removed_while_it_starts, sigterm_leaves_the_sessions_to_the_next_daemon,
        a_plain_stop_leaves_the_sessions_to_the_next_daemon,
        a_second_sigterm_forces_and_the_next_start_goes_on, daemon_stop_returns_when_all_is_gone,
        a_daemon_that_is_just_starting_can_be_stopped, after_a_killed_daemon_the_next_one_goes_on,
        a_container_that_a_stranger_pauses_goes_on_to_the_end_of_its_cell;
    one_daemon: daemons_of_different_homes_leave_each_other_alone;
}

// Python's own behaviour and what a client is shown: nothing in these asks who the user is, what a group holds or who owns
// a file. A jail of root shows that they hold with the Python of a host; that of an ordinary user would show it once more.
again! { root_is_enough, None,
    laws: law_01_seed_variables_are_readable, law_02_persistence_of_bindings,
        law_03_rebind_of_seeded_and_earlier_names_sticks, law_04_a_snippet_of_several_statements_runs_whole,
        law_05_printed_text_is_the_returned_text, law_06_a_syntax_error_is_text_and_the_session_survives,
        law_07_an_exception_is_traceback_text_and_bindings_survive,
        law_09_a_traceback_shows_only_frames_of_the_user,
        law_10_a_traceback_across_snippets_shows_the_earlier_source,
        law_11_nested_runs_do_not_corrupt_each_other;
    cases: failure_by_division, recursion_is_a_failure,
        a_decode_error_with_an_open_file_is_a_failure_with_the_first_error,
        an_exit_of_the_script_is_its_own_reason, x01_python_exception, x06_deep_recursion,
        x07_unpicklable_globals, x08_second_error_while_reporting, x09_encoding, x11_missing_package,
        x12_modules_persist;
    modes: eval_changes_nothing_and_takes_one_expression, isolated_expressions_compute;
    notebook: the_cells_of_a_notebook_run_in_order, a_session_is_written_as_a_notebook,
        commands_are_whole_lines_for_the_repl;
    rich: display_shows_the_richest_forms, the_last_value_is_returned, displays_beyond_the_bounds_are_counted;
    repl: modules_are_there_before_the_first_line, pictures_are_saved_and_shown_where_the_terminal_can,
        a_silent_cell_shows_its_time_and_what_can_be_done_before_its_deadline;
}

// These run as root alone: folders that belong to root or to several users, and what is about the journal and takes long.
again! { root_alone, None,
    rest: a_session_at_rest_is_left_alone;
    costs: a_cell_takes_few_reads_and_writes;
    volumes: a_volume_outlives_its_sessions_and_several_have_it_at_a_time,
        what_a_volume_holds_is_in_its_users_quota, a_folder_of_the_caller_can_be_read_and_nothing_else,
        an_administrator_sees_and_removes_the_volumes_of_all_users,
        files_of_a_volume_are_its_owners_and_stay_within_its_bounds,
        what_is_written_to_a_volume_from_outside_is_charged_and_ends_cells;
    branches: branches_are_their_owners_and_charged_to_them,
        an_administrator_who_looks_into_sessions_is_noted_in_each_of_them;
    users: users_install_at_once_and_nobody_has_the_packages_of_another;
    restart: a_death_at_any_commit_leaves_a_home_that_the_next_daemon_can_use;
    resume: whatever_dies_around_a_keyed_creation_and_its_removal_the_name_is_not_taken_twice;
    one_daemon: a_home_and_a_socket_have_one_daemon;
}
