"""A daemon of one's own and a client that costs little: one kept connection, and no more HTTP than the API needs."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import measure

START_SECONDS = 20
END_SECONDS = 60
# No request of a benchmark takes longer; a cell's own deadline comes before.
ANSWER_SECONDS = 150
CELL_SECONDS = 120
RECEIVE_BYTES = 1 << 18

# Ends the daemon and its sandboxes when the process that started it is gone, however it went.
WATCH = 'cat > /dev/null; "$0" daemon stop --remove > /dev/null 2>&1; rm -rf "$BELLJAR_HOME"'

# The longest wait for a pool to be filled, for each of its sandboxes and in all.
FILL_SECONDS_EACH, FILL_SECONDS = 3, 40

# Room for what the benchmarks start; all else is as it is delivered.
ROOM = """
[quota]
sessions = 400
memory = "400GiB"
cpus = 1000.0
processes = 200000
workspace = "800GiB"
journal = "20GiB"
[machine]
sessions = 400
cells = 400
processes = 200000
"""


class Refused(Exception):
    """The daemon answered with a problem."""


class NotFilled(Exception):
    """The pool does not hold as many sandboxes as it should."""


class Client:
    def __init__(self, path):
        self.path = str(path)
        self.connect()

    def connect(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(ANSWER_SECONDS)
        self.socket.connect(self.path)

    def close(self):
        self.socket.close()

    def send(self, method, path, body=b"", kind="application/json"):
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: belljar\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            self.socket.sendall(head.encode() + body)
        except BrokenPipeError:
            # The daemon closes connections that were not used for a while; this request it has not seen.
            self.close()
            self.connect()
            self.socket.sendall(head.encode() + body)

    def request(self, method, path, body=b"", kind="application/json"):
        """One request on the kept connection; gives the body of the answer."""
        self.send(method, path, body, kind)
        data = self.socket.recv(RECEIVE_BYTES)
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self.received()
        head = data[:end].lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
        answer = bytearray(data[end + 4 :])
        while len(answer) < length:
            answer += self.received()
        if head[9:10] != b"2":
            raise Refused(f"{method} {path}: {bytes(answer).decode(errors='replace')}")
        return bytes(answer)

    def received(self):
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the daemon closed the connection")
        return data

    def json(self, method, path, body=None):
        answer = self.request(method, path, b"" if body is None else json.dumps(body).encode())
        return json.loads(answer) if answer else None

    def new(self, name, **more):
        return self.json("POST", "/v1/sessions", {"name": name, **more})

    def remove(self, name, wait=True):
        """Waits until the sandbox is gone, which would disturb what is measured next, or until the removal is recorded."""
        self.request("DELETE", f"/v1/sessions/{name}?wait={str(wait).lower()}")

    def cell(self, session, code, timeout_s=CELL_SECONDS):
        """The result of a cell."""
        return self.json("POST", f"/v1/sessions/{session}/cells?wait=true", {"code": code, "timeout_s": timeout_s})

    def value(self, session, code):
        """What the last expression of a cell is, as `repr` says it; a cell that fails is an error."""
        result = self.cell(session, code)
        if result["status"] != "success":
            raise RuntimeError(f"{code!r}: {result['status']}, {result['stderr']} {result['exception']}")
        return result["result"]["repr"] if result["result"] else ""


class Daemon:
    """Is used with `with`, so that it ends."""

    def __init__(self, binary, config=""):
        self.binary = binary
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bjbench", dir="/tmp"))
        self.socket = self.home / "belljar.sock"
        file = self.home / "config.toml"
        # Starts are cold where a benchmark is not about the pool.
        file.write_text(config if "[pool]" in config else f"{config}[pool]\nsize = 0\n")
        environment = os.environ | {"BELLJAR_HOME": str(self.home), "BELLJAR_CONFIG": str(file)}
        environment.pop("BELLJAR_SOCKET", None)
        self.watcher = subprocess.Popen(
            ["sh", "-c", WATCH, binary], env=environment, stdin=subprocess.PIPE, start_new_session=True
        )
        with open(self.home / "stderr", "ab") as log:
            self.process = subprocess.Popen(
                [binary, "daemon"], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self):
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                self.client().close()
                return self
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    said = measure.read(self.home / "stderr")
                    self.__exit__()
                    sys.exit(f"the daemon does not serve: {said}")
                time.sleep(0.01)

    def __exit__(self, *_):
        self.watcher.stdin.close()
        try:
            self.watcher.wait(END_SECONDS)
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def client(self):
        return Client(self.socket)


def sandbox_processes(client, *sessions):
    """The processes of the sessions' sandboxes, as the host numbers them."""
    receipts = [client.json("GET", f"/v1/sessions/{session}/receipt") for session in sessions]
    return measure.in_pid_namespaces_of(*(receipt["process"]["pid"] for receipt in receipts))


def fill_pool(client, size, ask=None):
    """Wait until `size` sandboxes are there; the pool begins to keep such once `ask` has asked for two."""
    if ask:
        ask()
        ask()
    end = time.monotonic() + FILL_SECONDS + size * FILL_SECONDS_EACH
    while True:
        pool = client.json("GET", "/v1/health")["pool"]
        if pool["waiting"] >= size and not pool["starting"]:
            return
        if time.monotonic() > end:
            raise NotFilled(f"{pool['waiting']} of {size} sandboxes wait: {pool['problem'] or 'it takes too long'}")
        time.sleep(0.1)


def toml(tables):
    """Tables of plain values as TOML; JSON writes strings and numbers in the same way."""
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(entry)}" for key, entry in table.items()]
    return "\n".join(lines) + "\n"
