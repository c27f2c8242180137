"""Starts one by one and in bursts, churn, memory by the number of sessions, and sessions out of the pool."""

import os
import time
from functools import partial

import daemon
import engine
import measure
from contestants.belljar import PRELOAD
from sections import table

STARTS, STARTS_SECONDS = 12, 20
BURSTS = (20, 100)
CHURN_SECONDS, CHURN_AT_A_TIME = 4, 4
# At these numbers memory is read, on the way down from the largest burst.
MEMORY_AT = (100, 50, 20, 5, 1)
IDLE_SECONDS = 5
SETTLE_SECONDS = 1
CHECKPOINTS = 8
# Bare containers with an idle Python, which a session's memory is compared with, and the number of sessions then.
BARE_PYTHONS = 5
# The pages of a program that others run count for it with a part that changes with them.
OWN_MEMORY = "Anonymous:"
IDLE_PYTHON = ("python3", "-c", "import time; time.sleep(600)")
# The pools: Python alone for the smaller burst, science for the larger one, as that is what a pool is for.
POOLS = (("Python alone", engine.BASE, [], min(BURSTS)), ("science imported", engine.SCIENCE, PRELOAD, max(BURSTS)))
# A sandbox of the science image with its imports takes less than this; the pool's bound is for all of them.
POOL_MEMORY = "20GiB"
POOLED_STARTS = 6


def measured(binary):
    config = {"sandbox": {"backend": "docker"}}
    with daemon.Daemon(binary, daemon.toml(config) + daemon.ROOM) as served:
        client = served.client()
        new(client, "warm-up")
        client.remove("warm-up")
        yield starts(client)
        yield from bursts(served)
        yield churn(served)
        yield checkpoints(client)
    rows = [(label, pooled(binary, image, preload, size)) for label, image, preload, size in POOLS]
    note = "From the request to the first result; all sandboxes waited. A pool is filled by one start after the other."
    yield table(
        "Sessions out of the pool", note, ["one", "as many at once as wait", "waiting", "to fill it, each"], rows
    )


def new(client, name, image=engine.BASE, **more):
    client.new(name, image=image, **more)
    if client.value(name, "1+1") != "2":
        raise RuntimeError("no result")


def starts(client):
    """In turn, so that whatever else the machine does meets all of them."""
    bare, found = engine.Api(), {"ready": [], "first": [], "none": [], "bridge": []}
    end = time.monotonic() + STARTS_SECONDS
    while len(found["ready"]) < STARTS and time.monotonic() < end:
        began = time.perf_counter()
        client.new("cold", image=engine.BASE)
        found["ready"].append(time.perf_counter() - began)
        client.value("cold", "1+1")
        found["first"].append(time.perf_counter() - began)
        client.remove("cold")
        for network in ("none", "bridge"):
            began = time.perf_counter()
            made = bare.start(network=network)
            found[network].append(time.perf_counter() - began)
            bare.remove(made)
    rows = [
        ("a new session, ready for its first cell", [measure.milliseconds(found["ready"])]),
        ("a new session, to its first result", [measure.milliseconds(found["first"])]),
        ("bare create + start, no network", [measure.milliseconds(found["none"])]),
        ("bare create + start, the engine's network", [measure.milliseconds(found["bridge"])]),
    ]
    note = "In turn, by the engine's API; a bare container runs `sleep`, while a session's Python has answered."
    return table("Cold starts", note, ["ms"], rows)


def pooled(binary, image, preload, size):
    """Sessions that get a sandbox which was started before they asked for one."""
    config = {"sandbox": {"backend": "docker"}, "pool": {"size": size, "memory": POOL_MEMORY, "preload": preload}}
    with daemon.Daemon(binary, daemon.toml(config) + daemon.ROOM) as served:
        client, found = served.client(), []

        def ask():
            new(client, "ask", image)
            client.remove("ask")

        try:
            filling = measure.timed(lambda: daemon.fill_pool(client, size, ask))
            for number in range(POOLED_STARTS):
                found.append(measure.timed(partial(new, client, f"p{number}", image)))
                client.remove(f"p{number}")
                daemon.fill_pool(client, size)
        except daemon.NotFilled as reason:
            return [measure.absent(str(reason))] * 4
        clients = [served.client() for _ in range(size)]
        took, _ = measure.together([partial(new, each, f"b{number}", image) for number, each in enumerate(clients)])
    each = measure.value(filling / size, "s")
    return [measure.milliseconds(found), measure.value(took, "s"), measure.value(size, "sandboxes"), each]


def bursts(served):
    rows, largest = [], max(BURSTS)
    before = measure.rollup_bytes(served.process.pid, OWN_MEMORY)
    for count in BURSTS:
        clients = [served.client() for _ in range(count)]
        works = [partial(new, client, f"b{count}-{number}") for number, client in enumerate(clients)]
        ours, _ = measure.together(works)
        bare = bare_burst(count)
        rows.append((f"{count} at once", [measure.value(ours, "s"), measure.value(bare, "s")]))
        if count != largest:
            remove_all(clients, count, range(count))
    note = "From the first request to the last first result; beside it create + start of as many bare containers."
    yield table("Bursts of cold sessions", note, ["Belljar", "bare containers"], rows)
    yield from memory(served, clients, largest, before)


def bare_burst(count):
    apis = [engine.Api() for _ in range(count)]
    took, made = measure.together([api.start for api in apis])
    measure.together([partial(api.remove, container) for api, container in zip(apis, made, strict=True)])
    return took


def remove_all(clients, count, numbers):
    def remove(number):
        clients[number].remove(f"b{count}-{number}")

    return measure.together([partial(remove, number) for number in numbers])[0]


def memory(served, clients, count, before):
    """Removes sessions of the last burst bit by bit, and reads what is left."""
    time.sleep(SETTLE_SECONDS)
    rows, left = [], count
    # What the daemon has taken for a burst it may keep, so that its growth from before counts, not how it shrinks.
    growth = (measure.rollup_bytes(served.process.pid, OWN_MEMORY) - before) / count
    began, clock = measure.cpu_seconds(served.process.pid), time.monotonic()
    time.sleep(IDLE_SECONDS)
    busy = (measure.cpu_seconds(served.process.pid) - began) / (time.monotonic() - clock)
    for number in MEMORY_AT:
        if number < left:
            remove_all(clients, count, range(number, left))
            left = number
            time.sleep(SETTLE_SECONDS)
        pids = daemon.sandbox_processes(clients[0], *(f"b{count}-{n}" for n in range(left)))
        guests, own = measure.pss_bytes(pids), measure.pss_bytes([served.process.pid])
        if os.geteuid() or not guests:
            yield table("Memory", "", ["PSS"], [("sandboxes", [measure.absent("only root may read it")])])
            return
        figures = [guests / 1e6, guests / 1e6 / left, own / 1e6]
        rows.append((str(left), [measure.value(figure, "MB") for figure in figures]))
        if left == BARE_PYTHONS:
            session_bytes, bare_bytes = guests / left, bare_python_bytes()
    remove_all(clients, count, range(left))
    note = "PSS after one cell each, without the engine's own process for each container."
    yield table("Memory by number of sessions", note, ["all sandboxes", "each", "the daemon"], rows)
    rows = [
        ("memory of the daemon for each session", [measure.value(growth / 1024, "KiB")]),
        ("an idle session", [measure.value(session_bytes / 1e6, "MB")]),
        ("a bare container with an idle `python3`", [measure.value(bare_bytes / 1e6, "MB")]),
        (f"the daemon with {count} idle sessions, of one processor", [measure.value(100 * busy, "%")]),
    ]
    note = (
        f"The daemon's memory is what its own (that of no file) has grown by from no session to {count}; that of a "
        f"session and of a bare container is the PSS of one of {BARE_PYTHONS} of each."
    )
    yield table("Idle sessions", note, ["Belljar"], rows)


def bare_python_bytes():
    """The memory of each of some containers of the same image in which nothing but an idle Python runs."""
    apis = [engine.Api() for _ in range(BARE_PYTHONS)]
    _, made = measure.together([partial(api.start, command=IDLE_PYTHON) for api in apis])
    time.sleep(SETTLE_SECONDS)
    first = [engine.first_process(container) for container in made]
    size = measure.pss_bytes(measure.in_pid_namespaces_of(*first)) / BARE_PYTHONS
    measure.together([partial(api.remove, container) for api, container in zip(apis, made, strict=True)])
    return size


def churn(served):
    """New session, one cell, removal, over and over."""

    def cycles(lane):
        client, done, end = served.client(), 0, time.monotonic() + CHURN_SECONDS
        while time.monotonic() < end:
            new(client, f"churn{lane}")
            client.remove(f"churn{lane}")
            done += 1
        return done

    rows = []
    for lanes in (1, CHURN_AT_A_TIME):
        took, done = measure.together([partial(cycles, lane) for lane in range(lanes)])
        rows.append((f"{lanes} at a time", [measure.value(sum(done) / took, "a second")]))
    return table("Churn", "A new session, one cell, its removal.", ["sessions"], rows)


def checkpoints(client):
    rows = []
    for label, image, preload in (("Python alone", engine.BASE, []), ("science imported", engine.SCIENCE, PRELOAD)):
        new(client, "marks", image, preload=preload)
        time.sleep(SETTLE_SECONDS)
        fresh = measure.pss_bytes(daemon.sandbox_processes(client, "marks"))
        client.value("marks", "items = []")
        for _ in range(CHECKPOINTS):
            client.value("marks", "items.append(1)")
            time.sleep(0.05)
        time.sleep(SETTLE_SECONDS)
        full = measure.pss_bytes(daemon.sandbox_processes(client, "marks"))
        client.remove("marks")
        rows.append((label, [measure.value(size / 1e6, "MB") for size in (fresh, full, full - fresh)]))
    note = f"PSS of one sandbox after `1+1`, and after {CHECKPOINTS} cells that change something."
    return table(f"What {CHECKPOINTS} checkpoints hold", note, ["new", "with checkpoints", "difference"], rows)
