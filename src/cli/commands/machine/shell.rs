//! What packages install besides the binary: completions for shells, and manual pages.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _, ValueEnum};

use crate::cli::context::Context;
use crate::cli::entry::Cli;
use crate::cli::failure::Failure;
use crate::protocol::exit_codes as exit;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Print the completions for a shell.
///
/// For bash, for example: `belljar completions bash > ~/.local/share/bash-completion/completions/belljar`
#[derive(Debug, Args)]
pub(in crate::cli) struct Completions {
    shell: Shell,
}

impl Completions {
    #[expect(clippy::unused_async, reason = "all commands are run in the same way")]
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        context.screen.raw(&self.text()).map(|()| exit::SUCCESS)
    }

    fn text(&self) -> Vec<u8> {
        let shell = match self.shell {
            Shell::Bash => clap_complete::Shell::Bash,
            Shell::Zsh => clap_complete::Shell::Zsh,
            Shell::Fish => clap_complete::Shell::Fish,
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "belljar", &mut text);
        text
    }
}

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
    fn every_shell_has_completions_with_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(Completions { shell }.text()).unwrap();
            assert!(text.contains("doctor") && text.contains("receipt"), "{shell:?}");
        }
    }

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
