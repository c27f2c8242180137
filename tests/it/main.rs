//! Integration tests, one binary. What belongs where:
//!
//! - `layers`: the direction of `use crate::` lines
//! - `message_spec`: every frame of the bridge against its JSON Schema
//! - `docker`: tests that need a container engine, one file a subject (see there)
//!
//! Tests of single modules stand beside their code; tests of the Python kernel in `tests/kernel`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::pedantic,
    reason = "a test that panics has failed, as it should"
)]

mod docker;
mod layers;
mod message_spec;
mod support;
