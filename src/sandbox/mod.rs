//! Sandboxes: what holds the Python processes of one session.
//!
//! `spec` says what every sandbox is made of; a `backend` makes one of it, and `attest` compares what runs with it.
//! `choice` picks the backend, `launch` starts sandboxes, and `running` is what everybody else sees of one.
//! `workspace` is the folder of a session, `kernel` the Python that runs as the first process. Nothing here knows of
//! models, conversations or HTTP.

pub mod attest;
pub mod backend;
pub mod choice;
mod claims;
mod folder;
mod images;
pub mod kernel;
pub mod launch;
mod listing;
mod running;
pub mod slots;
pub mod spec;
pub mod workspace;
