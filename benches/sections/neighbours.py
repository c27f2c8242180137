"""What one session notices of others: a cell and an answer of the control socket, alone and beside sandboxes that are
full of bombs and a socket that is full of connections."""

import collections
import multiprocessing
import socket

import daemon
import engine
import measure
from sections import table

COUNT, SECONDS = 300, 1.5
BOMB_SECONDS = 60
UNREAD_STREAMS = 100
CONNECTIONS_KEPT, CONNECTIONS_MOST = 600, 50_000
CONFIG = """
[sandbox]
backend = "docker"
memory = "128MiB"
checkpoint_budget = "64MiB"
pids = 48
workspace = "64MiB"
[cells]
spill = "8MiB"
[tool.swallow]
description = "Reads it."
argv = ["/bin/sh", "-c", "cat > /dev/null"]
parameters = { type = "object", properties = { text = { type = "string" } } }
"""
# Each takes one thing until the limit, and goes on trying.
BOMBS = {
    "processes": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "memory": "while True:\n    try:\n        b = []\n        while len(b) < 10: b.append(bytearray(8 << 20))\n"
    "    except MemoryError: pass",
    "disk": "while True: open('x', 'wb').write(bytes(32 << 20))",
    "inodes": "n = 0\nwhile True:\n    n += 1\n    try: open(f'/tmp/{n}', 'w').close()\n    except OSError: pass",
    "output": "while True: print('x' * 65536)",
    # Arguments of 7 MB, each of which the journal keeps as a file.
    "calls": "text = 'x' * (7 << 20)\nn = 0\nwhile True:\n    n += 1\n    try: tools.swallow(text=text + str(n))\n"
    "    except ToolError: pass",
}


def measured(binary):
    with daemon.Daemon(binary, CONFIG + daemon.ROOM) as served:
        client = served.client()
        client.new("calm", image=engine.BASE)
        measure.repeat(lambda: client.value("calm", "1+1"), 50, 2)
        rows = [("nothing", calm(client))]
        for name, code in BOMBS.items():
            begin(client, name, code)
            rows.append((f"a bomb of {name}", calm(client)))
            client.remove(name)
        begin(client, "output", BOMBS["output"])
        unread = [unread_stream(served) for _ in range(UNREAD_STREAMS)]
        rows.append((f"{UNREAD_STREAMS} streams that nobody reads", calm(client)))
        for stream in unread:
            stream.close()
        client.remove("output")
        rows.append(("a flood of connections", flooded(served, client)))
        for name, code in BOMBS.items():
            begin(client, name, code)
        rows.append(("all of it at once", flooded(served, client)))
    note = "`1+1` and `GET` of a session in a calm sandbox, while others of the same user do their worst."
    return [table("What a session notices of its neighbours", note, ["cell", "request"], rows)]


def calm(client):
    cells = measure.repeat(lambda: client.value("calm", "1+1"), COUNT, SECONDS)
    pings = measure.repeat(lambda: client.request("GET", "/v1/sessions/calm"), COUNT, SECONDS)
    return [measure.milliseconds(cells), measure.milliseconds(pings)]


def begin(client, name, code):
    client.new(name, image=engine.BASE)
    client.json("POST", f"/v1/sessions/{name}/cells", {"code": code, "timeout_s": BOMB_SECONDS})


def unread_stream(served):
    client = served.client()
    client.send("GET", "/v1/sessions/output/events")
    return client


def flooded(served, client):
    """The flood is a process of its own, as it would hold up a client in the same one."""
    over = multiprocessing.Event()
    flooding = multiprocessing.Process(target=flood, args=(str(served.socket), over))
    flooding.start()
    try:
        return calm(client)
    finally:
        over.set()
        flooding.join()


def flood(path, over):
    kept = collections.deque()
    for _ in range(CONNECTIONS_MOST):
        if over.is_set():
            break
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(path)
        except OSError:
            # A full backlog is what a flood meets, and no reason to stop.
            over.wait(0.0005)
        kept.append(connection)
        if len(kept) > CONNECTIONS_KEPT:
            kept.popleft().close()
    for connection in kept:
        connection.close()
