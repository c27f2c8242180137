//! The kernel: the Python package that is the first process of every sandbox, compiled once for each image.

mod compile;
pub mod files;
