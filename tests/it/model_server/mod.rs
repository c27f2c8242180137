//! A model server for tests: real HTTP on a loopback port that speaks OpenAI's chat completions,
//! plays the replies it was given one after the other, keeps the requests it got, and misbehaves
//! where a test wants it.

mod plays;
mod server;

pub use plays::{Fault, Play, Reply};
pub use server::ModelServer;
