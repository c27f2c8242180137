//! `belljar receipt`: show how a session is really isolated.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::size;
use crate::cli::render::screen::{Screen, Tint};
use crate::protocol::frames::Probe;
use crate::protocol::receipt::{self, Holder};
use crate::protocol::text::one_line;

/// Show how a session's sandbox is really isolated, as read back from the running sandbox.
#[derive(Debug, Args)]
pub(in crate::cli) struct Receipt {
    #[command(flatten)]
    session: SessionArg,
}

/// A line of the receipt.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Group(&'static str),
    Fact(&'static str, String),
    Check(bool, &'static str),
}

impl Receipt {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().get(&self.session.path("/receipt")?).await?;
        context.show(&answer, |screen, receipt| {
            lines(&receipt).iter().try_for_each(|line| screen.line(&line.rendered(screen)))
        })
    }
}

impl Line {
    fn rendered(&self, screen: &Screen) -> String {
        match self {
            Self::Group(name) => screen.tinted(Tint::Bold, name),
            Self::Fact(key, value) => {
                format!("  {}  {}", screen.tinted(Tint::Dim, &format!("{key:<14}")), one_line(value))
            }
            Self::Check(true, what) => format!("  {} {what}", screen.tinted(Tint::Green, "✓")),
            Self::Check(false, what) => format!("  {} {what}", screen.tinted(Tint::Red, "✗")),
        }
    }
}

fn lines(receipt: &receipt::Receipt) -> Vec<Line> {
    let process = &receipt.process;
    let limits = &receipt.limits;
    let mut lines = vec![
        Line::Group("sandbox"),
        Line::Fact("id", receipt.sandbox.to_string()),
        Line::Fact("backend", backend(receipt)),
        Line::Fact("container", receipt.container.clone()),
        Line::Fact("runtime", receipt.runtime.clone()),
        Line::Fact("image", format!("{} ({})", receipt.image.reference, receipt.image.id)),
        Line::Fact("python", receipt.python.clone()),
        Line::Group("process"),
        Line::Fact("pid", process.pid.to_string()),
        Line::Fact("user", format!("{}:{}", process.uid, process.gid)),
        Line::Fact("capabilities", format!("effective {}, bounding {}", process.cap_eff, process.cap_bnd)),
        Line::Fact("seccomp", format!("mode {}, profile {}", process.seccomp, receipt.seccomp_profile)),
        Line::Fact("apparmor", process.apparmor.clone().unwrap_or_else(|| "none".to_owned())),
        Line::Fact("network", receipt.network.clone()),
        Line::Group("limits"),
        Line::Fact("memory", held(size(limits.memory_bytes), limits.held_by.memory)),
        Line::Fact("cpus", held(limits.cpus.to_string(), limits.held_by.cpus)),
        Line::Fact("processes", held(limits.pids.to_string(), limits.held_by.pids)),
        Line::Fact("open files", limits.open_files.to_string()),
        Line::Fact("largest file", size(limits.file_bytes)),
        Line::Fact("core dumps", size(limits.core_bytes)),
        Line::Fact(
            "cgroup",
            match limits.cgroup_version {
                0 => "none of its own".to_owned(),
                version => format!("version {version}"),
            },
        ),
        Line::Group("mounts"),
    ];
    lines.extend(receipt.mounts.iter().map(|mount| {
        let access = if mount.writable { "writable" } else { "read-only" };
        Line::Fact(access, format!("{} ({})", mount.target, mount.kind))
    }));
    lines.push(Line::Group("contained"));
    lines.push(Line::Check(process.no_new_privs, "gains no privileges"));
    lines.push(Line::Check(process.seccomp == 2, "system calls are filtered"));
    lines.push(Line::Check(receipt.read_only_root, "the root is read-only"));
    lines.extend(probed(&receipt.probe));
    lines
}

fn backend(receipt: &receipt::Receipt) -> String {
    let name = receipt.backend.name();
    if receipt.chosen.is_empty() { name.to_owned() } else { format!("{name} ({})", receipt.chosen) }
}

/// Most limits are enforced by the control group; for others, what enforces them is shown.
fn held(value: String, holder: Holder) -> String {
    match holder {
        Holder::Cgroup => value,
        Holder::Rlimit | Holder::Guardian | Holder::Nothing => {
            format!("{value} (held by: {})", holder.name())
        }
    }
}

/// Destructures the probe, so that the compiler reports a new finding that is missing here.
fn probed(probe: &Probe) -> [Line; 7] {
    let Probe {
        no_network,
        no_kernel_crypto,
        read_only_root,
        no_foreign_prlimit,
        no_new_namespaces,
        is_init,
        not_dumpable,
    } = *probe;
    [
        Line::Check(no_network, "reaches no network"),
        Line::Check(no_kernel_crypto, "reaches no kernel crypto"),
        Line::Check(read_only_root, "cannot write to the root folder"),
        Line::Check(no_foreign_prlimit, "cannot limit other processes"),
        Line::Check(no_new_namespaces, "cannot make namespaces"),
        Line::Check(is_init, "the guardian is the first process"),
        Line::Check(not_dumpable, "the guardian's memory cannot be read"),
    ]
}
