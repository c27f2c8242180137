//! `belljar image build NAME --with …`: builds an image of the caller's own, by the daemon.

use std::path::{Path, PathBuf};

use clap::Args;

use super::steps;
use crate::cli::args::read_text;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::exit_codes as exit;
use crate::protocol::image::BuildImage;

/// What an own image is made of.
#[derive(Debug, Args)]
pub(super) struct OwnImage {
    /// Add packages to this image; without it, to that of sessions that name none.
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["dockerfile", "rootfs"])]
    from: Option<String>,
    /// Make an image NAME of your own with a package in it, as in 'polars' or 'numpy<3'; can be repeated.
    #[arg(long, value_name = "PACKAGE", conflicts_with_all = ["requirements", "dockerfile", "rootfs"])]
    with: Vec<String>,
    /// The same with the packages of a file, one a line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dockerfile", "rootfs"])]
    requirements: Option<PathBuf>,
    /// Make an image NAME of your own of a Dockerfile. Its steps have the rights and the network of the container
    /// engine, and no other file.
    #[arg(long, value_name = "FILE", conflicts_with = "rootfs")]
    dockerfile: Option<PathBuf>,
}

impl OwnImage {
    /// Whether an own image is wanted, and not one of Belljar's.
    pub fn is_wanted(&self) -> bool {
        self.from.is_some()
            || !self.with.is_empty()
            || self.requirements.is_some()
            || self.dockerfile.is_some()
    }

    pub async fn build(self, context: &mut Context, name: String) -> Result<u8, Failure> {
        let packages = match &self.requirements {
            Some(file) => requirements(&text(file)?),
            None => self.with,
        };
        if packages.is_empty() && self.dockerfile.is_none() {
            return Err(Failure::usage("it is not said what the image is made of")
                .hint("use one of `--with PACKAGE`, `--requirements FILE` with packages in it, and `--dockerfile FILE`"));
        }
        let dockerfile = self.dockerfile.as_deref().map(text).transpose()?;
        let request = BuildImage { name, from: self.from, packages, dockerfile };
        let response = context.client().download("/v1/images/build", Some(&request)).await?;
        let built = steps::show(context, response).await?;
        if let Some(image) = built.filter(|_| !context.json) {
            context.screen.line(&image.reference)?;
            context.screen.note(&format!("use it with `belljar new --image {}`", image.reference))?;
        }
        Ok(exit::SUCCESS)
    }
}

fn text(file: &Path) -> Result<String, Failure> {
    read_text(file, "file")
}

/// The requirements of a file as `pip` reads it: one a line, without comments. What else it has, the daemon refuses by
/// name.
fn requirements(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let without_comment = |line: &str| {
        let comment = line.find(" #").or_else(|| line.starts_with('#').then_some(0));
        line[..comment.unwrap_or(line.len())].trim().to_owned()
    };
    joined.lines().map(without_comment).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_requirements_has_comments_and_empty_lines() {
        let text = "# mine\n\nnumpy<3  # old code\n  polars[excel]>=1 ; python_version > '3.9'\r\na \\\n --hash=x\n-r other.txt\n";
        let found = requirements(text);
        assert_eq!(
            found,
            ["numpy<3", "polars[excel]>=1 ; python_version > '3.9'", "a   --hash=x", "-r other.txt"]
        );
    }
}
