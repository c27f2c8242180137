//! How commands talk to the daemon: requests, streams that are resumed, folders on their way, a daemon that is started.

pub(in crate::cli) mod autostart;
pub(in crate::cli) mod follow;
pub(in crate::cli) mod http;
pub(in crate::cli) mod session_key;
pub(in crate::cli) mod tar_stream;
