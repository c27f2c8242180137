//! Judges the container engine, its runtime and its images.

use super::facts::{Engine, EngineTrouble, Facts, OTHERS_WRITE};
use super::finding::Finding;
use super::runc::Version;
use crate::cli::client::machine_daemon::ClosedDaemon;
use crate::cli::render::human::size;
use crate::config::{Pull, Sandbox};

/// The oldest version of the engine's API that Belljar is tested with.
const API: (u32, u32) = (1, 41);

pub fn engine(facts: &Facts) -> Finding {
    let found = match &facts.engine {
        Ok(found) => found,
        Err(trouble) => {
            // What the daemon in use can do counts, and not what this user can.
            if let Some(version) = facts.engine_of_daemon() {
                return Finding::ok(format!("{version}, which the daemon uses"));
            }
            let (message, fix) = unusable(trouble, facts.closed.as_ref());
            return if jails_serve(facts) {
                Finding::warning(format!("{message}; sessions run in jails of bubblewrap"), fix)
            } else {
                Finding::failure(message, fix)
            };
        }
    };
    if found.podman {
        return Finding::failure(
            format!("Podman {} takes no seccomp profile over its interface", found.version),
            "apt-get install docker.io, and set `DOCKER_HOST` to `unix:///var/run/docker.sock`",
        );
    }
    let (major, minor) = API;
    if !Version::parse(&found.api).is_some_and(|api| api.is_at_least(major, minor)) {
        return Finding::warning(
            format!("{} (API {}) is older than what Belljar is tested with", found.version, found.api),
            "upgrade it to 20.10 or later",
        );
    }
    Finding::ok(format!("{} (API {})", found.version, found.api))
}

fn unusable(trouble: &EngineTrouble, closed: Option<&ClosedDaemon>) -> (String, String) {
    let (message, fix) = match trouble {
        EngineTrouble::Elsewhere(host) => (
            format!("`DOCKER_HOST` is `{host}`, and Belljar needs an engine of this machine"),
            "unset DOCKER_HOST, or set it to `unix:///var/run/docker.sock`",
        ),
        EngineTrouble::Absent(socket) => (
            format!("none listens at `{}`", socket.display()),
            "systemctl start docker; where there is none: apt-get install docker.io",
        ),
        EngineTrouble::Denied(socket) => (
            format!("you may not use `{}`", socket.display()),
            "sudo usermod -aG docker $USER, then log in again",
        ),
        EngineTrouble::Silent(why) => (format!("it does not answer: {why}"), "systemctl restart docker"),
    };
    // The daemon of the machine needs no rights of its users on the engine, with which they could become root.
    let fix = match (trouble, closed) {
        (EngineTrouble::Denied(_), Some(closed)) => closed.remedy(),
        _ => fix.to_owned(),
    };
    (message, fix)
}

/// Whether sessions get jails if there is no engine, because the configuration requires no more.
fn jails_serve(facts: &Facts) -> bool {
    let allowed = facts.config.settings.as_ref().is_ok_and(|settings| !settings.sandbox.needs_engine());
    allowed && facts.bubblewrap.is_some() && facts.jail_trouble.is_none()
}

/// Findings about an engine that answers.
pub fn all(engine: &Engine, facts: &Facts) -> Vec<Finding> {
    let sandbox = facts.config.settings.as_ref().ok().map(|settings| &settings.sandbox);
    let runtime = sandbox.and_then(|sandbox| sandbox.runtime.as_deref()).unwrap_or(&engine.default_runtime);
    let mut findings = vec![
        engine_socket(engine).of("engine socket"),
        runtime_finding(engine, runtime).of("runtime"),
        engine_seccomp(engine).of("engine seccomp"),
        remap(engine).of("userns-remap"),
    ];
    findings.extend(limits(engine).map(|finding| finding.of("engine limits")));
    findings.extend(sandbox.map(|sandbox| images(sandbox, &facts.images).of("images")));
    findings
}

fn engine_socket(engine: &Engine) -> Finding {
    let path = engine.socket.display();
    match engine.socket_mode {
        Some(mode) if mode & OTHERS_WRITE != 0 => Finding::failure(
            format!("everybody may use `{path}` (mode {mode:o}), and with it become root"),
            format!("sudo chmod 660 {path}"),
        ),
        Some(mode) => Finding::ok(format!("{path} (mode {mode:o})")),
        None => Finding::warning(format!("nobody knows who may use `{path}`"), format!("ls -l {path}")),
    }
}

fn runtime_finding(engine: &Engine, runtime: &str) -> Finding {
    if !engine.runtimes.iter().any(|known| known == runtime) {
        return Finding::failure(
            format!("the engine has no runtime `{runtime}`; it has {}", engine.runtimes.join(", ")),
            "set `sandbox.runtime` to one of them, or name it in /etc/docker/daemon.json",
        );
    }
    if !runtime.contains("runc") {
        return another_runtime(runtime);
    }
    let unknown = || {
        Finding::warning(
            "nobody knows the version of runc",
            "runc --version; it should be 1.2.8, 1.3.3 or later",
        )
    };
    let Some(version) = &engine.runc else { return unknown() };
    let Some(open) = Version::parse(version).map(Version::open) else { return unknown() };
    if open.is_empty() {
        return Finding::ok(format!("runc {version}"));
    }
    Finding::warning(
        format!("runc {version} is open to {}; it may be patched by your distribution", open.join(", ")),
        "apt-get install --only-upgrade runc, or get 1.2.8, 1.3.3 or later; then systemctl restart docker",
    )
}

/// Runtimes other than runc that start processes of the host's kernel.
const LIKE_RUNC: [&str; 2] = ["crun", "youki"];
/// Parts of the names of runtimes that bring a kernel of their own.
const OWN_KERNEL: [&str; 3] = ["runsc", "gvisor", "kata"];

fn another_runtime(runtime: &str) -> Finding {
    let named = |parts: &[&str]| parts.iter().any(|part| runtime.contains(part));
    if named(&OWN_KERNEL) {
        return Finding::failure(
            format!(
                "`{runtime}` brings a kernel of its own, so what holds a sandbox cannot be read back from the host's: \
                 every session would be refused"
            ),
            "set `sandbox.runtime` to `runc` or `crun`; docs/GVISOR.md says what differs",
        );
    }
    if named(&LIKE_RUNC) {
        return Finding::ok(format!("{runtime}; faults of runc do not matter to it"));
    }
    Finding::warning(
        format!(
            "nobody has tested Belljar with `{runtime}`; a session is refused if it differs from what was asked for"
        ),
        "belljar run '1 + 1' shows it; else set `sandbox.runtime` to `runc` or `crun`",
    )
}

fn has(engine: &Engine, name: &str) -> bool {
    engine.security.iter().any(|option| option.split(',').any(|part| part == format!("name={name}")))
}

fn engine_seccomp(engine: &Engine) -> Finding {
    if has(engine, "seccomp") {
        return Finding::ok("it can filter system calls");
    }
    Finding::failure(
        "the engine does not filter system calls, so no sandbox would start",
        "use an engine that is built with seccomp, as Docker's own packages and every distribution's are",
    )
}

fn remap(engine: &Engine) -> Finding {
    if has(engine, "rootless") {
        return Finding::ok("not needed: the engine runs without root");
    }
    if has(engine, "userns") {
        return Finding::ok("on: root of a container is nobody on the host");
    }
    Finding::warning(
        "off: one wall less between a container and the host",
        "put `\"userns-remap\": \"default\"` into /etc/docker/daemon.json, then systemctl restart docker",
    )
}

fn limits(engine: &Engine) -> Option<Finding> {
    if engine.no_limits.is_empty() {
        return None;
    }
    Some(Finding::failure(
        format!("the engine cannot limit {}", engine.no_limits.join(", ")),
        "of a rootless engine: systemctl --user edit docker, with `Delegate=cpu memory pids`; else see `cgroups`",
    ))
}

fn images(sandbox: &Sandbox, found: &[(String, Option<u64>)]) -> Finding {
    let there: Vec<String> = found
        .iter()
        .filter_map(|(name, bytes)| bytes.map(|bytes| format!("{name} ({})", size(bytes))))
        .collect();
    let missing: Vec<&str> =
        found.iter().filter(|(_, bytes)| bytes.is_none()).map(|(name, _)| name.as_str()).collect();
    let wanted = sandbox.image.as_deref().filter(|image| missing.contains(image));
    let lacks = match (wanted, there.is_empty()) {
        (Some(wanted), _) => format!("`{wanted}`, which sessions get by default, is not there"),
        (None, true) => format!("none of the allowed ones is there: {}", missing.join(", ")),
        (None, false) => {
            let mut text = there.join(", ");
            if !missing.is_empty() {
                text = format!("{text}; not there: {}", missing.join(", "));
            }
            return Finding::ok(text);
        }
    };
    let fix = get_image(wanted, &missing);
    match sandbox.pull {
        Pull::Missing => Finding::warning(format!("{lacks}; the first session pulls it"), fix),
        Pull::Never => Finding::failure(lacks, fix),
    }
}

/// How to get an image: Belljar's own images are built, others are pulled.
fn get_image(wanted: Option<&str>, missing: &[&str]) -> String {
    let own = |image: &str| {
        let kind = image.strip_prefix("belljar/")?.split(':').next()?;
        matches!(kind, "base" | "science").then(|| format!("belljar image build {kind}"))
    };
    let any_own = || missing.iter().rev().find_map(|image| own(image));
    match (wanted, missing.first()) {
        (Some(image), _) => own(image).unwrap_or_else(|| format!("belljar image pull {image}")),
        (None, Some(first)) => any_own().unwrap_or_else(|| format!("belljar image pull {first}")),
        (None, None) => "belljar image build base".to_owned(),
    }
}
