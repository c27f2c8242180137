"""Snapshots by the amount of live data, beside dill of the same data and beside a replay of the cells that made it; and
branches of a session with 500 MB.

- snapshot: from the request to the answer that it is on the disk
- wake: the first cell after the session slept, to its result, with the start of its sandbox
- dill: `dill.dump` to a file of the workspace and `dill.load`, where the image has dill, else pickle
- replay: the session's cells run again
- after a change: what a second snapshot adds to the disk when one element was changed
"""

import ast
import time

import daemon
import engine
import measure
from sections import table
from sections.recovery import MEMORY_BYTES, arrays, small_objects

ARRAYS_MEGABYTES, SMALL_MEGABYTES = (10, 100, 500, 1000), (10, 100)
BRANCHED_MEGABYTES, BRANCHES = 500, 8
# Random numbers do not compress, as most measured data does not.
RANDOM = "\nfor part in data: part[:] = np.random.default_rng(len(marks)).random(131072); marks.append(0)"
DUMP_AND_LOAD = """
import os, time
try: import dill as packer
except ImportError: import pickle as packer
began = time.perf_counter()
with open('packed', 'wb') as file:
    packer.dump(data, file, protocol=5)
    os.fsync(file.fileno())
with open('packed', 'rb') as file:
    again = packer.load(file)
took = time.perf_counter() - began
os.unlink('packed')
del again
packer.__name__, took"""


def measured(binary):
    rows, kinds = [], set()
    snapshots = {"max_bytes": "4GiB", "at_rest": "1h"}
    config = daemon.toml({"sandbox": {"backend": "docker", "workspace": "4GiB"}, "snapshots": snapshots})
    with daemon.Daemon(binary, config + daemon.ROOM) as served:
        client = served.client()
        made = [("arrays", arrays, ARRAYS_MEGABYTES, RANDOM), ("small objects", small_objects, SMALL_MEGABYTES, "")]
        for kind, make, sizes, fill in made:
            for megabytes in sizes:
                rows.append((f"{megabytes} MB in {kind}", one(client, make(megabytes) + fill, kinds)))
        branches = branched(client, arrays(BRANCHED_MEGABYTES) + RANDOM)
    note = f"In the science image. Beside it: {', '.join(sorted(kinds))}, to a file and back. The replay runs one cell."
    columns = ["snapshot", "wake", "dump and load", "replay", "after a change"]
    yield table("Snapshots by size of the variables", note, columns, rows)
    note = f"A session with {BRANCHED_MEGABYTES} MB in arrays, from the request to the first result in each branch."
    yield table("Branches", note, ["s"], branches)


def timed(work):
    began = time.perf_counter()
    answer = work()
    return measure.value((time.perf_counter() - began) * 1e3, "ms"), answer


def one(client, make, kinds):
    client.new("heap", image=engine.SCIENCE, memory_bytes=MEMORY_BYTES)
    try:
        client.value("heap", make)
        saving, _ = timed(lambda: client.json("POST", "/v1/sessions/heap/snapshots", {}))
        client.value("heap", "data[0] = data[0] + 1")
        added = client.json("POST", "/v1/sessions/heap/snapshots", {})["new_bytes"]
        kind, took = ast.literal_eval(client.value("heap", DUMP_AND_LOAD))
        kinds.add(kind)
        client.json("POST", "/v1/sessions/heap/sleep")
        waking, _ = timed(lambda: client.value("heap", "len(data)"))
        replaying, _ = timed(lambda: client.json("POST", "/v1/sessions/heap/replay"))
        packed = measure.value(took * 1e3, "ms")
        return saving, waking, packed, replaying, measure.value(added / 1e6, "MB")
    finally:
        client.remove("heap")


def branched(client, make):
    client.new("trunk", image=engine.SCIENCE, memory_bytes=MEMORY_BYTES)
    rows = []
    try:
        client.value("trunk", make)
        for count in (1, BRANCHES):
            names = []

            def branch(count=count, names=names):
                made = client.json("POST", "/v1/sessions/trunk/branch", {"name": f"of-{count}", "count": count})
                names += [session["name"] for session in made["sessions"]]
                for name in names:
                    client.value(name, "len(data)")

            try:
                took, _ = timed(branch)
                rows.append((f"{count} at once", (took,)))
            finally:
                for name in names:
                    client.remove(name)
        return rows
    finally:
        client.remove("trunk")
