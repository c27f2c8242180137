//! The tenth invariant: whatever else happens, the control socket answers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Daemon;

const EVERY: Duration = Duration::from_millis(50);
/// Generous on purpose: how long it takes is what the benchmark is for.
const GUARD: Duration = Duration::from_secs(10);

/// Asks for the daemon's health all the time until it is asked how that went.
pub struct Pulse {
    over: Arc<AtomicBool>,
    asking: Option<JoinHandle<(u64, Vec<String>)>>,
}

impl Pulse {
    /// Begins to ask a daemon, which has to run until the pulse is taken.
    pub fn of(daemon: &Daemon) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (socket, until) = (daemon.socket(), Arc::clone(&over));
        let asking = std::thread::spawn(move || {
            let (mut answers, mut missed) = (0, Vec::new());
            while !until.load(Ordering::Relaxed) {
                match beat(&socket) {
                    Ok(()) => answers += 1,
                    Err(why) => missed.push(why),
                }
                std::thread::sleep(EVERY);
            }
            (answers, missed)
        });
        Self { over, asking: Some(asking) }
    }

    #[track_caller]
    pub fn assert_steady(mut self) {
        self.over.store(true, Ordering::Relaxed);
        let (answers, missed) = self.asking.take().expect("asked once").join().expect("it asked");
        assert!(
            answers > 0 && missed.is_empty(),
            "10: the socket did not answer: {missed:?}, else {answers} times"
        );
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn beat(socket: &Path) -> Result<(), String> {
    let begun = Instant::now();
    let mut answer = String::new();
    let asked = UnixStream::connect(PathBuf::from(socket)).and_then(|mut stream| {
        stream.set_read_timeout(Some(GUARD))?;
        stream.write_all(b"GET /v1/health HTTP/1.1\r\nHost: belljar\r\nConnection: close\r\n\r\n")?;
        stream.read_to_string(&mut answer)
    });
    match asked {
        Ok(_) if answer.starts_with("HTTP/1.1 200") => Ok(()),
        Ok(_) => Err(answer.lines().next().unwrap_or("nothing").to_owned()),
        Err(error) => Err(format!("{error} after {:?}", begun.elapsed())),
    }
}
