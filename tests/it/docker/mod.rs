//! Against a real engine. Without one these tests fail, unless BELLJAR_TEST_NO_DOCKER=1 says that
//! they shall not run.

mod bad_input;
mod bombs;
mod escape;
mod files;
mod lifecycle;
mod receipt;
mod smoke;
mod users;
