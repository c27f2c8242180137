"""Expressions, tool calls and output that stays in the daemon: requests to one session."""

import contextlib
import json
import socket
import threading

import daemon
import engine
import measure
from contestants.belljar import events
from sections import table
from work import BLOCKS, LINES, bulk_code, lines_code

COUNT, SECONDS = 500, 3
CALLS, AT_A_TIME = 5_000, 50
MANY_CALLS = f"""
import asyncio, time
async def call(gate):
    async with gate:
        await tools.aio.session_info()
gate, began = asyncio.Semaphore({AT_A_TIME}), time.perf_counter()
await asyncio.gather(*(call(gate) for _ in range({CALLS})))
{CALLS} / (time.perf_counter() - began)"""

LENT_CALLS, LENT_ROUNDS, LEND_SECONDS = 100, 5, 5
LENT = f"""
import time
began = time.perf_counter()
for _ in range({LENT_CALLS}): lent()
(time.perf_counter() - began) / {LENT_CALLS}"""


def measured(binary):
    with daemon.Daemon(binary, daemon.toml({"sandbox": {"backend": "docker"}}) + daemon.ROOM) as served:
        client = served.client()
        client.new("a", image=engine.BASE)
        client.value("a", "data = list(range(1000))")
        rows = [
            ("expression in the session (`eval`)", evaluated(client, "len(data)")),
            ("isolated expression", evaluated(client, "x * 2", isolated=True, values={"x": 21})),
            ("`GET /v1/sessions/a`", answered(client, "/v1/sessions/a")),
            ("`GET /v1/health`", answered(client, "/v1/health")),
            (f"tool calls, {AT_A_TIME} at a time", measure.value(float(client.value("a", MANY_CALLS)), "a second")),
            ("call of a client's tool", called(served, client)),
            ("call of a client's tool that is declared free of effects", called(served, client, read_only=True)),
            ("output in blocks of 64 KiB, kept by the daemon", kept(client, *bulk_code(BLOCKS))),
            (f"output by {LINES:,} short prints, kept by the daemon", kept(client, *lines_code(LINES))),
        ]
    note = "Kept output is in the journal's folder when the cell is answered; a client reads it when it wants to."
    return [table("Requests to one session", note, ["Belljar"], [(label, [figure]) for label, figure in rows])]


def evaluated(client, expression, **more):
    body = json.dumps({"expression": expression, **more}).encode()

    def once():
        client.request("POST", "/v1/sessions/a/eval", body)

    measure.repeat(once, 20, 1)
    return measure.milliseconds(measure.repeat(once, COUNT, SECONDS))


def called(served, client, **declared):
    """A tool that this process answers from a thread."""
    nothing = {"type": "object", "properties": {}}
    tool = {"name": "lent", "description": "Gives a word.", "parameters": nothing, **declared}
    stream, ready = served.client(), threading.Event()
    stream.send("POST", "/v1/sessions/a/tools", json.dumps({"tools": [tool]}).encode())
    serving = threading.Thread(target=serve, args=(stream, served.client(), ready))
    serving.start()
    try:
        if not ready.wait(LEND_SECONDS):
            return measure.absent("the daemon does not take the tool")
        rounds = [float(client.value("a", LENT)) for _ in range(LENT_ROUNDS)]
        return measure.milliseconds(rounds)
    finally:
        stream.socket.shutdown(socket.SHUT_RDWR)
        serving.join()
        stream.close()


def serve(stream, answers, ready):
    """Answers calls until the stream ends."""
    with contextlib.suppress(OSError, ValueError), stream.socket.makefile("rb") as said:
        for event in events(said):
            if b"event: ready" in event:
                ready.set()
            _, is_call, data = event.partition(b"event: tool_call\ndata: ")
            if is_call:
                answers.request("POST", f"/v1/sessions/a/tool-calls/{json.loads(data)['call']}", b'{"value": "word"}')
    answers.close()


def answered(client, path):
    return measure.milliseconds(measure.repeat(lambda: client.request("GET", path), COUNT, SECONDS))


def kept(client, code, size):
    times = measure.repeat(lambda: client.value("a", code), 3, 8)
    return measure.summary([size / seconds / 1e6 for seconds in times], "MB/s")
