#!/usr/bin/env python3
"""Measures what `run_code("1+1")` costs on top of the same request over a bare socket, with an idempotency key in both.

usage: overhead.py [ROUNDS]     needs `BELLJAR`; requests of all kinds take turns
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "src")]

from belljar import AsyncSandbox, Sandbox  # noqa: E402
from tests.harness import Ground  # noqa: E402


def bare(stream: socket.socket, path: str) -> bytes:
    body = b'{"code":"1+1"}'
    key = os.urandom(16).hex()
    head = f"POST {path}/cells?wait=true HTTP/1.1\r\nHost: belljar\r\nIdempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    stream.sendall(head.encode() + body)
    return stream.recv(65536)


async def measure(rounds: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {"bare socket": [], "Sandbox": [], "AsyncSandbox": [], "Sandbox, streaming": []}
    # Without checkpoints a cell takes the least, and varies the least.
    with Sandbox.create(checkpointing="off") as box, socket.socket(socket.AF_UNIX) as stream:
        stream.connect(box._daemon.socket)
        asynchronous = await AsyncSandbox.connect(box.name)
        for _ in range(rounds):
            began = time.perf_counter()
            bare(stream, box._path)
            took["bare socket"].append(time.perf_counter() - began)
            began = time.perf_counter()
            box.run_code("1+1")
            took["Sandbox"].append(time.perf_counter() - began)
            began = time.perf_counter()
            await asynchronous.run_code("1+1")
            took["AsyncSandbox"].append(time.perf_counter() - began)
            began = time.perf_counter()
            box.run_code("1+1", on_stdout=print)
            took["Sandbox, streaming"].append(time.perf_counter() - began)
    return took


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    ground = Ground("bubblewrap")
    try:
        took = asyncio.run(measure(rounds))
    finally:
        ground.close()
    least = statistics.median(took["bare socket"])
    for name, seconds in took.items():
        median = statistics.median(seconds)
        print(f"{name:20} p50 {median * 1e3:.3f} ms, {(median - least) * 1e3:+.3f} ms")


if __name__ == "__main__":
    main()
