//! Attacks, one file a subject: what hostile code or a hostile user of the machine tries, and what must be true
//! afterwards. Which test fails without which control is in `tests/mutate`, and `make mutate` shows it; of the attacks
//! that were really run (`CATALOGUE.md`), at least one test each was also seen to fail before the hole was closed.

mod actor_panics;
mod approvals;
mod catalogue;
mod checkpoints;
mod clocks;
mod command_tools;
mod descriptors;
mod disk_hogs;
mod edited_snapshots;
mod engine_faults;
mod file_identity;
mod folder_hogs;
mod forged_numbers;
mod fork_bombs;
pub mod grounds;
mod host_facts;
mod hostile_variables;
mod identities;
mod images;
mod journal_quota;
mod kernel_channel;
mod kernel_tree;
mod memory_pool;
mod reset;
mod rules;
mod set_id;
mod sleep_panics;
mod tar_bombs;
mod unreadable_journals;
