//! Against a real engine. Without one these tests fail, unless BELLJAR_TEST_NO_DOCKER=1 says that
//! they shall not run.

mod bad_input;
mod bombs;
pub mod cases;
pub mod checkpoints;
mod disk;
mod ephemeral;
mod escape;
mod files;
mod guards;
pub mod helpers;
pub mod laws;
mod lifecycle;
pub mod modes;
pub mod output;
mod pull;
mod receipt;
pub mod restart;
mod resume;
mod rich;
mod smoke;
mod users;
