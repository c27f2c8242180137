//! What packages install besides the binary and its completions: manual pages.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _};

use crate::cli::context::Context;
use crate::cli::entry::Cli;
use crate::cli::failure::Failure;
use crate::protocol::exit_codes as exit;

/// Write the manual pages into a folder.
#[derive(Debug, Args)]
pub(in crate::cli) struct Man {
    folder: PathBuf,
}

impl Man {
    #[expect(clippy::unused_async, reason = "all commands are run in the same way")]
    pub async fn run(self, _: &mut Context) -> Result<u8, Failure> {
        write_pages(&self.folder).map(|()| exit::SUCCESS).map_err(|e| {
            Failure::io(format_args!("failed to write the manual pages to `{}`", self.folder.display()), &e)
        })
    }
}

fn write_pages(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let man = Man { folder: folder.path().join("man1") };
        write_pages(&man.folder).unwrap();
        for page in ["belljar.1", "belljar-exec.1", "belljar-image-build.1"] {
            let text = std::fs::read_to_string(man.folder.join(page)).unwrap();
            assert!(text.starts_with(".ie"), "{page}: {text}");
        }
    }
}
