//! Integration tests, one binary. What belongs where:
//!
//! - `doctor`: what `belljar doctor` says of real machines
//! - `install`: `make install`, completions, and the socket of systemd
//! - `layers`: the structure of the sources: who uses whom, how long files are, which crates are named in vain
//! - `llm`: the client of models against `model_server`, a real server on loopback
//! - `message_spec`: every frame of the bridge against its JSON Schema
//! - `parsers`: whatever outsiders send, from the inputs in `tests/fuzz`
//! - `openai_client`: that server against the `openai` package of Python
//! - `abuse`, in a folder of its own beside this one: attacks on the promises of the README, one file a subject
//! - `controls`: every security control is in the tables of `tests/mutate`, and none is in an ordinary build
//! - `jail`: the same subjects without an engine, in jails that bubblewrap builds
//! - `docker`: tests that need a container engine, one file a subject (see there)
//!
//! Tests of single modules stand beside their code; tests of the Python kernel in `tests/kernel`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::pedantic,
    reason = "a test that panics has failed, as it should"
)]

#[path = "../abuse/mod.rs"]
mod abuse;
mod controls;
mod docker;
mod doctor;
mod install;
mod jail;
mod layers;
mod llm;
mod message_spec;
mod model_server;
mod openai_client;
mod parsers;
mod support;
