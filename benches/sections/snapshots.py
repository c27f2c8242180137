"""Snapshots by the amount of live data, beside dill of the same data and beside a replay of the cells that made it;
cells while a snapshot is taken; branches of a session with 500 MB. What is compared was measured in the same run.

- snapshot: from the request to the answer that it is on the disk
- wake: the first cell after the session slept, to its result, with the start of its sandbox
- dill: `dill.dump` to a file, until the disk has it, and a new Python process that loads it, without any sandbox
- replay: the session's cells run again
- after a change: what a second snapshot adds to the disk when one element was changed, and its share of the whole
- cells beside a snapshot: the same cells of the same session without one, half of them before it and half after it. The
  copy that packs stands still for cells for three seconds, goes on beside them for one, and so on, for twice as long each
  time, so the median is mostly that of cells for which it stands, and the p95 that of the others
- branch: from the request to the first result in each branch; saved: the session had a snapshot of its newest state, as one
  has that has rested for 30 s
"""

import pathlib
import subprocess
import tempfile
import threading
import time

import daemon
import engine
import measure
from sections import table
from sections.recovery import MEMORY_BYTES, arrays, small_objects

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "target/peers/dill"
PEER = ROOT / "benches/dill_peer.py"
INSTALL_SECONDS, PEER_SECONDS = 300, 60
# No row begins after this; the last one, which is the largest, may take a minute and a half.
SECTION_SECONDS = 4 * 60
ARRAYS_MEGABYTES, SMALL_MEGABYTES = (10, 100, 1000), (10, 100, 1000)
BRANCHED_MEGABYTES, BRANCHES = 500, ((1, True), (8, True), (1, False))
BUDGET = "3GiB"
BESIDE_MEGABYTES, ALONE_CELLS, ALONE_SECONDS = 500, 250, 2
# Cells that follow each other, that come at their own time, and that compute for some milliseconds: code, pause.
BESIDE = (
    ("`1+1`, back to back", "1+1", 0),
    ("`1+1` after 20 ms", "1+1", 0.02),
    ("10 ms of computing after 20 ms", "sum(range(500_000))", 0.02),
)
# Random numbers do not compress, as most measured data does not.
RANDOM = "\nfor part in data: part[:] = np.random.default_rng(len(marks)).random(131072); marks.append(0)"
COLUMNS = (
    "snapshot", "dill", "snapshot to dill", "wake", "dill, new process", "wake to dill", "replay", "wake to replay",
    "after a change", "of the whole",
)  # fmt: skip


def prepare():
    """Installs dill, without which its columns are empty."""
    words = [ROOT / "tests/python-env.sh", FOLDER, ROOT / "benches/requirements/dill.txt"]
    subprocess.run(words, check=True, capture_output=True, timeout=INSTALL_SECONDS)


def measured(binary):
    end = time.monotonic() + SECTION_SECONDS
    snapshots = {"max_bytes": "4GiB", "at_rest": "1h"}
    # To read small objects copies their memory, which is given up beyond the budget.
    sandbox = {"backend": "docker", "workspace": "4GiB", "checkpoint_budget": BUDGET}
    config = daemon.toml({"sandbox": sandbox, "snapshots": snapshots})
    with daemon.Daemon(binary, config + daemon.ROOM) as served:
        client = served.client()

        def row(label, columns, work):
            """A row that fails, or comes too late, costs no other."""
            try:
                if time.monotonic() > end:
                    raise TimeoutError("the time of the section was over")
                return label, work()
            except (daemon.Refused, RuntimeError, OSError, subprocess.TimeoutExpired) as problem:
                # An answer that came too late would be taken for that to the next request.
                client.close()
                client.connect()
                return label, [measure.absent(f"failed: {' '.join(str(problem).split())[:200]}")] * columns

        columns = [
            "alone", "while a snapshot is taken", "of the time alone", "p95, of that alone", "the snapshot",
            "the snapshot without cells",
        ]  # fmt: skip
        rows = []
        for label, code, pause in BESIDE:
            rows.append(row(label, len(columns), lambda code=code, pause=pause: beside(served, client, code, pause)))
        note = f"A session with {BESIDE_MEGABYTES} MB in arrays. Computing is a sum of half a million numbers."
        yield table("Cells while a snapshot is taken", note, columns, rows)
        code = arrays(BRANCHED_MEGABYTES) + RANDOM
        columns = ["all of them", "each", "of the time of the cells that made it"]
        rows = []
        for count, saved in BRANCHES:
            label = f"{count}, {'saved' if saved else 'not saved'}"
            rows.append(row(label, len(columns), lambda count=count, saved=saved: branched(client, code, count, saved)))
        note = f"Of a session with {BRANCHED_MEGABYTES} MB in arrays; several are asked for at once."
        yield table("Branches", note, columns, rows)
        rows = []
        kinds = (("arrays", arrays, ARRAYS_MEGABYTES, RANDOM), ("small objects", small_objects, SMALL_MEGABYTES, ""))
        for kind, make, sizes, fill in kinds:
            for megabytes in sizes:
                code = make(megabytes) + fill
                rows.append(row(f"{megabytes} MB in {kind}", len(COLUMNS), lambda code=code: one(client, code)))
        note = f"In the science image, with `sandbox.checkpoint_budget` {BUDGET}. The replay runs three cells."
        yield table("Snapshots by size of the variables", note, COLUMNS, rows)


def milliseconds(seconds):
    return measure.value(seconds * 1e3, "ms")


def times(one, other):
    """How many times as long the one takes."""
    return measure.value(one / other, "×")


def one(client, make):
    client.new("heap", image=engine.SCIENCE, memory_bytes=MEMORY_BYTES)
    try:
        client.value("heap", make)
        saving = measure.timed(lambda: client.json("POST", "/v1/sessions/heap/snapshots", {}))
        client.value("heap", "data[0] = data[0] + 1")
        second = client.json("POST", "/v1/sessions/heap/snapshots", {})
        client.json("POST", "/v1/sessions/heap/sleep")
        waking = measure.timed(lambda: client.value("heap", "len(data)"))
        replaying = measure.timed(lambda: client.json("POST", "/v1/sessions/heap/replay"))
    finally:
        client.remove("heap")
    added, whole = second["new_bytes"], second["stored_bytes"]
    dumping = loading = by_dill = by_load = measure.absent("dill is not installed")
    if (FOLDER / "bin/python").exists():
        dump, load = dill(make)
        dumping, by_dill = milliseconds(dump), times(saving, dump)
        loading, by_load = milliseconds(load), times(waking, load)
    return (
        milliseconds(saving), dumping, by_dill, milliseconds(waking), loading, by_load, milliseconds(replaying),
        times(waking, replaying), measure.value(added / 1e3, "KB"), measure.value(100 * added / max(whole, 1), "%"),
    )  # fmt: skip


def dill(make):
    """Seconds of writing the same variables to a file, and of a new process that loads them."""
    with tempfile.TemporaryDirectory(prefix="bjbench", dir="/tmp") as folder:
        file = pathlib.Path(folder) / "variables"

        def peer(*words):
            done = subprocess.run(
                [FOLDER / "bin/python", PEER, *words], capture_output=True, text=True, timeout=PEER_SECONDS
            )
            if done.returncode:
                raise RuntimeError(f"dill: {done.stderr.strip()[-200:]}")
            return done.stdout

        dumped = float(peer("dump", file, make))
        return dumped, measure.timed(lambda: peer("load", file))


def beside(served, client, code, pause):
    """Cells alone, and cells of the same session while its variables are saved."""
    client.new("beside", image=engine.SCIENCE, memory_bytes=MEMORY_BYTES)
    try:
        client.value("beside", arrays(BESIDE_MEGABYTES) + RANDOM)

        def cell():
            client.value("beside", code)

        def rest():
            time.sleep(pause)

        alone = measure.repeat(cell, ALONE_CELLS, ALONE_SECONDS, rest)
        took, failed = [], []

        def save():
            other = served.client()
            try:
                took.append(measure.timed(lambda: other.json("POST", "/v1/sessions/beside/snapshots", {})))
            except (daemon.Refused, OSError) as problem:
                failed.append(problem)
            finally:
                other.close()

        saving = threading.Thread(target=save)
        saving.start()
        during = []
        while saving.is_alive():
            rest()
            during.append(measure.timed(cell))
        saving.join()
        if not took:
            raise RuntimeError(f"no snapshot was taken: {failed}")
        # The last one may have come after its end.
        during = during[:-1]
        if not during:
            raise RuntimeError("no cell ran while the variables were saved")
        alone += measure.repeat(cell, ALONE_CELLS, ALONE_SECONDS, rest)
        # What the disk has already would be written no more.
        client.value("beside", RANDOM)
        undisturbed = measure.timed(lambda: client.json("POST", "/v1/sessions/beside/snapshots", {}))
        first, second = measure.milliseconds(alone), measure.milliseconds(during)
        return (
            first, second, times(second["p50"], first["p50"]), times(second["p95"], first["p95"]),
            milliseconds(took[0]), milliseconds(undisturbed),
        )  # fmt: skip
    finally:
        client.remove("beside")


def branched(client, make, count, saved):
    client.new("trunk", image=engine.SCIENCE, memory_bytes=MEMORY_BYTES)
    names = []
    try:
        making = measure.timed(lambda: client.value("trunk", make))
        if saved:
            client.json("POST", "/v1/sessions/trunk/snapshots", {})

        def branch():
            made = client.json("POST", "/v1/sessions/trunk/branch", {"name": f"of-{count}", "count": count})
            names.extend(session["name"] for session in made["sessions"])
            for name in names:
                client.value(name, "len(data)")

        took = measure.timed(branch)
        return measure.value(took, "s"), measure.value(took / count, "s"), times(took, making)
    finally:
        for name in [*names, "trunk"]:
            client.remove(name)
