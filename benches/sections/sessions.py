"""Starts one by one and in bursts, churn, and memory by the number of sessions."""

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
CHURN_SECONDS, CHURN_AT_A_TIME = 6, 4
# At these numbers memory is read, on the way down from the largest burst.
MEMORY_AT = (100, 50, 20, 5, 1)
IDLE_SECONDS = 5
SETTLE_SECONDS = 1
CHECKPOINTS = 8
# Sandboxes that wait, which are as many as the smaller burst.
POOL = min(BURSTS)
POOLED_STARTS = 8


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
    yield pooled(binary)


def new(client, name, image=engine.BASE, **more):
    client.new(name, image=image, **more)
    if client.value(name, "1+1") != "2":
        raise RuntimeError("no result")


def starts(client):
    """In turn, so that whatever else the machine does meets all of them."""
    bare, found = engine.Api(), {"ready": [], "none": [], "bridge": []}
    end = time.monotonic() + STARTS_SECONDS
    while len(found["ready"]) < STARTS and time.monotonic() < end:
        found["ready"].append(measure.timed(partial(client.new, "cold", image=engine.BASE)))
        client.remove("cold")
        for network in ("none", "bridge"):
            began = time.perf_counter()
            made = bare.start(network=network)
            found[network].append(time.perf_counter() - began)
            bare.remove(made)
    rows = [
        ("a new session, ready for its first cell", [measure.milliseconds(found["ready"])]),
        ("bare create + start, no network", [measure.milliseconds(found["none"])]),
        ("bare create + start, the engine's network", [measure.milliseconds(found["bridge"])]),
    ]
    note = "In turn, by the engine's API; a bare container runs `sleep`, while a session's Python has answered."
    return table("Cold starts", note, ["ms"], rows)


def pooled(binary):
    """Sessions that get a sandbox which was started before they asked for one."""
    rows = []
    for label, image, preload in (("Python alone", engine.BASE, []), ("science imported", engine.SCIENCE, PRELOAD)):
        pool = {"size": POOL, "memory": "16GiB", "preload": preload}
        config = {"sandbox": {"backend": "docker"}, "pool": pool}
        with daemon.Daemon(binary, daemon.toml(config) + daemon.ROOM) as served:
            client = served.client()

            def once(name, client=client, image=image):
                new(client, name, image)

            def ask(client=client, once=once):
                once("ask")
                client.remove("ask")

            found = []
            for number in range(POOLED_STARTS):
                daemon.fill_pool(client, POOL, ask)
                found.append(measure.timed(partial(once, f"p{number}")))
                client.remove(f"p{number}")
            daemon.fill_pool(client, POOL, ask)
            clients = [served.client() for _ in range(POOL)]
            took, _ = measure.together([partial(new, each, f"b{n}", image) for n, each in enumerate(clients)])
            rows.append((label, [measure.milliseconds(found), measure.value(took, "s")]))
    note = f"From the request to the first result, with {POOL} sandboxes waiting."
    return table("Sessions out of the pool", note, ["one", f"{POOL} at once"], rows)


def bursts(served):
    rows, largest = [], max(BURSTS)
    before = measure.pss_bytes([served.process.pid])
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
    yield memory(served, clients, largest, before)


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
            return table("Memory", "", ["PSS"], [("sandboxes", [measure.absent("only root may read it")])])
        figures = [guests / 1e6, guests / 1e6 / left, own / 1e6]
        rows.append((str(left), [measure.value(figure, "MB") for figure in figures]))
    remove_all(clients, count, range(left))
    note = (
        f"PSS after one cell each, without the engine's own process for each container. A daemon without sessions had "
        f"{before / 1e6:.0f} MB. With {count} idle sessions the daemon used {100 * busy:.1f} % of one processor."
    )
    return table("Memory by number of sessions", note, ["all sandboxes", "each", "the daemon"], rows)


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
