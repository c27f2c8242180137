//! Ordinary programs find what they expect of a machine: names, a home, a loopback, priorities of their own.

use serde_json::json;

use super::helpers::text;
use crate::support::{Daemon, engine};

/// What Python prints in a new session.
fn printed(code: &str) -> Option<String> {
    if !engine() {
        return None;
    }
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    let result = daemon.run("a", code);
    assert_eq!(result["status"], "success", "{result:#}");
    Some(text(&result, "stdout").to_owned())
}

#[test]
pub fn localhost_is_the_loopback_and_a_server_there_answers() {
    let code = r#"
import os, socket, threading
found = {address[0] for *_, address in socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)}
has_ipv6 = any(line.split()[-1] == "lo" for line in open("/proc/net/if_inet6")) if os.path.exists("/proc/net/if_inet6") else False
print(found == ({"127.0.0.1", "::1"} if has_ipv6 else {"127.0.0.1"}), socket.gethostbyname("localhost"))
print(socket.gethostbyname(socket.gethostname()), socket.getfqdn("localhost"))
for family, host in [(socket.AF_INET, "127.0.0.1")] + [(socket.AF_INET6, "::1")] * has_ipv6:
    server = socket.create_server((host, 0), family=family)
    def serve():
        client, _ = server.accept()
        client.sendall(b"hello")
        client.close()
    threading.Thread(target=serve).start()
    with socket.create_connection(("localhost", server.getsockname()[1]), 10) as client:
        print(client.recv(5))
    server.close()
"#;
    let Some(said) = printed(code) else { return };
    let greetings = said.lines().filter(|line| *line == "b'hello'").count();
    assert!(said.starts_with("True 127.0.0.1\n127.0.0.1 localhost\n"), "{said}");
    assert!((1..=2).contains(&greetings), "{said}");
}

#[test]
pub fn the_guest_and_root_have_names_and_no_user_of_the_host_has() {
    let code = r#"
import getpass, grp, os, pwd, subprocess
me = pwd.getpwuid(os.getuid())
print(getpass.getuser(), me.pw_name, grp.getgrgid(os.getgid()).gr_name, me.pw_dir == os.environ["HOME"])
print(pwd.getpwuid(0).pw_name, grp.getgrgid(0).gr_name, pwd.getpwnam("nobody").pw_uid)
print(subprocess.run(["whoami"], capture_output=True, text=True).stdout.strip())
print(sorted(user.pw_name for user in pwd.getpwall()), sorted(group.gr_name for group in grp.getgrall()))
for name in ("~", "~guest"):
    home = os.path.expanduser(name)
    path = os.path.join(home, "note")
    open(path, "w").write("kept")
    print(home, open(path).read())
for path in ("/etc/passwd", "/etc/group", "/etc/hosts"):
    try:
        open(path, "a")
    except OSError:
        print("shut")
"#;
    let Some(said) = printed(code) else { return };
    let expected = "guest guest guest True\nroot root 65534\nguest\n['guest', 'nobody', 'root'] ['guest', 'nogroup', 'root']\n\
                    /tmp kept\n/tmp kept\nshut\nshut\nshut\n";
    assert_eq!(said, expected);
}

#[test]
pub fn priorities_of_own_processes_can_be_lowered_but_not_that_of_pid_1() {
    let code = r#"
import ctypes, errno, os, platform, signal, time
libc = ctypes.CDLL(None, use_errno=True)
number = 141 if platform.machine() == "x86_64" else 140
def attempt(which, who):
    ctypes.set_errno(0)
    outcome = libc.syscall(ctypes.c_long(number), ctypes.c_long(which), ctypes.c_long(who), ctypes.c_long(19))
    return "done" if outcome == 0 else errno.errorcode[ctypes.get_errno()]
before = os.getpriority(os.PRIO_PROCESS, 1)
# Pids of any parity, the next ones after pid 1, and children of children.
children = []
for _ in range(6):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
print([attempt(0, child) for child in children], {os.getpriority(os.PRIO_PROCESS, child) for child in children})
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
own = os.fork()
if own == 0:
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    os.setpriority(os.PRIO_PROCESS, os.getpid(), 19)
    os._exit(os.getpriority(os.PRIO_PROCESS, 0))
print(os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]))
# The kernel reads 32 bits of a pid: whatever is above them does not make another one of pid 1.
print([attempt(0, who) for who in (1, 1 | 1 << 32, 1 | 1 << 63, 1 | 0xFFFFFFFF << 32)])
print([attempt(which, who) for which in (1, 2) for who in (0, 1, os.getpid())], attempt(1 << 32, 1))
print(os.getpriority(os.PRIO_PROCESS, 1) == before)
"#;
    let Some(said) = printed(code) else { return };
    let expected = "['done', 'done', 'done', 'done', 'done', 'done'] {19}\n19\n['EPERM', 'EPERM', 'EPERM', 'EPERM']\n\
                    ['EPERM', 'EPERM', 'EPERM', 'EPERM', 'EPERM', 'EPERM'] EPERM\nTrue\n";
    assert_eq!(said, expected);
}

#[test]
pub fn splice_seems_not_to_exist() {
    let code = r#"
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
number = 275 if platform.machine() == "x86_64" else 76
print(libc.syscall(ctypes.c_long(number), -1, 0, -1, 0, 0, 0), errno.errorcode[ctypes.get_errno()])
"#;
    let Some(said) = printed(code) else { return };
    assert_eq!(said, "-1 ENOSYS\n");
}

#[test]
pub fn a_terminal_takes_a_break_of_any_length() {
    let code = r#"
import os, termios
_, terminal = os.openpty()
for length in (0, 1):
    termios.tcsendbreak(terminal, length)
print("sent")
"#;
    let Some(said) = printed(code) else { return };
    assert_eq!(said, "sent\n");
}
