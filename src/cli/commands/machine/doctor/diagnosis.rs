//! From facts to findings, in the order in which things build on each other.

use super::facts::Facts;
use super::finding::Finding;
use super::{engine_rules, machine};

pub fn diagnosis(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![
        machine::kernel(facts.kernel.as_deref()).of("kernel"),
        machine::cgroups(facts).of("cgroups"),
        machine::seccomp(facts.seccomp).of("seccomp"),
        machine::user_namespaces(facts).of("user namespaces"),
        machine::apparmor(facts).of("apparmor"),
    ];
    findings.extend(machine::sysctls(&facts.sysctls).into_iter().map(|finding| finding.of("sysctls")));
    findings
        .extend(machine::crypto_sockets(facts.crypto_sockets).map(|finding| finding.of("crypto sockets")));
    findings.extend(machine::processes_of_others(facts).map(|finding| finding.of("processes")));
    findings.extend([machine::bubblewrap(facts).of("bubblewrap"), engine_rules::engine(facts).of("engine")]);
    if let Ok(engine) = &facts.engine {
        findings.extend(engine_rules::all(engine, facts));
    }
    findings.extend([
        machine::config(&facts.config).of("config"),
        machine::home(&facts.home).of("home"),
        machine::disk(&facts.home).of("disk"),
        machine::socket(&facts.socket).of("socket"),
        machine::daemon(facts.daemon.as_ref()).of("daemon"),
    ]);
    findings
        .extend(facts.closed.as_ref().map(|closed| machine::closed_daemon(closed).of("machine's daemon")));
    findings
}

#[cfg(test)]
mod tests;
