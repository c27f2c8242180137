#!/usr/bin/env python3
"""Uses a daemon for some minutes as several users do, with everything that goes wrong, and says what grows.

    tests/soak/run.py BELLJAR [--minutes N] [--backend docker|bubblewrap] [--pool N]
    tests/soak/run.py BELLJAR --stress [--seconds N]

Users with made-up ids run cells, asks of a scripted model, jobs and crashes, and leave in the middle; in the first half
the daemon is killed and started anew once a minute. Every 10 s the daemon's memory, descriptors and threads, its
sandboxes, the engine's containers that bear its label, the bytes of what lives in its home, the rows of its journal and
all bytes of its home are counted. Through each a line is fitted from when the last daemon is warm: one that is killed
every minute would hide what leaks. What is not flat makes the exit code 1, as does an answer that should not be. Needs
root. `--stress` runs every class of `stress-ng` in one session instead, one after the other, and looks whether the
daemon and a neighbour stay well. Each class has a minute if nothing is said, with all its stressors at once.
"""

import argparse
import collections
import os
import pathlib
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

USERS = [61_501, 61_502, 61_503]
SAMPLE_SECONDS = 10
KILL_SECONDS = 60
# Parts of the time: kills in the first one, and from then on what is fitted, when the last daemon has warmed up.
KILLS_UNTIL, FITTED_FROM = 0.5, 0.65
# Growth a minute that is still called flat. Rows and bytes of removed sessions stay for 30 days by design: they are
# shown, and only the part of what lives has to be flat.
FLAT = {"memory_kib": 1024, "descriptors": 2, "threads": 2, "sandboxes": 1, "containers": 1, "live_kib": 1024}
KEPT = ("journal.db", "journal.db-wal", "journal.db-shm", "blobs", "spill", "logs", "stderr")
SHOWN = ("journal_rows", "home_kib")
CELLS = [
    "x = 1",
    "x = sum(range(100_000)); x",
    "print('y' * 100_000)",
    "open('f.txt', 'w').write('z' * 10_000)",
    "1 / 0",
    "import os; os._exit(3)",
    "import ctypes; ctypes.string_at(0)",
    "while True: pass",
    "import subprocess; subprocess.Popen(['sleep', '30'])",
    "bytearray(1 << 34)",
]
SCRIPT = """[[reply]]
content = "I run one line."
[[reply.call]]
name = "execute_python_code"
[reply.call.arguments]
tool_call_purpose = "Print"
python_code_snippet = "print(1)"

[[reply]]
content = "Done."
"""
# How `exec`, `ask` and `job run` may end here: done, failed, the code's own word, too late, Belljar's word, too much
# memory, a segfault.
ENDS = {0, 1, 3, 124, 125, 137, 139}
# Of each class.
STRESS_SECONDS = 60
# What a class may take beyond its time; then the cell is stopped, which is an end like another.
STRESS_PATIENCE_SECONDS = 20
# `stress-ng` gives up a whole class for it: there are no semaphores of System V in a sandbox.
STRESS_WITHOUT = "sem-sysv"


class Daemon:
    def __init__(self, binary, backend, pool=0):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bjsoak", dir="/tmp"))
        self.binary, self.backend, self.process = binary, backend, None
        (self.home / "hello.toml").write_text(SCRIPT)
        (self.home / "job.py").write_text("print('a job')\n")
        config = f'[sandbox]\nbackend = "{backend}"\n[model.play]\nprovider = "script"\nfile = "hello.toml"\n[pool]\nsize = {pool}\n'
        (self.home / "config.toml").write_text(config)
        self.environment = os.environ | {
            "BELLJAR_HOME": str(self.home), "BELLJAR_SOCKET": str(self.home / "belljar.sock"),
            "BELLJAR_CONFIG": str(self.home / "config.toml"), "BELLJAR_NO_AUTOSTART": "1",
        }  # fmt: skip

    def start(self):
        log = open(self.home / "stderr", "ab")
        command = [self.binary, "daemon", "--system", "--group", "daemon"]
        self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(self.home / "belljar.sock"))
                self.home.chmod(0o711)
                return
            except OSError:
                time.sleep(0.05)
        sys.exit("the daemon does not serve: " + (self.home / "stderr").read_text())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def cli(self, user, *words):
        """The command line as that user, in the group that may use the socket."""
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--groups=1", self.binary, *words]
        return subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd="/", text=True, errors="replace",
        )  # fmt: skip

    def sandboxes(self):
        folder = self.home / "s"
        return len(list(folder.iterdir())) if folder.exists() else 0

    def containers(self):
        """Those that the engine has of this daemon."""
        if self.backend != "docker":
            return 0
        label = "label=belljar.instance=" + (self.home / "instance").read_text().strip()
        listed = subprocess.run(["docker", "ps", "-aq", "--filter", label], capture_output=True, check=True, text=True)
        return len(listed.stdout.split())

    def sample(self):
        pid = self.process.pid
        status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
        with sqlite3.connect(f"file:{self.home}/journal.db?mode=ro", uri=True, timeout=10) as journal:
            rows = journal.execute("SELECT count(*) FROM events").fetchone()[0]
        kept = [f"--exclude={self.home}/{name}" for name in KEPT]
        return {
            "memory_kib": int(status["RssAnon"].split()[0]),  # pages of the journal are the system's cache
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(status["Threads"]),
            "sandboxes": self.sandboxes(),
            "containers": self.containers(),
            "live_kib": self.kibibytes(*kept),
            "journal_rows": rows,
            "home_kib": self.kibibytes(),
        }

    def kibibytes(self, *options):
        said = subprocess.run(["du", "-sk", *options, self.home], capture_output=True, text=True).stdout
        return int(said.split()[0])

    def end(self):
        """Nothing is left: the daemon removes its sandboxes, then its home goes."""
        if self.process.poll() is None:
            subprocess.run([self.binary, "daemon", "stop", "--remove"], env=self.environment, capture_output=True)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        left = self.sandboxes() + self.containers()
        shutil.rmtree(self.home, ignore_errors=True)
        return left


class User(threading.Thread):
    """Does one thing after the other until it is told to stop."""

    def __init__(self, daemon, uid, stop, seed):
        super().__init__()
        self.daemon_, self.uid, self.stop, self.dice = daemon, uid, stop, random.Random(seed)
        self.done, self.strange, self.ends, self.refusals = 0, [], collections.Counter(), collections.Counter()

    def run(self):
        session = f"s{self.uid}"
        while not self.stop.is_set():
            self.do("new", session, "--memory", "128MiB")
            for _ in range(self.dice.randint(5, 20)):
                if self.stop.is_set():
                    break
                act = self.dice.random()
                if act < 0.6:
                    self.do("exec", "-s", session, "--timeout", "2s", self.dice.choice(CELLS))
                elif act < 0.7:
                    self.do("ask", "-s", session, "--model", "play", "Print one.")
                elif act < 0.8:
                    self.do("job", "run", str(self.daemon_.home / "job.py"), "--timeout", "5s")
                elif act < 0.9:
                    self.leave("exec", "-s", session, "--timeout", "3s", "import time; time.sleep(2)")
                else:
                    self.do(self.dice.choice(["undo", "reset"]), session)
            self.do("rm", session)

    def do(self, *words):
        process = self.daemon_.cli(self.uid, *words)
        try:
            _, said = process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.strange.append(f"no answer within 90 s: {words}")
            return
        self.done += 1
        self.ends[process.returncode] += 1
        if process.returncode == 125:
            self.refusals[f"{words[0]}: {said.strip().splitlines()[0][:80] if said.strip() else ''}"] += 1
        if process.returncode not in ENDS or "panicked" in said or "internal problem" in said:
            self.strange.append(f"{words}: exit {process.returncode}: {said[:300]}")

    def leave(self, *words):
        process = self.daemon_.cli(self.uid, *words)
        time.sleep(self.dice.random())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.done += 1


def slope(points):
    """Growth a minute, by least squares."""
    times, values = [at / 60 for at, _ in points], [value for _, value in points]
    middle, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((at - middle) ** 2 for at in times)
    return sum((at - middle) * (value - mean) for at, value in zip(times, values)) / spread if spread else 0.0


def soak(daemon, minutes):
    stop, begun, killed = threading.Event(), time.monotonic(), time.monotonic()
    users = [User(daemon, uid, stop, seed) for seed, uid in enumerate(USERS)]
    samples, kills = [], 0
    for user in users:
        user.start()
    try:
        while (now := time.monotonic() - begun) < minutes * 60:
            time.sleep(SAMPLE_SECONDS)
            if time.monotonic() - killed > KILL_SECONDS and now < minutes * 60 * KILLS_UNTIL:
                daemon.kill()
                daemon.start()
                killed, kills = time.monotonic(), kills + 1
                continue  # a daemon that has just begun is small
            samples.append((now, daemon.sample()))
            print(f"{now:5.0f} s  " + "  ".join(f"{name} {value}" for name, value in samples[-1][1].items()), flush=True)
    finally:
        stop.set()
        for user in users:
            user.join()
    late = [sample for sample in samples if sample[0] >= minutes * 60 * FITTED_FROM]
    if len(late) < 3:
        sys.exit("too short for a slope")
    grows = []
    print(f"\n{sum(user.done for user in users)} acts of {len(users)} users, {kills} kills of the daemon; growth a minute:")
    for name in (*FLAT, *SHOWN):
        if name == "containers" and daemon.backend != "docker":
            print(f"  {name:14} none: jails are no containers (`--backend docker` counts them)")
            continue
        growth = slope([(at, sample[name]) for at, sample in late])
        flat = FLAT.get(name)
        grows += [name] if flat is not None and growth > flat else []
        judged = "" if flat is None else f"  {'flat' if growth <= flat else 'GROWS'} (up to {flat})"
        print(f"  {name:14} {growth:+10.1f}{judged}")
    ends = sum((user.ends for user in users), collections.Counter())
    print("exit codes: " + ", ".join(f"{code} {count} times" for code, count in sorted(ends.items())))
    refusals = sum((user.refusals for user in users), collections.Counter())
    for text, count in refusals.most_common(8):
        print(f"  refused {count} times: {text}")
    strange = [text for user in users for text in user.strange]
    for text in strange:
        print(f"STRANGE: {text}")
    return not grows and not strange


def classes():
    """The classes that `stress-ng` names when it is asked for one that it does not know."""
    asked = subprocess.run(["stress-ng", "--class", "none-such"], capture_output=True, text=True)
    return (asked.stdout + asked.stderr).partition("available classes:")[2].split()


def stress(daemon, seconds):
    """All stressors of each class side by side, in a jail, which has the host's own programs."""
    if not shutil.which("stress-ng"):
        sys.exit("`stress-ng` is missing: install it with `apt-get install stress-ng`")
    attacker, neighbour = USERS[:2]
    for uid, name in ((attacker, "storm"), (neighbour, "calm")):
        made = daemon.cli(uid, "new", name)
        made.communicate()
    every = classes()
    if not every:
        sys.exit("`stress-ng` names no classes")
    print(f"{len(every)} classes of {seconds} s each, without `{STRESS_WITHOUT}`: a sandbox has no semaphores of System V", flush=True)
    slow, good = 0.0, True
    for kind in every:
        command = ["stress-ng", "--class", kind, "--all", "1", "--timeout", str(seconds), "--temp-path", "/tmp"]
        command += ["--exclude", STRESS_WITHOUT]
        code = f"import subprocess; subprocess.run({command}, stdout=-3, stderr=-3).returncode"
        limit = f"{seconds + STRESS_PATIENCE_SECONDS}s"
        storm = daemon.cli(attacker, "exec", "-s", "storm", "--timeout", limit, code)
        slowest = 0.0
        while storm.poll() is None:
            begun = time.monotonic()
            said, problem = daemon.cli(neighbour, "exec", "-s", "calm", "6 * 7").communicate(timeout=60)
            slowest = max(slowest, time.monotonic() - begun)
            if said.strip() != "42":
                good = False
                print(f"{kind}: the neighbour got {said.strip()[:200]!r}, {problem.strip()[:400]!r}", flush=True)
        said, problem = storm.communicate()
        print(f"{kind}: exit {storm.returncode}, stress-ng {said.strip()[-3:]} {problem.strip()[:200]}, neighbour {slowest:.2f} s", flush=True)
        slow = max(slow, slowest)
    said, problem = daemon.cli(attacker, "exec", "-s", "storm", "6 * 7").communicate(timeout=60)
    if said.strip() != "42":
        good = False
        print(f"afterwards the attacker's own session said {said.strip()[:200]!r}, {problem.strip()[:400]!r}")
    print(f"the slowest answer of the neighbour took {slow:.2f} s; all were {'right' if good else 'NOT RIGHT'}")
    return good and daemon.process.poll() is None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("belljar", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--backend", default="bubblewrap", choices=["docker", "bubblewrap"])
    parser.add_argument("--pool", type=int, default=0, help="sandboxes that wait for a session (0)")
    parser.add_argument("--stress", action="store_true")
    parser.add_argument("--seconds", type=int, default=STRESS_SECONDS, help="of each class of stress (60)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("only root can act as several users")
    daemon = Daemon(options.belljar, "bubblewrap" if options.stress else options.backend, options.pool)
    daemon.start()
    try:
        good = stress(daemon, options.seconds) if options.stress else soak(daemon, options.minutes)
    finally:
        left = daemon.end()
    print(f"left behind: {left} sandboxes")
    return 0 if good and left == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
