#!/usr/bin/env python3
"""CPython's own tests in sandboxes, against the same user outside: a table of the tests that passed outside only.

The tests are Debian's `libpython3.X-testsuite`, in the version that the image and the host have. Outside of a jail is
the host itself; outside of a container is an ordinary container of the same image, with the host's network and without
a system-call filter. All of them run as one ordinary user. Needs root, an engine, `apt-get` and a mirror of Debian.

Two modules run at a time. What was seen is kept in `target/cpython/results.json` after each module, and a later run
goes on with the modules that are left, so that all of them (`--all`) can be run in pieces. A module of which a test
passed outside only is run once more, alone, and what passes then does pass.

It ends with 0 if `docs/CPYTHON.md` has a reason for everything that passed outside only, with 1 if it has not, and
with 2 if modules are left.
"""

import argparse
import base64
import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib

import results

SOURCES = pathlib.Path(__file__).resolve().parent
ROOT = SOURCES.parent.parent
KEPT = ROOT / "target/cpython"
PAGE = ROOT / "docs/CPYTHON.md"
USER = 61_006
IMAGE = "belljar/base"
ENGINE_SOCKET = "/var/run/docker.sock"
# Modules that run at a time.
WORKERS = 2
# Time beyond that of a module for what runs it.
MORE_SECONDS = 60
# Time for a module to end when the run is given up.
END_SECONDS = 10
# The release, and the version of Python in two parts and whole, one a line.
ABOUT = (
    ". /etc/os-release; echo $VERSION_CODENAME; "
    "python3 -c 'import sys; print(*sys.version_info[:2], sep=\".\"); print(*sys.version_info[:3], sep=\".\")'"
)
# Modules that meet what a sandbox changes: files, processes, users, limits, sockets. `--all` takes every one.
SYSTEM = """
test_asyncio.test_events test_asyncio.test_server test_asyncio.test_subprocess test_asyncio.test_unix_events
test_eintr test_epoll test_fcntl test_file_eintr test_fileio test_ftplib test_getpass test_glob test_grp
test_httpservers test_ioctl test_largefile test_mailbox test_mmap test_openpty test_os test_pathlib test_poll
test_popen test_posix test_posixpath test_pty test_pwd test_resource test_select test_selectors test_shutil
test_signal test_smtplib test_socket test_socketserver test_sqlite3 test_stat test_subprocess test_sys test_tarfile
test_tempfile test_thread test_threading test_time test_timeout test_urllib2_localnet test_uuid test_wait3 test_wait4
test_webbrowser test_xmlrpc test_zipfile
""".split()

# Packages whose modules are run on their own, because together they take minutes.
SPLIT = (
    "test_asyncio", "test_concurrent_futures", "test_multiprocessing_fork", "test_multiprocessing_forkserver",
    "test_multiprocessing_spawn",
)  # fmt: skip
# Tests whose failure keeps the others of their module from being told; docs/CPYTHON.md names them, too.
LEFT_OUT = {"test_socket": ["*UDPLITE*"]}


def output(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout


def unpacked(version, release, folder):
    """Unpacks Debian's tests for a Python of a release, and gives the folder that holds their package `test`."""
    kept = KEPT / f"{release}-{version}.deb"
    if not kept.exists():
        download(version, release, folder / f"apt-{release}", kept)
    output("dpkg-deb", "-x", kept, folder / f"suite-{version}")
    return folder / f"suite-{version}/usr/lib/python{version}"


def download(version, release, apt, target):
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    mirror = os.environ.get("BELLJAR_DEBIAN_MIRROR", "http://deb.debian.org/debian")
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb [signed-by={keys}] {mirror} {release} main\n")
    options = {
        "Dir::Etc::sourceparts": "-", "Dir::Etc::sourcelist": apt / "sources.list", "Dir::State::lists": apt / "lists",
        "Dir::Cache::archives": apt / "archives", "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
    }  # fmt: skip
    words = [f"-o{name}={value}" for name, value in options.items()]
    output("apt-get", "-q", *words, "update", cwd=apt)
    output("apt-get", "-q", *words, "download", f"libpython{version}-testsuite", cwd=apt)
    (package,) = apt.glob("*.deb")
    draft = target.with_suffix(".draft")
    shutil.copy(package, draft)
    os.replace(draft, target)


def give(folder):
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, USER, USER, follow_symlinks=False)


class Ground:
    """One kind of sandboxes, and what is outside of them."""

    def __init__(self, scratch, belljar, kind):
        self.scratch, self.belljar, self.kind = scratch, belljar, kind
        self.tools, self.work = scratch / "tools", scratch / "work"
        groups = os.stat(ENGINE_SOCKET).st_gid if os.path.exists(ENGINE_SOCKET) else USER
        self.as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={groups}", "--"]
        # The daemon is the user's own, so that its guests run as that user.
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.work),
            "BELLJAR_HOME": f"{scratch}/home",
            "BELLJAR_SOCKET": f"{scratch}/run/s.sock",
        }

    def begin(self):
        about = self.of_image(ABOUT) if self.is_container else output("env", "PATH=/usr/bin:/bin", "sh", "-c", ABOUT)
        release, self.version, self.python = about.decode().split()
        self.suite = unpacked(self.version, release, self.scratch)
        self.add_installed()
        give(self.suite)
        for worker in range(WORKERS):
            self.new_session(worker)

    def session(self, worker):
        return f"{self.kind}-{worker}"

    def new_session(self, worker):
        self.command(
            "new", self.session(worker), "--backend", "docker" if self.is_container else "bubblewrap", "--image",
            IMAGE if self.is_container else "host", "--memory", "4GiB", "--cpus", "2", "--pids", "1024",
            "--checkpointing", "off", "--mount", f"{self.suite}:/suite:ro", "--mount", f"{self.tools}:/tools:ro",
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def is_container(self):
        return self.kind == "docker"

    def of_image(self, line):
        return output("docker", "run", "--rm", "--entrypoint", "sh", IMAGE, "-c", line)

    def command(self, *words, **options):
        return subprocess.run([*self.as_user, self.belljar, *words], env=self.environment, **{"check": True, **options})

    def add_installed(self):
        """The parts of the package that are installed with Python, such as `test.support`."""
        if self.is_container:
            tar = self.of_image(f"tar -C /usr/lib/python{self.version} -c test")
        else:
            tar = output("tar", "-C", f"/usr/lib/python{self.version}", "-c", "test")
        subprocess.run(["tar", "-C", self.suite, "-x", "--skip-old-files"], input=tar, check=True)

    def outside(self, module, seconds):
        arguments = [f"{self.tools}/one_module.py", str(self.suite), module, str(seconds), *LEFT_OUT.get(module, [])]
        if not self.is_container:
            environment = ["env", "-i", "-C", self.work, "PATH=/usr/bin:/bin", f"HOME={self.work}", "LANG=C.UTF-8"]
            return result([*self.with_suite_read_only(), *environment, *self.as_user, "/usr/bin/python3", *arguments], seconds)
        mounts = [f"-v{folder}:{folder}:ro" for folder in (self.suite, self.tools)]
        mounts += [f"-v{self.work}:/work", "-w/work", "-eHOME=/work"]
        options = ["--rm", "--network=host", "--security-opt=seccomp=unconfined", f"-u{USER}:{USER}", *mounts]
        return result(["docker", "run", *options, "--entrypoint=python3", IMAGE, *arguments], seconds)

    def with_suite_read_only(self):
        """Words before a command to which the tests are read-only, as they are in a sandbox."""
        mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, self.suite]

    def inside(self, worker, module, seconds):
        arguments = ["/tools/one_module.py", "/suite", module, str(seconds), *LEFT_OUT.get(module, [])]
        code = f"import subprocess, sys; subprocess.run([sys.executable, *{arguments!r}]); None"
        words = ["exec", "-s", self.session(worker), "--timeout", f"{seconds + MORE_SECONDS / 2:.0f}s", code]
        return result([*self.as_user, self.belljar, *words], seconds, env=self.environment)

    def replace_session(self, worker):
        """A session in which a module did not tell how it ended may not be as it was."""
        self.command("rm", self.session(worker), check=False, stdout=subprocess.DEVNULL)
        self.new_session(worker)

    def modules(self):
        """All modules of the package; those of some packages by themselves."""
        package, found = self.suite / "test", []
        for path in sorted(package.glob("test_*")):
            if path.name in SPLIT and path.is_dir():
                found += [f"{path.name}.{part.stem}" for part in sorted(path.glob("test_*.py"))]
            elif path.suffix == ".py" or (path / "__init__.py").exists():
                found.append(path.stem)
        return found

    def has(self, module):
        path = self.suite.joinpath("test", *module.split("."))
        return path.with_suffix(".py").exists() or (path / "__init__.py").exists()

    def compare(self, worker, module, seconds):
        began = time.monotonic()
        outside, inside = self.outside(module, seconds), self.inside(worker, module, seconds)
        if not inside["is_told"]:
            self.replace_session(worker)
            inside = self.inside(worker, module, seconds)
        return results.compared(outside, inside, time.monotonic() - began)


def result(words, seconds, **options):
    """The report of `one_module.py`, or what was said instead."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds + MORE_SECONDS, check=False, **options)
        report = json.loads(zlib.decompress(base64.b64decode(done.stdout.strip().splitlines()[-1])))
        return {**report, "is_told": True}
    except (IndexError, ValueError, zlib.error):
        said = (done.stderr or done.stdout).strip()
    except subprocess.TimeoutExpired:
        said = "too slow"
    return {"end": said or "nothing was said", "passed": [], "others": {}, "is_told": False}


class Run:
    """Those of the wanted modules that are left for one kind of sandboxes."""

    def __init__(self, ground, seen, wanted, seconds, until):
        self.ground, self.seen, self.wanted, self.seconds, self.until = ground, seen, wanted, seconds, until
        self.is_over = threading.Event()
        self.failure = None

    def all(self):
        self.each(self.left()[0], WORKERS, self.first_try)
        self.each(self.left()[1], 1, self.second_try)

    def left(self):
        return [[module for module in each if module in self.wanted] for each in self.seen.left(self.ground.kind)]

    def first_try(self, worker, module):
        return self.ground.compare(worker, module, self.seconds)

    def second_try(self, worker, module):
        first = self.seen.of(self.ground.kind)[module]
        return results.after_second_try(first, self.ground.compare(worker, module, 2 * self.seconds))

    def each(self, modules, workers, work):
        waiting = collections.deque(modules)
        # These threads keep no process alive: a run that is given up waits for no module.
        threads = [threading.Thread(target=self.work, args=(each, waiting, work), daemon=True) for each in range(workers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self.is_over.set()
            for thread in threads:
                thread.join(END_SECONDS)
            raise
        if self.failure is not None:
            raise self.failure

    def work(self, worker, waiting, work):
        try:
            while waiting and not self.is_over.is_set() and time.monotonic() < self.until:
                try:
                    module = waiting.popleft()
                except IndexError:
                    return  # the other one has taken it
                entry = work(worker, module)
                if self.is_over.is_set():
                    return  # what ended because the run did says nothing
                self.seen.put(self.ground.kind, module, entry)
                self.tell(module, entry, len(waiting))
        except BaseException as failure:  # noqa: BLE001 - it is raised again where the threads are waited for
            self.failure = failure
            self.is_over.set()

    def tell(self, module, entry, left):
        only = ", ".join(f"{test} ({end})" for test, end in entry["only_outside"].items())[:1000]
        counts = f"{entry['outside']['passed']} outside, {entry['inside']['passed']} inside"
        ends = {entry[side]["end"] for side in ("outside", "inside")} - {"done"}
        words = [counts, *sorted(each[-80:].replace("\n", " ") for each in ends), *([f"outside only: {only}"] if only else [])]
        print(f"{self.ground.kind}: {module} ({entry['seconds']:.0f} s, {left} wait): {'; '.join(words)}", file=sys.stderr, flush=True)


def run_on(kind, chosen, seen, until):
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="bjc", dir="/tmp"))
    shutil.copytree(SOURCES, scratch / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("home", "run", "work"):
        (scratch / name).mkdir()
    give(scratch)
    ground = Ground(scratch, str(chosen.belljar), kind)
    try:
        ground.begin()
        wanted = [name for name in chosen.modules or (ground.modules() if chosen.all else SYSTEM) if ground.has(name)]
        if chosen.again:
            seen.forget(kind, wanted)
        seen.begin(kind, ground.python, wanted)
        Run(ground, seen, wanted, chosen.seconds, until).all()
    finally:
        if (scratch / "run/s.sock").exists():
            ground.command("daemon", "stop", "--remove", check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(scratch, ignore_errors=True)


def told(seen, kinds):
    """Prints the tables, and gives the exit code."""
    page = PAGE.read_text(encoding="utf-8")
    rows = results.differences(seen, results.Reasons(page))
    pythons = [f"Python {ground['python']} in a {results.PLACES[kind]}" for kind, ground in sorted(seen.grounds.items())]
    print(f"\n{', '.join(pythons)}.\n\n## What passes outside only\n\n{results.differences_table(rows)}")
    print(f"\n{results.COUNTS}\n\n{results.counts_table(seen)}")
    is_left = False
    for kind in kinds:
        new, twice = seen.left(kind)
        if kind not in seen.grounds or new or twice:
            is_left = True
            begun = f"left are {len(new)} modules, and the second try of {len(twice)}" if kind in seen.grounds else "not begun"
            print(f"\n{kind}: {begun}: run it again.")
    return 2 if is_left else int(any(reason is None for *_, reason in rows))


def given_up(*_signal):
    raise SystemExit("given up; a later run goes on with what is left")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=ROOT / "target/release/belljar")
    parser.add_argument("--only", default="docker,jail", help="docker, jail or both")
    parser.add_argument("--minutes", type=float, default=30, help="for all of it; what began then still ends")
    parser.add_argument("--seconds", type=float, default=120, help="for each module, outside and inside")
    parser.add_argument("--all", action="store_true", help="every module of the package")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--table", action="store_true", help="run nothing, and print what was seen before")
    parser.add_argument("--write", action="store_true", help="write how many pass into docs/CPYTHON.md")
    parser.add_argument("modules", nargs="*")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, given_up)
    KEPT.mkdir(parents=True, exist_ok=True)
    seen, until = results.Results(KEPT / "results.json"), time.monotonic() + chosen.minutes * 60
    kinds = chosen.only.split(",")
    for kind in () if chosen.table else kinds:
        if time.monotonic() < until:
            run_on(kind, chosen, seen, until)
    code = told(seen, kinds)
    if chosen.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(results.with_counts(page, results.counts_table(seen)), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
