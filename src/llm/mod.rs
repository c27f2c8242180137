//! The client of language models: requests, streams, retries, record and replay.
//!
//! A [`Client`] is one `[model.NAME]` of the configuration. The pure parts: [`body`] builds a request, [`assemble`]
//! turns the events of a stream into a reply, [`failure`] and [`retry`] decide what an error means. [`http`] is the
//! thin shell around them; [`script`] and [`cassette`] answer from a file instead.

mod assemble;
mod body;
mod cassette;
mod client;
mod failure;
mod http;
mod retry;
mod script;
mod secret;

pub use assemble::REPLY_BYTES;
pub use client::{Client, Delta};
pub use http::reply_bytes;
