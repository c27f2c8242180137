"""What a checkpoint and a recovery cost by the amount of live data, beside pickle of the same data.

- checkpoint: how much later a cell answers that is sent right behind one that changed something, compared with the same
  after a pause; that is how long the worker is busy with the checkpoint
- recovery: a cell that ends its process, to the answer that the state is back, less a cell's round trip
"""

import time

import daemon
import engine
import measure
from sections import table

ROUNDS, ROUND_SECONDS = 6, 5
PAUSE_SECONDS = 0.2
# The heap of small objects is smaller than that of arrays, because making them takes seconds.
ARRAYS_MEGABYTES, SMALL_MEGABYTES = (10, 100, 500, 1000), (10, 100, 500)
MEMORY_BYTES = 6 << 30
SAVE_AND_LOAD = """
import pickle, time
began = time.perf_counter()
again = pickle.loads(pickle.dumps(data, protocol=5))
took = time.perf_counter() - began
del again
took"""


def arrays(megabytes):
    return f"import os, numpy as np; marks = []; data = [np.ones(131072) for _ in range({megabytes})]"


def small_objects(megabytes):
    """A float in a list takes 32 bytes."""
    return f"import os; marks = []; data = [float(n) for n in range({megabytes * 1024 * 1024 // 32})]"


def measured(binary):
    rows = []
    config = daemon.toml({"sandbox": {"backend": "docker"}})
    with daemon.Daemon(binary, config + daemon.ROOM) as served:
        client = served.client()
        kinds = (("arrays", arrays, ARRAYS_MEGABYTES), ("small objects", small_objects, SMALL_MEGABYTES))
        for kind, make, sizes in kinds:
            for megabytes in sizes:
                rows.append((f"{megabytes} MB in {kind}", one(client, make(megabytes))))
    note = "In the science image. Pickle's column is its time alone, in memory, without a disk."
    return [table("Checkpoint and recovery by size of the heap", note, ["checkpoint", "recovery", "pickle"], rows)]


def pause():
    time.sleep(PAUSE_SECONDS)


def one(client, make):
    client.new("heap", image=engine.SCIENCE, memory_bytes=MEMORY_BYTES)
    try:
        client.value("heap", make)

        def change():
            client.value("heap", "marks.append(1)")

        def killed():
            answer = client.cell("heap", "os._exit(1)")
            if answer["state"]["kind"] != "restored":
                raise RuntimeError(f"the state is {answer['state']['kind']}")

        def pause_and_change():
            pause()
            change()

        alone = measure.repeat(change, ROUNDS, ROUND_SECONDS, pause)
        behind = measure.repeat(change, ROUNDS, ROUND_SECONDS, pause_and_change)
        try:
            dead = less(measure.repeat(killed, ROUNDS, ROUND_SECONDS, pause), alone)
        except RuntimeError as problem:
            dead = measure.absent(str(problem))
        saved = float(client.value("heap", SAVE_AND_LOAD))
        return less(behind, alone), dead, measure.value(saved * 1e3, "ms")
    finally:
        client.remove("heap")


def less(times, base):
    """The median of `base` is no part of what was asked for."""
    typical = measure.percentile(base, 50)
    return measure.milliseconds([max(seconds - typical, 0) for seconds in times])
