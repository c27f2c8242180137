//! The kernel: the guardian, which is the first process of every sandbox, and the Python package that it starts, compiled
//! once for each image.

mod compile;
pub mod files;

pub use compile::DRAFT;
