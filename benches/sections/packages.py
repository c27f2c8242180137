"""Installing a package from an index on loopback, beside `pip install` and `uv pip install` of the same.

- cold: the index is asked, nothing of the package is there before; `uv` itself is there
- cached: the same package for another session, or another folder
- without the index: the same for one more session, while the index does not answer
- import: all its modules, in the first process after the installation
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import zipfile

import daemon
import engine
import measure
from sections import table

ROOT = pathlib.Path(__file__).resolve().parents[2]
INDEX = ROOT / "tests/it/support/package_index.py"
ROUNDS = 3
COMMAND_SECONDS = 120
# A proxy of the machine does not lead to its own loopback.
DIRECT = {"NO_PROXY": "localhost", "no_proxy": "localhost"}
IMPORT = "import time; began = time.perf_counter(); import {0}.all; time.perf_counter() - began"


def measured(binary):
    with tempfile.TemporaryDirectory(prefix="bjpackages", dir="/tmp") as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        wheels = uv_wheels()
        with index(folder / "index", wheels) as (port, silence):
            url, authority = f"https://localhost:{port}/simple", folder / "index/ca.pem"
            columns = [
                ("Belljar", belljar(binary, "docker", url, authority, silence)),
                ("Belljar in a jail", belljar(binary, "bubblewrap", url, authority, silence)),
                ("`pip install`", installed(pip(url, authority), folder / "pip", authority)),
                ("`uv pip install`", installed(uv(wheels, folder, url), folder / "uv", authority)),
            ]
    names = ("cold", "cached", "without the index", "import")
    rows = [(name, [figures[place] for _, figures in columns]) for place, name in enumerate(names)]
    note = (
        "A package of 300 modules from an index on loopback. Belljar and `pip` compile bytecode, `uv` leaves that to the "
        "first import. Belljar's column has a sandbox for the installer, and no network for the session."
    )
    return [table("Installing a package", note, [name for name, _ in columns], rows)]


def uv_wheels():
    """A folder with a wheel of `uv`, which is fetched once from where this machine gets its packages."""
    folder = ROOT / "target/tmp/uv-wheels"
    if not list(folder.glob("*.whl")):
        words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "uv", "--dest", str(folder)]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=COMMAND_SECONDS)
    return folder


@contextlib.contextmanager
def index(folder, wheels):
    folder.mkdir()
    words = [sys.executable, INDEX, folder, wheels, str(ROUNDS)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline()), lambda: silenced(process)
        process.stdin.close()


@contextlib.contextmanager
def silenced(process):
    """While this lasts, the process accepts nothing and answers nothing."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def belljar(binary, backend, url, authority, silence):
    settings = {"sandbox": {"backend": backend}, "packages": {"index": url}}
    before = dict(os.environ)
    os.environ.update(SSL_CERT_FILE=str(authority), **DIRECT)  # the daemon uses what the host's `uv` does
    try:
        served = daemon.Daemon(binary, daemon.toml(settings) + daemon.ROOM)
    finally:
        os.environ.clear()
        os.environ.update(before)
    more = {"image": engine.BASE} if backend == "docker" else {}
    with served:
        client = served.client()

        def install(session, package):
            client.json("POST", f"/v1/sessions/{session}/install", {"packages": [package]})

        client.new("first", **more)
        install("first", "bell-dep")  # fetches `uv`
        cold, cached, alone, imports = [], [], [], []
        for number in range(ROUNDS):
            for session, times in (("a", cold), ("b", cached)):
                client.new(session, **more)
                times.append(measure.timed(lambda: install(session, f"bell-many-{number}")))
            client.new("c", **more)
            with silence():
                alone.append(measure.timed(lambda: install("c", f"bell-many-{number}")))
            imports.append(float(client.value("b", IMPORT.format(f"bell_many_{number}"))))
            for session in "abc":
                client.remove(session)
    return [measure.milliseconds(times) for times in (cold, cached, alone, imports)]


def pip(url, authority):
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    return [*words, "--index-url", url, "--cert", str(authority)]


def uv(wheels, folder, url):
    program = folder / "uv-program"
    with zipfile.ZipFile(next(wheels.glob("uv-*.whl"))) as archive:
        inside = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        program.write_bytes(archive.read(inside))
    program.chmod(0o755)
    words = [str(program), "pip", "install", "--quiet", "--no-config", "--no-deps", "--python", sys.executable]
    return [*words, "--default-index", url]


def installed(words, folder, authority):
    """Cold with an empty cache, then from that cache into another folder."""
    folder.mkdir()
    # Settings of this machine would lead to another index, or another authority.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    environment.update(SSL_CERT_FILE=str(authority), REQUESTS_CA_BUNDLE=str(authority), **DIRECT)
    cold, cached, imports = [], [], []
    for number in range(ROUNDS):
        package, cache = f"bell-many-{number}", folder / f"cache{number}"
        for place, times in (("a", cold), ("b", cached)):
            target = folder / f"{place}{number}"
            command = [*words, "--cache-dir", str(cache), "--target", str(target), package]

            def install(command=command):
                subprocess.run(command, env=environment, check=True, capture_output=True, timeout=COMMAND_SECONDS)

            times.append(measure.timed(install))
        code = timing(f"bell_many_{number}")
        environment["PYTHONPATH"] = str(folder / f"b{number}")
        said = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
        imports.append(float(said.stdout))
    cold, cached, imports = (measure.milliseconds(times) for times in (cold, cached, imports))
    return [cold, cached, None, imports]


def timing(module):
    statements, _, last = IMPORT.format(module).rpartition("; ")
    return f"{statements}; print({last})"
