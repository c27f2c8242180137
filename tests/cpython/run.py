#!/usr/bin/env python3
"""CPython's own tests in sandboxes, against the same user outside: a table of the tests that passed outside only.

The tests are Debian's `libpython3.X-testsuite`, in the version that the image and the host have. Outside of a jail is
the host itself; outside of a container is an ordinary container of the same image, with the host's network and without
a system-call filter. All of them run as one ordinary user. Needs root, an engine, `apt-get` and a mirror of Debian.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

SOURCES = pathlib.Path(__file__).resolve().parent
USER = 61_006
IMAGE = "belljar/base"
ENGINE_SOCKET = "/var/run/docker.sock"
# The release and the version of Python, one a line.
ABOUT = ". /etc/os-release; echo $VERSION_CODENAME; python3 -c 'import sys; print(*sys.version_info[:2], sep=\".\")'"
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

# Tests whose failure keeps the others of their module from being told; docs/CPYTHON.md names them, too.
LEFT_OUT = {"test_socket": ["*UDPLITE*"]}


def output(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout


def unpacked(version, release, folder):
    """Unpacks Debian's tests for a Python of a release, and gives the folder that holds their package `test`."""
    apt = folder / f"apt-{release}"
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
    output("dpkg-deb", "-x", package, folder / f"suite-{version}")
    return folder / f"suite-{version}/usr/lib/python{version}"


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
        release, self.version = about.decode().split()
        self.suite = unpacked(self.version, release, self.scratch)
        self.add_installed()
        give(self.suite)
        self.command(
            "new", self.kind, "--backend", "docker" if self.is_container else "bubblewrap", "--image",
            IMAGE if self.is_container else "host", "--memory", "4GiB", "--cpus", "2", "--pids", "1024",
            "--checkpointing", "off", "--mount", f"{self.suite}:/suite:ro", "--mount", f"{self.tools}:/tools:ro",
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
            return result([*environment, *self.as_user, "/usr/bin/python3", *arguments], seconds)
        mounts = [f"-v{folder}:{folder}:ro" for folder in (self.suite, self.tools)]
        mounts += [f"-v{self.work}:/work", "-w/work", "-eHOME=/work"]
        options = ["--rm", "--network=host", "--security-opt=seccomp=unconfined", f"-u{USER}:{USER}", *mounts]
        return result(["docker", "run", *options, "--entrypoint=python3", IMAGE, *arguments], seconds)

    def inside(self, module, seconds):
        arguments = ["/tools/one_module.py", "/suite", module, str(seconds), *LEFT_OUT.get(module, [])]
        code = f"import subprocess, sys; subprocess.run([sys.executable, *{arguments!r}]); None"
        words = ["exec", "-s", self.kind, "--timeout", f"{seconds + 30:.0f}s", code]
        return result([*self.as_user, self.belljar, *words], seconds, env=self.environment)


def result(words, seconds, **options):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 60, check=False, **options)
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"end": (done.stderr or done.stdout).strip(), "tests": {}}
    except subprocess.TimeoutExpired:
        return {"end": "too slow", "tests": {}}


def count(report):
    passed = sum(end == "passed" for end in report["tests"].values())
    return str(passed) if report["tests"] else report["end"].replace("|", "/").replace("\n", " ")[-80:]


def compare(ground, modules, seconds, until):
    place = f"a container of `{IMAGE}`" if ground.is_container else "a jail"
    print(f"\n### Python {ground.version}, {place}\n")
    print("| module | passed outside | passed inside | passed outside only |\n|---|---|---|---|", flush=True)
    total = 0
    for module in modules:
        if time.monotonic() > until:
            print(f"| {module} and all after it | not run: the time is over | | |")
            break
        outside, inside = ground.outside(module, seconds), ground.inside(module, seconds)
        passed = [name for name, end in outside["tests"].items() if end == "passed"]
        ends = {name: inside["tests"].get(name, "not run") for name in passed}
        missing = {name: end for name, end in ends.items() if end != "passed"}
        total += len(missing)
        names = ", ".join(f"`{name.split('.', 2)[-1]}` ({end})" for name, end in sorted(missing.items()))
        shown = names if inside["tests"] or not missing else "all of them"
        print(f"| {module} | {count(outside)} | {count(inside)} | {shown} |", flush=True)
    print(f"\n{total} tests passed outside only.", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--belljar", default=SOURCES.parent.parent / "target/release/belljar")
    parser.add_argument("--only", default="docker,jail", help="docker, jail or both")
    parser.add_argument("--minutes", type=float, default=30, help="for each of them")
    parser.add_argument("--seconds", type=float, default=120, help="for each module")
    parser.add_argument("--all", action="store_true", help="every module of the package")
    parser.add_argument("modules", nargs="*")
    chosen = parser.parse_args()
    for kind in chosen.only.split(","):
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="bjc", dir="/tmp"))
        shutil.copytree(SOURCES, scratch / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("home", "run", "work"):
            (scratch / name).mkdir()
        give(scratch)
        ground, until = Ground(scratch, str(chosen.belljar), kind), time.monotonic() + chosen.minutes * 60
        try:
            ground.begin()
            package = ground.suite / "test"
            is_module = lambda path: path.suffix == ".py" or (path / "__init__.py").exists()  # noqa: E731
            there = {path.stem for path in package.glob("test_*") if is_module(path)}
            wanted = chosen.modules or (sorted(there) if chosen.all else SYSTEM)
            modules = [name for name in wanted if name.split(".")[0] in there]
            compare(ground, modules, chosen.seconds, until)
        finally:
            if (scratch / "run/s.sock").exists():
                ground.command("daemon", "stop", "--remove", check=False, stdout=subprocess.DEVNULL)
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
