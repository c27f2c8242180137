//! A backend for tests: its sandboxes are tasks of the test, which outlive the daemons that the test starts and kills.
//! Its kernel speaks the bridge of the real one and does with each cell what the test says.

mod backend;
mod kernel;
mod script;

pub use backend::FakeBackend;
pub use kernel::FakeKernel;
pub use script::{Step, WHILE_LOADING, WHILE_PACKING, WHILE_RESETTING};
