//! Sandboxes as containers of a Docker engine. The engine's types stay in this folder.

mod attest;
mod backend;
mod builds;
pub mod config;
mod container;
pub mod engine;
mod images;

pub use backend::Docker;
pub use builds::{Parents, Removal};
