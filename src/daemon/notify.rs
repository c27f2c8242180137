//! Reports the daemon's state to systemd: ready, alive, stopping, one datagram each. Without systemd, nothing is sent.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::actors::supervisor::messages::{SupervisorMsg, SupervisorRef};

pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Silence for this long means that the daemon hangs.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Configured by `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub fn of_this_process() -> Self {
        Self::from(&|name| std::env::var_os(name))
    }

    fn from(env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let address = env("NOTIFY_SOCKET").and_then(|path| match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(&path).ok(),
            _ => None,
        });
        let to = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        // The daemon must not block if systemd does not read.
        if let Some((socket, _)) = &to {
            let _ = socket.set_nonblocking(true);
        }
        let text = |name| env(name).and_then(|value| value.into_string().ok());
        let is_meant = text("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = text("WATCHDOG_USEC").filter(|_| is_meant).and_then(|time| time.parse().ok());
        Self { to, watchdog: watchdog.filter(|time| *time > 0).map(Duration::from_micros) }
    }

    pub fn ready(&self) {
        self.tell("READY=1");
    }

    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, state: &str) {
        let Some((socket, address)) = &self.to else { return };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::warn!(%error, state, "systemd was not told");
        }
    }

    /// Reports that the daemon is alive, twice per watchdog interval, as long as its supervisor answers.
    pub async fn watch(&self, supervisor: &SupervisorRef) {
        let Some(watchdog) = self.watchdog else { return std::future::pending().await };
        let pause = watchdog / 2;
        loop {
            let answered = supervisor.call(|reply_to| SupervisorMsg::Count { reply_to }, Some(pause)).await;
            if answered.is_ok_and(|answer| answer.is_success()) {
                self.tell("WATCHDOG=1");
            }
            tokio::time::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_an_abstract_name_are_both_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("belljar-test-{}", std::process::id());
        let abstract_one = SocketAddr::from_abstract_name(&name).unwrap();
        let listeners = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (UnixDatagram::bind_addr(&abstract_one).unwrap(), OsString::from(format!("@{name}"))),
        ];
        for (listener, at) in listeners {
            Notifier::from(&|name| (name == "NOTIFY_SOCKET").then(|| at.clone())).ready();
            let mut text = [0; 64];
            let length = listener.recv(&mut text).unwrap();
            assert_eq!(&text[..length], b"READY=1");
        }
    }

    #[test]
    fn only_its_own_watchdog_counts() {
        let with = |pid: String| {
            Notifier::from(&move |name| match name {
                "WATCHDOG_USEC" => Some("4000000".into()),
                "WATCHDOG_PID" => Some(pid.clone().into()),
                _ => None,
            })
        };
        assert_eq!(with(std::process::id().to_string()).watchdog, Some(Duration::from_secs(4)));
        assert_eq!(with("1".to_owned()).watchdog, None);
    }
}
