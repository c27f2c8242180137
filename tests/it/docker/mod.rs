//! Against a real engine. Without one these tests fail, unless BELLJAR_TEST_NO_DOCKER=1 says that
//! they shall not run.

mod approvals;
mod ask_restart;
mod asking;
mod asks;
mod bad_input;
mod bombs;
pub mod cases;
mod catalogue;
pub mod checkpoints;
mod client_tools;
mod disk;
mod ephemeral;
mod escape;
mod examples;
mod files;
mod gone;
mod guards;
pub mod helpers;
pub mod jobs;
pub mod laws;
mod lifecycle;
mod model_faults;
pub mod modes;
mod nested_asks;
pub mod output;
pub mod preload;
mod pull;
mod receipt;
mod repl;
mod replays;
pub mod restart;
mod resume;
mod rich;
mod smoke;
mod tools;
mod users;
