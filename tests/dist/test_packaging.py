"""What can be said of packages and of the daemon's image without making any.

    python3 -m unittest discover -s tests/dist
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "config/packaging"


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


start = module(ROOT / "images/daemon/start.py")
HOME = "/var/lib/belljar"


def container(pid_mode="host", **mount):
    bind = {"Type": "bind", "Source": HOME, "Destination": HOME, "RW": True, **mount}
    return {"HostConfig": {"PidMode": pid_mode}, "Mounts": [bind]}


class DaemonInAContainer(unittest.TestCase):
    IDS = "         0          0 4294967295\n"

    def fault(self, inspected, home=HOME, uid_map=IDS):
        found = start.fault(inspected, home, uid_map)
        return None if found is None else " ".join(found)

    def test_one_path_inside_and_out_is_taken(self):
        self.assertIsNone(self.fault(container()))
        self.assertIsNone(self.fault(container(Source=HOME + "/")))
        self.assertIsNone(self.fault(container(Source="/var/lib", Destination="/var/lib")))

    def test_another_path_outside_is_refused_and_both_are_named(self):
        said = self.fault(container(Source="/srv/belljar"))
        self.assertIn(f"`{HOME}` in this container and `/srv/belljar` on the host", said)
        self.assertIn(f"-v {HOME}:{HOME}", said)
        # A volume has its files in a folder of the engine.
        volume = container(Type="volume", Source="/var/lib/docker/volumes/b/_data")
        self.assertIn("/volumes/b/_data", self.fault(volume))

    def test_the_nearest_mount_decides(self):
        inspected = container(Source="/var/lib", Destination="/var/lib")
        inspected["Mounts"].append({"Type": "bind", "Source": "/srv", "Destination": HOME, "RW": True})
        self.assertIn("`/srv` on the host", self.fault(inspected))

    def test_a_home_that_is_not_mounted_or_only_to_read_is_refused(self):
        self.assertIn("no folder of the host", self.fault(container(Source="/x", Destination="/var/lib/belljar2")))
        self.assertIn("to read only", self.fault(container(RW=False)))
        self.assertIn("absolute", self.fault(container(), home="belljar"))
        self.assertIn("absolute", self.fault(container(), home="/var/lib/belljar/../x"))

    def test_processes_and_users_have_to_be_those_of_the_host(self):
        for mode in ("", "private", "container:x"):
            self.assertIn("--pid=host", self.fault(container(mode)))
        self.assertIn("--userns=host", self.fault(container(), uid_map="0 100000 65536\n"))

    def test_the_container_is_known_by_the_folder_of_its_host_name(self):
        number = "4b" * 32
        line = f"162 144 254:0 /var/lib/docker/containers/{number}/hostname /etc/hostname rw - ext4 /dev/vda rw\n"
        self.assertEqual(start.own_id("1 1 0:1 / / rw - x x rw\n" + line), number)
        self.assertIsNone(start.own_id("1 1 0:1 / / rw - x x rw\n"))

    def test_without_the_engines_socket_it_says_what_to_do(self):
        for address in ("unix:///nonexistent/docker.sock", "unix:///etc/hostname", "tcp://localhost:2375"):
            ran = subprocess.run(
                [sys.executable, str(ROOT / "images/daemon/start.py")],
                env={**os.environ, "DOCKER_HOST": address}, text=True, capture_output=True,
            )  # fmt: skip
            self.assertEqual(ran.returncode, 64, ran.stderr)
            self.assertIn("-v /var/run/docker.sock:/var/run/docker.sock", ran.stderr)


class Tools(unittest.TestCase):
    def linked(self, *arguments):
        """What zig, or the machine's own compiler, is called with."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("python", "cc"):
                program = Path(folder) / name
                program.write_text(f'#!/bin/sh\necho {name} "$@"\n')
                program.chmod(0o755)
            env = {**os.environ, "BELLJAR_ZIG": f"{folder}/python", "PATH": f"{folder}:{os.environ['PATH']}"}
            command = [PACKAGING / "zig-cc.sh", *arguments]
            return subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, check=True).stdout.split()

    def test_programs_are_linked_for_the_baseline(self):
        said = self.linked("-o", "x", "a.o", "--target=x86_64-unknown-linux-gnu", "-lgcc_s", "-lc")
        self.assertEqual(said[:5], ["python", "-m", "ziglang", "cc", "-target"])
        self.assertRegex(said[5], r"^\w+-linux-gnu\.2\.28$")
        self.assertEqual(said[6:], ["-o", "x", "a.o", "-lunwind", "-lc"])

    def test_what_is_static_is_linked_by_the_machines_own_compiler(self):
        for flag in ("-static", "-static-pie"):
            self.assertEqual(self.linked("a.o", flag, "-lgcc_eh"), ["cc", "a.o", flag, "-lgcc_eh"])

    def test_a_binary_that_is_there_is_what_cargo_would_have_compiled(self):
        manifest = str(ROOT / "Cargo.toml")
        with tempfile.TemporaryDirectory() as folder:
            cargo = Path(folder) / "cargo"
            cargo.write_text('#!/bin/sh\n[ "$1" = pkgid ] && echo path+file:///x#belljar@1\n')
            cargo.chmod(0o755)
            ran = subprocess.run(
                [PACKAGING / "compiled_already.py", "rustc", "--bin", "belljar", "--manifest-path", manifest],
                env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "BELLJAR_BINARY": "/x/belljar"},
                text=True, stdout=subprocess.PIPE, check=True,
            )  # fmt: skip
        artifact, end = map(json.loads, ran.stdout.splitlines())
        self.assertEqual((artifact["executable"], artifact["package_id"]), ("/x/belljar", "path+file:///x#belljar@1"))
        self.assertTrue(end["success"])


class Manifests(unittest.TestCase):
    def test_command_and_package_have_one_version(self):
        cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
        package = tomllib.loads((ROOT / "sdk/python/pyproject.toml").read_text())["project"]
        self.assertEqual(cargo["version"], package["version"])
        self.assertEqual(cargo["license"], package["license"])

    def test_the_workflow_of_the_examples_installs_by_the_action_and_compiles_nothing(self):
        text = (ROOT / "examples/ci/workflow.yml").read_text()
        self.assertNotIn("cargo", text)
        (action,) = re.findall(r"uses: OWNER/belljar/(\S+)@v\d+$", text, re.MULTILINE)
        described = (ROOT / action / "action.yml").read_text()
        for script in re.findall(r"\$GITHUB_ACTION_PATH/([^\"]+)", described):
            self.assertTrue(os.access(ROOT / action / script, os.X_OK), script)
            # What a workflow says must not become part of a script.
            self.assertNotIn("${{", (ROOT / action / script).read_text())
        self.assertNotRegex(described, r"run: .*\$\{\{")

    def test_scripts_of_the_package_are_understood_by_a_plain_shell(self):
        for name in ("postinst", "prerm", "postrm"):
            subprocess.run(["sh", "-n", PACKAGING / "debian" / name], check=True)

    def test_every_blank_of_the_control_file_is_filled(self):
        pack = (PACKAGING / "pack.py").read_text()
        for line in (PACKAGING / "debian/control").read_text().split("@")[1::2]:
            self.assertIn(f'"{line}": ', pack)


#: Stands for the program `gh`, and writes down what it was to do.
GH = """#!/bin/bash
[ "$2" != list ] || {{ printf '%s\\n' v1.9.0 {newest} v2.0.0-rc.1 v11.0.0; exit; }}
echo "$*" >> {said}
[ "$2" != download ] || exit 9
"""


class TagOfAMajorVersion(unittest.TestCase):
    """`v1` is the newest release `v1.y.z`: the workflow of releases moves it, and the action knows what it stands for."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.said = self.folder / "said"

    def run_with_gh(self, words, newest, **env):
        gh = self.folder / "gh"
        gh.write_text(GH.format(newest=newest, said=self.said))
        gh.chmod(0o755)
        env = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "RUNNER_TEMP": str(self.folder), **env}
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        return done, self.said.read_text() if self.said.exists() else ""

    def test_the_action_installs_the_newest_release_of_it(self):
        script = ROOT / ".github/actions/belljar/install.sh"
        env = {"INPUT_WHEEL": "", "INPUT_VERSION": "", "ACTION_REPOSITORY": "OWNER/belljar"}
        _, said = self.run_with_gh([script], "v1.10.1", ACTION_REF="v1", **env)
        self.assertTrue(said.startswith("release download v1.10.1 --repo OWNER/belljar "), said)
        done, _ = self.run_with_gh([script], "v1.10.1", ACTION_REF="v3", **env)
        self.assertIn("there is no release of v3", done.stderr)

    def test_a_release_moves_it_unless_there_is_a_newer_one(self):
        text = (ROOT / ".github/workflows/release.yml").read_text()
        _, _, step = text.partition("- name: Move the tag of the major version\n")
        lines = step.partition("run: |\n")[2].splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        end = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith(" " * indent)), len(lines))
        script = "set -eo pipefail\n" + "\n".join(line[indent:] for line in lines[:end])
        env = {"GITHUB_REF_NAME": "v1.10.1", "GITHUB_SHA": "abc", "GH_REPO": "OWNER/belljar"}
        done, said = self.run_with_gh(["bash", "-c", script], "v1.10.1", **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("PATCH repos/OWNER/belljar/git/refs/tags/v1 -f sha=abc -F force=true", said)
        self.said.unlink()
        done, said = self.run_with_gh(["bash", "-c", script], "v1.11.0", **env)
        self.assertEqual((done.returncode, said), (0, ""), done.stderr)
        # The tag that is moved makes no release of its own.
        self.assertIn('tags: ["v*.*.*"]', text)


if __name__ == "__main__":
    unittest.main()
