//! `belljar image`: list, show, build, pull and remove images.

mod builder;
mod own;
mod steps;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;

use clap::{Args, Subcommand};
use serde_json::Value;
use tempfile::TempDir;

use self::own::OwnImage;
use crate::cli::client::http::{Client, escaped_path};
use crate::cli::commands::session::inspect::owner;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, or_dash, size};
use crate::cli::temporary_folder::scratch_folder;
use crate::config::Paths;
use crate::protocol::api::{ImageList, ImageView, NewSession, PullImage, SessionView};
use crate::protocol::exit_codes as exit;
use crate::protocol::image::ImageOrigin;
use crate::protocol::receipt::Backend;
use crate::protocol::text::one_line;

/// The files of `images/`, so that the binary can build its images anywhere.
const SOURCES: [(&str, &[u8]); 6] = [
    ("build.sh", include_bytes!("../../../../images/build.sh")),
    ("Dockerfile", include_bytes!("../../../../images/Dockerfile")),
    ("finish.sh", include_bytes!("../../../../images/finish.sh")),
    ("matplotlibrc", include_bytes!("../../../../images/matplotlibrc")),
    ("science-packages.txt", include_bytes!("../../../../images/science-packages.txt")),
    ("science-requirements.txt", include_bytes!("../../../../images/science-requirements.txt")),
];

/// List, show, build, pull and remove images.
#[derive(Debug, Args)]
pub(in crate::cli) struct Image {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the images that sessions may use.
    #[command(alias = "ls")]
    List,
    /// Show one image, and which Python packages it has.
    Show {
        /// Without a name, the image of sessions that name none.
        reference: Option<String>,
    },
    /// Build one of Belljar's own images in the container engine, or as a folder for jails; or one of yours, for your
    /// sessions.
    Build {
        /// Make a folder for bubblewrap instead, in the daemon's home; needs no engine.
        #[arg(long)]
        rootfs: bool,
        /// `base` has Python only, `science` the usual packages too. Any other name is that of an image of yours.
        name: String,
        #[command(flatten)]
        own: OwnImage,
    },
    /// Get an allowed image from its registry.
    Pull {
        /// For example python:3.12.
        reference: String,
    },
    /// Remove an image that you built and no session uses.
    Rm { name: String },
}

impl Image {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        match self.action {
            Action::List => list(context).await,
            Action::Show { reference } => show(context, reference).await,
            Action::Build { name, own, .. } if own.is_wanted() => own.build(context, name).await,
            Action::Build { name, rootfs, .. } => build(context, &name, rootfs).await,
            Action::Pull { reference } => pull(context, reference).await,
            Action::Rm { name } => remove(context, &name).await,
        }
    }
}

async fn list(context: &mut Context) -> Result<u8, Failure> {
    let answer = context.client().get("/v1/images").await?;
    context.show(&answer, |screen, list: ImageList| {
        screen.table(&table(&list.images))?;
        if let Some(problem) = &list.engine_problem {
            screen.note(&format!("images of the engine are not listed: {}", one_line(problem)))
        } else if list.images.iter().all(|image| image.id.is_none() || image.backend != Backend::Docker) {
            screen.note("the engine has none of them; build one with `belljar image build base`")
        } else {
            Ok(())
        }
    })
}

fn table(images: &[ImageView]) -> Table {
    let cells = |image: &ImageView| {
        [
            image.reference.clone(),
            image.backend.name().to_owned(),
            image.id.as_deref().map_or_else(|| "not there".to_owned(), short_id),
            or_dash(image.bytes.map(size)),
            if image.default { "yes" } else { "" }.to_owned(),
            image.origin.as_ref().map(|origin| owner(origin.owner)).unwrap_or_default(),
        ]
    };
    Table::new(["IMAGE", "BACKEND", "ID", "SIZE", "DEFAULT", "BUILT BY"], images.iter().map(cells))
}

async fn show(context: &mut Context, reference: Option<String>) -> Result<u8, Failure> {
    let client = context.client();
    let find = |list: ImageList| {
        let is_wanted = |image: &ImageView| match &reference {
            Some(reference) => without_latest(reference) == without_latest(&image.reference),
            None => image.default,
        };
        list.images.into_iter().find(is_wanted)
    };
    let mut found = find(client.get("/v1/images").await?.parse()?);
    if let Some(image) = found.as_ref().filter(|image| image.id.is_some() && image.packages.is_none())
        && look_into(&client, image).await.is_ok()
    {
        found = find(client.get("/v1/images").await?.parse()?);
    }
    let Some(image) = found else {
        let message = match &reference {
            Some(reference) => format!("there is no image `{}` that sessions may use", one_line(reference)),
            None => "no image is there that a session could use".to_owned(),
        };
        return Err(Failure::new(message).hint("`belljar image list` lists them"));
    };
    let value = serde_json::to_value(&image).map_err(|e| Failure::new(e.to_string()))?;
    context.show_value(&value, |screen, _| details(&image).iter().try_for_each(|line| screen.line(line)))
}

/// `NAME:latest` is what `NAME` means.
fn without_latest(reference: &str) -> &str {
    reference.strip_suffix(":latest").unwrap_or(reference)
}

/// Has the daemon find out what an image has that no session has used yet, by making one.
async fn look_into(client: &Client, image: &ImageView) -> Result<(), Failure> {
    let new = NewSession {
        image: Some(image.reference.clone()),
        backend: Some(image.backend),
        preload: Some(Vec::new()),
        ..NewSession::default()
    };
    let session: SessionView = client.post("/v1/sessions", &new).await?.parse()?;
    client.delete(&format!("/v1/sessions/{}?wait=true", session.id)).await.map(drop)
}

fn details(image: &ImageView) -> Vec<String> {
    let mut lines = vec![
        format!("image:    {}", one_line(&image.reference)),
        format!("backend:  {}", image.backend.name()),
        format!("id:       {}", image.id.as_deref().map_or_else(|| "not there".to_owned(), one_line)),
        format!("size:     {}", or_dash(image.bytes.map(size))),
        format!("default:  {}", if image.default { "yes" } else { "no" }),
    ];
    if let Some(ImageOrigin { owner: by, built_at, from, packages }) = &image.origin {
        let of = match from {
            Some(from) => format!("{} with {}", one_line(from), one_line(&packages.join(", "))),
            None => "a Dockerfile".to_owned(),
        };
        lines.push(format!("built:    by {}, {}, of {of}", owner(*by), one_line(built_at)));
    }
    lines.push(match &image.packages {
        None => format!(
            "packages: not known until a session has used the image, as with `belljar new --image {}`",
            one_line(&image.reference)
        ),
        Some(packages) if packages.installed.is_empty() => {
            "packages: Python's standard library only".to_owned()
        }
        Some(packages) => {
            let others = packages.installed.len().saturating_sub(packages.main.len());
            let others = if others > 0 { format!(" (and {others} that these need)") } else { String::new() };
            format!("packages: {}{others}", one_line(&packages.main.join(", ")))
        }
    });
    lines
}

/// The start of a digest; for a folder for jails, the path of its Python.
fn short_id(id: &str) -> String {
    match id.strip_prefix("sha256:") {
        Some(digest) => digest.chars().take(12).collect(),
        None => id.split(':').next().unwrap_or_default().to_owned(),
    }
}

/// A new folder that no other user can read, with all sources.
fn sources() -> std::io::Result<TempDir> {
    let folder = scratch_folder()?;
    for (name, content) in SOURCES {
        let mode = if Path::new(name).extension().is_some_and(|end| end == "sh") { 0o700 } else { 0o600 };
        let path = folder.path().join(name);
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(content)?;
    }
    Ok(folder)
}

async fn build(context: &mut Context, name: &str, rootfs: bool) -> Result<u8, Failure> {
    if !["base", "science"].contains(&name) {
        return Err(Failure::usage(format!("Belljar has no image `{}`", one_line(name))).hint(
            "its images are `base` and `science`; for one of your own say what it is made of: `--with PACKAGE`, `--requirements FILE` or `--dockerfile FILE`",
        ));
    }
    let scratch = sources().map_err(|e| Failure::io("failed to write the image's sources", &e))?;
    // `bash` is named explicitly, since temporary folders are often mounted `noexec`.
    let mut command = tokio::process::Command::new("bash");
    command.arg(scratch.path().join("build.sh"));
    if rootfs {
        let paths = Paths::of_this_process().map_err(|e| Failure::new(e.to_string()).hint(e.fix()))?;
        command.arg("--rootfs").arg(paths.roots_dir().join(name));
    }
    command.arg(name).stdin(Stdio::null()).stdout(Stdio::piped());
    let built = builder::run(&mut context.screen, command).await?;
    if !built.status.success() {
        return Err(Failure::new(format!("failed to build `belljar/{name}` ({})", built.status)).hint(
            if rootfs {
                "the lines above say why; a mirror of Debian has to be reachable, and the disk needs 2 GB"
            } else {
                "the lines above say why; the engine has to answer (`docker info`), and the disk needs 2 GB. Without an engine, `--rootfs` makes a folder for jails"
            },
        ));
    }
    // The id is the last line of the script's stdout.
    let id = built.last.as_str();
    let made = serde_json::json!({ "reference": format!("belljar/{name}"), "id": id });
    context.show_value(&made, |screen, _| screen.line(id))
}

async fn pull(context: &mut Context, reference: String) -> Result<u8, Failure> {
    let response =
        context.client().download("/v1/images", Some(&PullImage { reference: reference.clone() })).await?;
    steps::show(context, response).await?;
    if !context.json {
        context.screen.line(&reference)?;
    }
    Ok(exit::SUCCESS)
}

async fn remove(context: &mut Context, name: &str) -> Result<u8, Failure> {
    let has_tag = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
    let full = if has_tag { name.to_owned() } else { format!("{name}:latest") };
    let answer = context.client().delete(&format!("/v1/images/{}", escaped_path(&full))).await?;
    context.show(&answer, |screen, _: Value| screen.line(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::api::ImagePackages;

    #[test]
    fn the_packages_that_people_choose_are_named_and_the_others_counted() {
        let mut image = ImageView {
            reference: "belljar/science".into(),
            backend: Backend::Docker,
            id: Some("sha256:1".into()),
            bytes: Some(5_000_000),
            default: true,
            packages: None,
            origin: None,
        };
        let last = |image: &ImageView| details(image).pop().unwrap();
        assert!(
            last(&image).starts_with("packages: not known until a session has used the image, as with `")
        );
        image.packages = Some(ImagePackages::default());
        assert_eq!(last(&image), "packages: Python's standard library only");
        let names = |text: &str| text.split(' ').map(ToOwned::to_owned).collect();
        image.packages =
            Some(ImagePackages { installed: names("numpy pandas pytz six"), main: names("numpy pandas") });
        assert_eq!(last(&image), "packages: numpy, pandas (and 2 that these need)");
    }
}
