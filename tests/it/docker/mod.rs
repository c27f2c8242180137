//! Against a real engine. Without one these tests fail, unless BELLJAR_TEST_NO_DOCKER=1 says that
//! they shall not run.

mod cases;
mod helpers;
mod laws;
mod modes;
mod output;
mod rich;
mod smoke;
