//! Against a real engine. Without one these tests fail, unless BELLJAR_TEST_NO_DOCKER=1 says that
//! they shall not run.

mod approvals;
mod ask_restart;
mod asking;
mod asks;
mod bad_input;
pub mod bombs;
pub mod cases;
mod catalogue;
pub mod checkpoints;
mod client_tools;
mod disk;
pub mod ephemeral;
pub mod escape;
mod examples;
pub mod files;
mod gone;
mod guards;
pub mod helpers;
pub mod laws;
pub mod lifecycle;
mod model_faults;
pub mod modes;
mod nested_asks;
pub mod output;
pub mod preload;
mod pull;
mod receipt;
pub mod repl;
mod replays;
pub mod restart;
pub mod resume;
pub mod rich;
mod smoke;
mod tools;
mod users;
