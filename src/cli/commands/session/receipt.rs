//! `belljar receipt`: show how a session is really isolated.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::commands::session::inspect::memory;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{size, word};
use crate::cli::render::screen::{Screen, Tint};
use crate::protocol::api::{SessionLimits, SessionView};
use crate::protocol::frames::Probe;
use crate::protocol::receipt::{self, Holder};
use crate::protocol::text::one_line;

/// Show how a session's sandbox is really isolated, as read back from the running sandbox.
#[derive(Debug, Args)]
pub(in crate::cli) struct Receipt {
    #[command(flatten)]
    session: SessionArg,
}

impl Receipt {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let client = context.client();
        let answer = client.get(&self.session.path("/receipt")?).await?;
        let session: SessionView = client.get(&self.session.path("")?).await?.parse()?;
        context.show(&answer, |screen, receipt| show(screen, &receipt, &session.limits))
    }
}

fn show(screen: &mut Screen, receipt: &receipt::Receipt, session: &SessionLimits) -> Result<(), Failure> {
    for (group, facts) in facts(receipt, session) {
        screen.line(&screen.tinted(Tint::Bold, group))?;
        for (key, value) in facts {
            let key = screen.tinted(Tint::Dim, &format!("{key:<14}"));
            screen.line(&format!("  {key}  {}", one_line(&value)))?;
        }
    }
    screen.line(&screen.tinted(Tint::Bold, "contained"))?;
    checks(receipt).into_iter().try_for_each(|(holds, what)| {
        let sign = if holds { screen.tinted(Tint::Green, "✓") } else { screen.tinted(Tint::Red, "✗") };
        screen.line(&format!("  {sign} {what}"))
    })
}

/// What was read back, in groups. The limit of memory is split as everywhere, if it is what the session has in all.
fn facts(
    receipt: &receipt::Receipt,
    session: &SessionLimits,
) -> [(&'static str, Vec<(&'static str, String)>); 4] {
    let process = &receipt.process;
    let limits = &receipt.limits;
    let sandbox = vec![
        ("id", receipt.sandbox.to_string()),
        ("backend", backend(receipt)),
        ("container", receipt.container.clone()),
        ("runtime", receipt.runtime.clone()),
        ("image", format!("{} ({})", receipt.image.reference, receipt.image.id)),
        ("python", receipt.python.clone()),
    ];
    let process = vec![
        ("pid", process.pid.to_string()),
        ("user", format!("{}:{}", process.uid, process.gid)),
        ("capabilities", format!("effective {}, bounding {}", process.cap_eff, process.cap_bnd)),
        ("seccomp", format!("mode {}, profile {}", process.seccomp, receipt.seccomp_profile)),
        ("apparmor", process.apparmor.clone().unwrap_or_else(|| "none".to_owned())),
        ("network", receipt.network.clone()),
    ];
    let cgroup = match limits.cgroup_version {
        0 => "none of its own".to_owned(),
        version => format!("version {version}"),
    };
    let is_whole = session.memory_bytes.saturating_add(session.checkpoint_bytes) == limits.memory_bytes;
    let memory = if is_whole { memory(session) } else { size(limits.memory_bytes) };
    let limits = vec![
        ("memory", with_holder(memory, limits.held_by.memory)),
        ("cpus", with_holder(limits.cpus.to_string(), limits.held_by.cpus)),
        ("processes", with_holder(limits.pids.to_string(), limits.held_by.pids)),
        ("open files", limits.open_files.to_string()),
        ("largest file", size(limits.file_bytes)),
        ("core dumps", size(limits.core_bytes)),
        ("cgroup", cgroup),
    ];
    let mounts = receipt.mounts.iter().map(|mount| {
        let access = if mount.writable { "writable" } else { "read-only" };
        (access, format!("{} ({})", mount.target, mount.kind))
    });
    [("sandbox", sandbox), ("process", process), ("limits", limits), ("mounts", mounts.collect())]
}

fn backend(receipt: &receipt::Receipt) -> String {
    let name = receipt.backend.name();
    if receipt.chosen.is_empty() { name.to_owned() } else { format!("{name} ({})", receipt.chosen) }
}

/// Most limits are enforced by the control group; for others, what enforces them is shown.
fn with_holder(value: String, holder: Holder) -> String {
    match holder {
        Holder::Cgroup => value,
        Holder::Rlimit | Holder::Guardian | Holder::Nothing => {
            format!("{value} (held by: {})", word(&holder))
        }
    }
}

/// Destructures the probe, so that the compiler reports a new finding that is missing here.
fn checks(receipt: &receipt::Receipt) -> [(bool, &'static str); 10] {
    let Probe {
        no_network,
        no_kernel_crypto,
        read_only_root,
        no_foreign_prlimit,
        no_new_namespaces,
        is_init,
        not_dumpable,
    } = receipt.probe;
    [
        (receipt.process.no_new_privs, "gains no privileges"),
        (receipt.process.seccomp == 2, "system calls are filtered"),
        (receipt.read_only_root, "the root is read-only"),
        (no_network, "reaches no network"),
        (no_kernel_crypto, "reaches no kernel crypto"),
        (read_only_root, "cannot write to the root folder"),
        (no_foreign_prlimit, "cannot limit other processes"),
        (no_new_namespaces, "cannot make namespaces"),
        (is_init, "the guardian is the first process"),
        (not_dumpable, "the guardian's memory cannot be read"),
    ]
}
