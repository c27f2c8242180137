"""Jobs per second beside `docker run --rm` of the same scripts, as many at a time."""

import concurrent.futures
import os
import pathlib
import subprocess
import tempfile
import time

import daemon
import engine
import measure
from sections import table

JOBS, BURST, AT_A_TIME = 40, 20, 4
RUN_SECONDS = 120
# What tests of model-written functions look like: some imports, a function, its checks.
SCRIPT = """
import collections, json, math, re
def words(text):
    return collections.Counter(re.findall(r"[a-z]+", text.lower()))
def check(candidate):
    assert candidate("A a b") == {"a": 2, "b": 1}
    assert candidate("") == {}
    assert sum(candidate("x " * %d).values()) == %d
check(words)
print(json.dumps({"passed": True, "root": math.isqrt(%d)}))
"""


def measured(binary):
    with tempfile.TemporaryDirectory(prefix="bjjobs", dir="/tmp") as folder:
        scripts = []
        for number in range(JOBS):
            scripts.append(pathlib.Path(folder) / f"job{number}.py")
            scripts[-1].write_text(SCRIPT % (number, number, number))
        columns = [
            ("Belljar", jobs(binary, "docker", scripts)),
            ("Belljar in a jail", jobs(binary, "bubblewrap", scripts)),
            ("Belljar, pool filled", jobs(binary, "docker", scripts, BURST)),
            ("Belljar in a jail, pool filled", jobs(binary, "bubblewrap", scripts, BURST)),
            ("`docker run --rm`", bare(scripts)),
        ]
    rows = [
        (f"burst of {BURST}", [figures[0] for _, figures in columns]),
        (f"{JOBS} one after the other", [figures[1] for _, figures in columns]),
    ]
    note = f"Each script in a fresh sandbox, {AT_A_TIME} at a time, `belljar job run` and the engine's command line."
    return [table("Jobs per second", note, [name for name, _ in columns], rows)]


def rate(count, work):
    return measure.value(count / measure.timed(work), "a second")


def jobs(binary, backend, scripts, pool=0):
    config = {"sandbox": {"backend": backend}, "jobs": {"slots": AT_A_TIME}, "pool": {"size": pool}}
    with daemon.Daemon(binary, daemon.toml(config) + daemon.ROOM) as served:

        def run(some):
            words = [binary, "job", "run", "--quiet", *some]
            if backend == "docker":
                words += ["--image", engine.BASE]
            environment = os.environ | {"BELLJAR_SOCKET": str(served.socket)}
            subprocess.run(words, env=environment, check=True, capture_output=True, timeout=RUN_SECONDS)

        # The kernel is compiled for an image once.
        run(scripts[:1])
        if pool:
            daemon.fill_pool(served.client(), pool, lambda: run(scripts[:1]))
        # A burst has to find what a rest of the daemon leaves behind.
        time.sleep(1)
        return rate(BURST, lambda: run(scripts[:BURST])), rate(JOBS, lambda: run(scripts))


def bare(scripts):
    label = f"{engine.LABEL}={engine.run_label()}"

    def run(script):
        mount = f"{script}:/script.py:ro"
        engine.docker(
            "run", "--rm", "--network", "none", "--label", label, "-v", mount, engine.BASE, "python3", "/script.py"
        )

    def run_all(some):
        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(run, some))

    return rate(BURST, lambda: run_all(scripts[:BURST])), rate(JOBS, lambda: run_all(scripts))
