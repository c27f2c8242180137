#!/usr/bin/env python3
"""Makes the packages of a binary and uses each where there is no Rust: the wheel in an environment of its own, the tarball in
a folder, the Debian package on a fresh Debian, the image of the daemon in the engine.

    BELLJAR=BINARY MATURIN=PATH run.py [TEST…]      (`make test-dist`; root, a mirror of Debian, Docker, bubblewrap)
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "config/packaging/pack.py"
TUTORIAL = ROOT / "sdk/python/examples/tutorial.py"
BINARY = Path(os.environ.get("BELLJAR", ROOT / "target/release/belljar"))
MATURIN = os.environ.get("MATURIN", "maturin")
NO_ENGINE = "unix:///nonexistent/docker.sock"
#: What root becomes, so that the wheel is tried as an ordinary user: an id that no account has.
USER = 61_013
#: The longest that anything may take which is started here.
SECONDS = 600
#: The longest that a daemon takes until it answers.
START_SECONDS = 60
DEBIAN = "trixie"


def ran(*command, check=True, **options):
    words = [str(word) for word in command]
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"`{' '.join(words)}` exited with {done.returncode}:\n{done.stdout}")
    return done


def said(*command, **options):
    return ran(*command, **options).stdout


def needs_of(binary):
    """The newest glibc that a binary names a symbol of."""
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", said("objdump", "-T", binary))
    return max((int(major), int(minor)) for major, minor in found)


@functools.cache
def packages():
    """The folder with the packages, which are made once for all tests."""
    folder = Path(tempfile.mkdtemp(prefix="bjdist", dir="/var/tmp"))
    unittest.addModuleCleanup(shutil.rmtree, folder, ignore_errors=True)
    ran(PACK, BINARY, folder / "packages", "--maturin", MATURIN)
    return folder / "packages"


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = packages()
        cls.folder = cls.made.parent
        (cls.wheel,) = cls.made.glob("*.whl")
        (cls.tarball,) = cls.made.glob("*.tar.gz")
        cls.needs = needs_of(BINARY)
        cls.version = said(BINARY, "--version")

    def test_checksums_are_those_of_the_packages(self):
        self.assertEqual(said("sha256sum", "--check", "SHA256SUMS", cwd=self.made).count(": OK\n"), 3)

    def test_the_same_binary_gives_the_same_bytes(self):
        again = self.folder / "again"
        # Neither the time at which they are made nor the modes that files happen to get may be seen in them.
        time.sleep(1)
        ran("bash", "-c", 'umask 027; exec "$@"', "-", PACK, BINARY, again, "--maturin", MATURIN)
        read = [(folder / "SHA256SUMS").read_text() for folder in (self.made, again)]
        self.assertEqual(*read)

    def test_a_binary_that_is_not_there_is_refused_and_nothing_is_removed(self):
        refused = ran(PACK, self.folder / "none", self.made, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("error: there is no binary", refused.stdout)
        self.assertTrue(self.wheel.exists())

    def test_the_tag_of_the_wheel_is_true(self):
        found = re.search(r"-py3-none-manylinux_(\d+)_(\d+)_(\w+)\.whl$", self.wheel.name)
        self.assertIsNotNone(found, self.wheel.name)
        self.assertGreaterEqual((int(found[1]), int(found[2])), self.needs)
        self.assertEqual(found[3], os.uname().machine)

    def test_the_wheel_has_what_the_sources_have(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            (entries,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
            self.assertEqual(wheel.read(entries).decode().split(), ["[inspect_ai]", "belljar=belljar.inspect_ai"])
        modules = {name for name in names if name.startswith("belljar/")}
        for licence in ROOT.glob("LICENSE-*"):
            self.assertTrue(any(name.endswith(f".dist-info/licenses/{licence.name}") for name in names), licence.name)
        sources = {str(path.relative_to(ROOT / "sdk/python/src")) for path in (ROOT / "sdk/python/src").rglob("*") if path.is_file()}
        self.assertEqual(modules, {name for name in sources if "__pycache__" not in name})

    def test_the_wheel_gives_command_daemon_and_package(self):
        home = Path(tempfile.mkdtemp(prefix="bjd", dir="/tmp"))
        self.addCleanup(shutil.rmtree, home, ignore_errors=True)
        who = {}
        if os.geteuid() == 0:
            os.chown(home, USER, USER)
            who = {"user": USER, "group": USER, "extra_groups": []}
        # Nothing of this machine's Rust, of the sources or of a daemon that runs here can help.
        env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "DOCKER_HOST": NO_ENGINE, "LANG": "C.UTF-8"}
        how = {"env": env, "cwd": home, **who}
        python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
        wheel = home / self.wheel.name
        shutil.copy(self.wheel, wheel)
        # Debian's Python has no pip unless another package brings it, so that of the tools installs it there.
        ran(python, "-m", "venv", "--without-pip", home / "env", **how)
        inside = home / "env/bin"
        pip = (Path(MATURIN).parent / "python", "-m", "pip", "--disable-pip-version-check", "--python", inside / "python")
        ran(*pip, "install", "--quiet", "--no-index", wheel)
        self.assertEqual(said(inside / "belljar", "--version", **how), self.version)
        self.assertIn(str(home), said(inside / "python", "-c", "import belljar; print(belljar.__file__)", **how))
        tutorial = home / "tutorial.py"
        shutil.copy(TUTORIAL, tutorial)
        tutorial.chmod(0o644)
        try:
            self.assertIn("Belljar works here", said(inside / "belljar", "doctor", **how))
            self.assertTrue(said(inside / "python", tutorial, **how).endswith("done\n"))
        finally:
            ran(inside / "belljar", "daemon", "stop", "--remove", check=False, **how)

    def test_the_tarball_is_ready_to_use(self):
        place = self.folder / "local"
        place.mkdir()
        ran("tar", "-xzf", self.tarball, "-C", place, "--strip-components=1")
        self.assertEqual(said(place / "bin/belljar", "--version"), self.version)
        for name in ("lib/systemd/system/belljar.socket", "share/man/man1/belljar.1", "share/belljar/config.toml"):
            self.assertTrue((place / name).is_file(), name)
        self.assertIn("ExecStart=/usr/local/bin/belljar", (place / "lib/systemd/system/belljar.service").read_text())
        text = (place / "share/doc/belljar/INSTALL.txt").read_text()
        self.assertIn(f"glibc {self.needs[0]}.{self.needs[1]} or newer", text)
        # What is said of removing it leaves nothing but folders.
        removal = text.strip().splitlines()[-1].replace("/usr/local", str(place)).replace("sudo ", "")
        ran("sh", "-c", removal, cwd=self.made)
        self.assertEqual([path for path in place.rglob("*") if not path.is_dir()], [])


@unittest.skipUnless(os.geteuid() == 0, "making a system needs root")
class OnDebian(unittest.TestCase):
    """The package on a system that was made for it."""

    @classmethod
    def setUpClass(cls):
        cls.root = Path(tempfile.mkdtemp(prefix="bjdeb", dir="/var/tmp")) / "root"
        cls.addClassCleanup(shutil.rmtree, cls.root.parent, ignore_errors=True)
        (cls.package,) = packages().glob("*.deb")
        if not shutil.which("mmdebstrap"):
            ran("apt-get", "install", "-qy", "--no-install-recommends", "mmdebstrap", "debian-archive-keyring")
        ran("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,bubblewrap", DEBIAN, cls.root)
        shutil.copy(cls.package, cls.root / "root/belljar.deb")

    def inside(self, *command, check=True):
        return ran("chroot", self.root, "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", *command, check=check)

    def test_it_is_installed_upgraded_removed_and_purged(self):
        self.inside("dpkg", "--install", "/root/belljar.deb")
        self.assertEqual(self.inside("belljar", "--version").stdout, said(BINARY, "--version"))
        group = self.inside("getent", "group", "belljar").stdout
        self.assertRegex(group, r"^belljar:x:\d+:$")
        self.assertEqual(self.inside("dpkg", "--verify", "belljar").stdout, "")
        self.assertIn("ExecStart=/usr/bin/belljar", (self.root / "usr/lib/systemd/system/belljar.service").read_text())
        self.assertIn("--version", (self.root / "usr/share/zsh/vendor-completions/_belljar").read_text())

        # A second time, over settings that somebody has changed.
        settings = self.root / "etc/belljar/config.toml"
        settings.write_text("[cells]\ntimeout = 7\n")
        self.inside("dpkg", "--install", "--force-confold", "/root/belljar.deb")
        self.assertEqual(settings.read_text(), "[cells]\ntimeout = 7\n")
        self.assertEqual(self.inside("getent", "group", "belljar").stdout, group)

        state = self.root / "var/lib/belljar"
        state.mkdir(parents=True, exist_ok=True)
        (state / "journal.db").write_text("")
        self.inside("dpkg", "--remove", "belljar")
        self.assertFalse((self.root / "usr/bin/belljar").exists())
        self.assertTrue(settings.exists() and (state / "journal.db").exists())
        self.inside("dpkg", "--purge", "belljar")
        self.assertFalse(settings.parent.exists() or state.exists())
        left = [path for name in ("usr", "etc") for path in (self.root / name).rglob("*belljar*")]
        self.assertEqual(left, [])

    def test_it_says_what_it_needs(self):
        major, minor = needs_of(BINARY)
        self.assertIn(f"libc6 (>= {major}.{minor})", said("dpkg-deb", "--field", self.package, "Depends"))
        self.assertEqual(said("dpkg-deb", "--field", self.package, "Architecture").strip(), said("dpkg", "--print-architecture").strip())


class InAWorkflow(unittest.TestCase):
    """The scripts of the action for GitHub, as its runner starts them."""

    ACTION = ROOT / ".github/actions/belljar"

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="bjw", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.paths = self.folder / "paths"
        self.env = {
            "HOME": str(self.folder), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "DOCKER_HOST": NO_ENGINE,
            "RUNNER_TEMP": str(self.folder), "GITHUB_PATH": str(self.paths), "BELLJAR_HOME": str(self.folder / "home"),
            "BELLJAR_SOCKET": str(self.folder / "b.sock"), "ACTION_REPOSITORY": "OWNER/belljar", "ACTION_REF": "v1",
            "INPUT_VERSION": "", "INPUT_WHEEL": "", "INPUT_IMAGE": "none",
        }  # fmt: skip

    def test_it_installs_the_wheel_and_runs_the_jobs(self):
        (wheel,) = packages().glob("*.whl")
        ran(self.ACTION / "install.sh", env={**self.env, "INPUT_WHEEL": str(wheel)})
        env = {**self.env, "PATH": f"{self.paths.read_text().strip()}:/usr/bin:/bin"}
        self.addCleanup(ran, "belljar", "daemon", "stop", "--remove", env=env, check=False)
        report, kept = self.folder / "report.xml", self.folder / "kept"
        env |= {"INPUT_REPORT": str(report), "INPUT_ARTIFACTS": str(kept), "INPUT_SPEC": "", "INPUT_ARGUMENTS": ""}
        spec = {"INPUT_SPEC": str(ROOT / "examples/ci/job.toml")}
        self.assertEqual(said(self.ACTION / "jobs.sh", env=env | spec).count("::group::passed check_"), 4)
        self.assertIn('tests="4" failures="0" errors="0"', report.read_text())
        self.assertTrue((kept / "check_prices.py__limit=100_/report/prices.json").is_file())

        # Words with blanks, and what a shell would obey, are words.
        script = self.folder / "a script.py"
        script.write_text("import sys; print(sys.argv[1:]); sys.exit(3)\n")
        words = {"INPUT_ARGUMENTS": f"{script}\n--arg=$(id) b\n", "INPUT_ARTIFACTS": ""}
        failed = ran(self.ACTION / "jobs.sh", env=env | words, check=False)
        self.assertEqual(failed.returncode, 3, failed.stdout)
        self.assertIn("['$(id) b']", failed.stdout)

    def test_it_takes_the_release_of_its_tag_and_holds_it_against_its_checksum(self):
        programs = self.folder / "programs"
        programs.mkdir()
        name = f"belljar-1.2.3-py3-none-manylinux_2_28_{os.uname().machine}.whl"
        said_to_gh = self.folder / "gh"
        gh = programs / "gh"
        gh.write_text(
            f'#!/bin/bash\n[ "$2" != list ] || {{ printf "%s\\n" v1.9.0 v2.0.0 v1.10.1 v11.0.0; exit; }}\n'
            f'echo "$*" > {said_to_gh}\nwhile [ "$1" != --dir ]; do shift; done\nmkdir -p "$2"\ncd "$2"\n'
            f"echo forged > {name}\necho {'0' * 64}  {name} > SHA256SUMS\n"
        )
        gh.chmod(0o755)
        env = {**self.env, "PATH": f"{programs}:{os.environ['PATH']}"}
        for version, ref, tag in (("", "v1.4.0", "v1.4.0 "), ("1.2.3", "v1.4.0", "v1.2.3 "), ("", "v1", "v1.10.1 "), ("", "main", "")):
            with self.subTest(version=version, ref=ref):
                done = ran(self.ACTION / "install.sh", env=env | {"INPUT_VERSION": version, "ACTION_REF": ref}, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(f"{name}: FAILED", done.stdout)
                self.assertTrue(said_to_gh.read_text().startswith(f"release download {tag}--repo OWNER/belljar "))
                self.assertFalse((self.folder / "belljar/env").exists())


@unittest.skipUnless(shutil.which("docker") and os.geteuid() == 0, "the image of the daemon needs Docker, and root")
class InAContainer(unittest.TestCase):
    """The daemon in a container, with the socket of the engine around it."""

    @classmethod
    def setUpClass(cls):
        cls.tag = f"belljar-daemon-test-{uuid.uuid4().hex[:12]}"
        ran(ROOT / "images/daemon/build.sh", BINARY, cls.tag)
        cls.addClassCleanup(ran, "docker", "rmi", "--force", cls.tag, check=False)

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="bjc", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.home, self.socket = self.folder / "home", self.folder / "run/b.sock"
        self.home.mkdir(0o700)
        self.socket.parent.mkdir(0o755)
        self.env = {**os.environ, "BELLJAR_SOCKET": str(self.socket), "BELLJAR_NO_AUTOSTART": "1"}

    def options(self, *options):
        engine = "/var/run/docker.sock"
        run = self.socket.parent
        return ["--network=none", "-v", f"{engine}:{engine}", "-v", f"{run}:{run}", "-v", "/sys/fs/cgroup:/sys/fs/cgroup:ro",
                "-e", f"BELLJAR_HOME={self.home}", "-e", f"BELLJAR_SOCKET={self.socket}", *options]  # fmt: skip

    def test_it_is_refused_where_it_could_not_work(self):
        other = self.folder / "other"
        other.mkdir()
        same, elsewhere = ("-v", f"{self.home}:{self.home}"), ("-v", f"{other}:{self.home}")
        for options, words in (
            (same, "start it with `--pid=host`"),
            (("--pid=host", *elsewhere), f"and `{other}` on the host"),
            (("--pid=host", "-v", f"{self.tag}:{self.home}"), "on the host, and the engine knows only the latter"),
            (("--pid=host",), "is no folder of the host"),
        ):
            with self.subTest(words):
                self.addCleanup(ran, "docker", "volume", "rm", "--force", self.tag, check=False)
                done = ran("docker", "run", "--rm", *self.options(*options), self.tag, "--group", "root", check=False)
                self.assertEqual(done.returncode, 64, done.stdout)
                self.assertIn(words, done.stdout)

    def test_it_serves_and_its_sessions_outlive_it(self):
        options = self.options("--pid=host", "--cap-add=SYS_PTRACE", "-v", f"{self.home}:{self.home}")
        container = said("docker", "run", "--detach", *options, self.tag, "--group", "root").strip()
        self.addCleanup(ran, "docker", "rm", "--force", container, check=False)
        self.await_daemon(container)
        try:
            ran(BINARY, "new", "lab", "--image", "belljar/base", env=self.env)
            ran(BINARY, "exec", "-s", "lab", "x = 41", env=self.env)
            ran("docker", "restart", container)
            self.await_daemon(container)
            self.assertIn("42", said(BINARY, "exec", "-s", "lab", "x + 1", env=self.env).splitlines())
        finally:
            ran(BINARY, "daemon", "stop", "--remove", env=self.env, check=False)

    def await_daemon(self, container):
        end = time.monotonic() + START_SECONDS
        while ran(BINARY, "ps", env=self.env, check=False).returncode != 0:
            if time.monotonic() > end:
                self.fail(said("docker", "logs", container))
            time.sleep(0.3)


if __name__ == "__main__":
    if not BINARY.is_file():
        sys.exit(f"error: there is no binary `{BINARY}`; `make test-dist` compiles one, BELLJAR names another")
    unittest.main(verbosity=2)
