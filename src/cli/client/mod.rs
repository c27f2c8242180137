//! How commands talk to the daemon: requests, resumed streams, transfer of folders, and starting a daemon.

pub(in crate::cli) mod autostart;
pub(in crate::cli) mod follow;
pub(in crate::cli) mod http;
pub(in crate::cli) mod machine_daemon;
pub(in crate::cli) mod session_key;
pub(in crate::cli) mod tar_stream;
