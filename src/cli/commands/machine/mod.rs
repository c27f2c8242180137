//! Commands about the host: the daemon, its configuration, images, quotas, and the command line itself.

pub(in crate::cli) mod completion;
pub(in crate::cli) mod daemon;
pub(in crate::cli) mod doctor;
pub(in crate::cli) mod image;
pub(in crate::cli) mod inspect;
pub(in crate::cli) mod jupyter;
pub(in crate::cli) mod manual;
pub(in crate::cli) mod welcome;
