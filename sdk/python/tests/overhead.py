#!/usr/bin/env python3
"""Measures what `run_code("1+1")` costs on top of the same request over a bare socket, with an idempotency key in both, and
beside a client over httpx if that is installed. On a busy machine the time of this process says more than that of the clock.

usage: overhead.py [ROUNDS] [--json]     needs `BELLJAR`; requests of all kinds take turns. `benches/run.py` runs it, too.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "src")]

from belljar import AsyncSandbox, Sandbox  # noqa: E402
from tests.harness import Ground  # noqa: E402

_FIRST = "bare socket"


def bare(stream: socket.socket, path: str) -> bytes:
    body = b'{"code":"1+1"}'
    key = os.urandom(16).hex()
    head = f"POST {path}/cells?wait=true HTTP/1.1\r\nHost: belljar\r\nIdempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    stream.sendall(head.encode() + body)
    return stream.recv(65536)


def over_httpx(path: str, place: str) -> Callable[[], object]:
    """As clients of other sandboxes do it: a request, and its JSON."""
    import httpx

    client = httpx.Client(transport=httpx.HTTPTransport(uds=place), base_url="http://belljar")

    def run() -> object:
        headers = {"Idempotency-Key": os.urandom(16).hex()}
        return client.post(f"{path}/cells?wait=true", json={"code": "1+1"}, headers=headers).raise_for_status().json()

    return run


async def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    # Without checkpoints a cell takes the least, and varies the least.
    with Sandbox.create(checkpointing="off") as box, socket.socket(socket.AF_UNIX) as stream:
        stream.connect(box._daemon.socket)
        asynchronous = await AsyncSandbox.connect(box.name)
        ways: dict[str, Callable[[], Any]] = {
            _FIRST: lambda: bare(stream, box._path),
            "Sandbox": lambda: box.run_code("1+1"),
            "AsyncSandbox": lambda: asynchronous.run_code("1+1"),
            "Sandbox, streaming": lambda: box.run_code("1+1", on_stdout=print),
        }
        if importlib.util.find_spec("httpx") is not None:
            ways["httpx"] = over_httpx(box._path, box._daemon.socket)
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, run in ways.items():
                began, spent = time.perf_counter(), time.thread_time()
                outcome = run()
                if inspect.isawaitable(outcome):
                    await outcome
                took[name].append((time.perf_counter() - began, time.thread_time() - spent))
    return took


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--json"]
    rounds = int(words[0]) if words else 500
    ground = Ground("bubblewrap")
    try:
        took = asyncio.run(measure(rounds))
    finally:
        ground.close()
    if "--json" in sys.argv:
        print(json.dumps(took))
        return
    least = [statistics.median(column) for column in zip(*took[_FIRST])]
    for name, rows in took.items():
        clock, process = (statistics.median(column) for column in zip(*rows))
        told = f"{name:20} p50 {clock * 1e3:.3f} ms, {(clock - least[0]) * 1e3:+.3f} ms"
        print(f"{told}; of this process {process * 1e3:.3f} ms, {(process - least[1]) * 1e3:+.3f} ms")


if __name__ == "__main__":
    main()
