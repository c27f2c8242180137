//! Belljar runs model-written Python under glass.
//!
//! Layers, from the top; each may use those below it and none above (`tests/it/layers.rs`):
//! `cli`, `daemon` → `control` → `actors` → `tools`, `sandbox`, `bridge`, `store` → `config` → `protocol`.

pub mod agent;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod protocol;
