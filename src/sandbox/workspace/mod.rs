//! The folder of a session, and everything that the daemon does in it, with the rights of the folder's owner.

pub mod archive;
pub mod artifacts;
mod attributes;
pub mod compare;
mod copies;
pub mod disk;
pub mod files;
mod folder;
pub(in crate::sandbox) mod groups;
pub mod job_files;
mod local_file_systems;
pub mod measuring;
pub mod own_user;
pub mod owner;
mod project;
pub mod remeasure;
mod removal;
mod root;
pub mod session_archive;
mod set_id;
mod unlinked_files;
pub mod upload_room;
pub mod usage;
mod walk;

pub use copies::Copied;
pub(in crate::sandbox) use folder::guest;
pub use folder::{Service, Workspace, remove_tree};
pub use root::Root;
