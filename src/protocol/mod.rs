//! The data types that the parts of Belljar exchange: plain data, no I/O.
//!
//! `frames` go over the bridge between daemon and kernel, `api` and `event` over the control socket,
//! `result` is the answer to a cell in both. JSON Schemas of all of them are generated from these
//! types into `config/`; a test fails when the checked-in files differ.

pub mod api;
pub mod ask;
pub mod batch;
pub mod branch;
pub mod chat;
pub mod clock;
pub mod command;
pub mod config;
pub mod environment;
pub mod event;
pub mod exit_codes;
pub mod frames;
pub mod glob;
pub mod ids;
pub mod image;
pub mod job;
pub mod labels;
pub mod limits;
pub mod mounts;
pub mod packages;
pub mod periods;
pub mod preload;
pub mod principal;
pub mod problem;
pub mod quota;
pub mod receipt;
pub mod result;
pub mod saved_state;
pub mod snapshot;
pub mod sse;
pub mod text;
pub mod timeout;
pub mod tool;
pub mod tool_names;
pub mod values;
pub mod word_enums;
