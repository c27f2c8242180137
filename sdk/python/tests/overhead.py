#!/usr/bin/env python3
"""Measures what `run_code("1+1")` costs on top of the same request over a bare socket, with an idempotency key in both, and
beside a client over httpx if that is installed. On a busy machine the time of this process says more than that of the clock.

usage: overhead.py [ROUNDS] [--json | --fake]

It needs `BELLJAR`; `benches/run.py` runs it, too. With `--fake` a server of its own answers at once, so that what is left is
what the clients cost: good for comparing two states of the package.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "src")]

from belljar import AsyncSandbox, Daemon, Sandbox  # noqa: E402
from tests.fake_daemon import FakeDaemon  # noqa: E402
from tests.harness import Ground  # noqa: E402

_FIRST = "bare socket"
#: So many requests in a row are of one kind. Were it one, each would find the processor's caches full of another's code.
_BLOCK = 25
#: As long as a cell takes in a jail, so that a client has waited before it is answered.
_FAKE_SECONDS = 0.001


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


async def measure(rounds: int, box: Sandbox) -> dict[str, list[tuple[float, float]]]:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(box._daemon.socket)
        asynchronous = await AsyncSandbox.connect(box.name, daemon=box._daemon)
        ways: dict[str, Callable[[], Any]] = {
            _FIRST: lambda: bare(stream, box._path),
            "Sandbox": lambda: box.run_code("1+1"),
            "AsyncSandbox": lambda: asynchronous.run_code("1+1"),
            "Sandbox, streaming": lambda: box.run_code("1+1", on_stdout=print),
        }
        if importlib.util.find_spec("httpx") is not None:
            ways["httpx"] = over_httpx(box._path, box._daemon.socket)
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        # In another order each time: what a request costs depends on what ran before it, too.
        chance = random.Random(1)
        for _ in range(max(1, rounds // _BLOCK)):
            for name in chance.sample(sorted(ways), len(ways)):
                for _ in range(_BLOCK):
                    began, spent = time.perf_counter(), time.thread_time()
                    outcome = ways[name]()
                    if inspect.isawaitable(outcome):
                        await outcome
                    took[name].append((time.perf_counter() - began, time.thread_time() - spent))
    return took


def measure_fake(rounds: int) -> dict[str, list[tuple[float, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/s"
        # In a process of its own, as a thread of this one would keep the clients waiting.
        server = multiprocessing.get_context("fork").Process(target=_serve, args=(place,), daemon=True)
        server.start()
        try:
            while not os.path.exists(place):
                time.sleep(0.01)
            return asyncio.run(measure(rounds, Sandbox.connect("fake", daemon=Daemon(place, autostart=False))))
        finally:
            server.terminate()
            server.join()


def _serve(place: str) -> None:
    FakeDaemon(pause=_FAKE_SECONDS, place=place)
    threading.Event().wait()


def measure_real(rounds: int) -> dict[str, list[tuple[float, float]]]:
    ground = Ground("bubblewrap")
    try:
        # Without checkpoints a cell takes the least, and varies the least.
        with Sandbox.create(checkpointing="off") as box:
            return asyncio.run(measure(rounds, box))
    finally:
        ground.close()


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    rounds = int(words[0]) if words else 500
    took = measure_fake(rounds) if "--fake" in sys.argv else measure_real(rounds)
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
