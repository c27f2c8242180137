//! What people see: text and colours, tables, blocks, code, and cells. Nothing here talks to the daemon.

pub(in crate::cli) mod block;
pub(in crate::cli) mod cell;
pub(in crate::cli) mod highlight;
pub(in crate::cli) mod human;
pub(in crate::cli) mod screen;
