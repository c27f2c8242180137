//! Packages that are installed into sessions, as far as no I/O is needed: what may be asked for, and what an installer
//! said that it made. All text of a requirement is parsed and written anew from its parts, so nothing that was not
//! understood reaches a command line.

mod marker;
pub mod requirement;
pub mod resolved;
