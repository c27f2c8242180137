//! A server that a test starts on loopback: a Python script beside this file, which prints its port and ends with its
//! standard input.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub struct ScriptServer {
    child: Child,
    pub port: u16,
}

impl ScriptServer {
    pub fn start<const N: usize>(script: &str, arguments: [&OsStr; N]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support").join(script);
        let mut child = Command::new("python3")
            .arg(script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut port = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut port).expect("a line");
        Self { child, port: port.trim().parse().expect("a port") }
    }

    /// Ends the server, so that no request reaches it any more.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ScriptServer {
    fn drop(&mut self) {
        self.stop();
    }
}
