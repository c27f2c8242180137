"""The installer of packages, as far as it needs no index: how it runs programs, and what it says of their progress."""

import json
import os
import signal
import sys
import tempfile
import time
import unittest
import zipfile
from importlib import metadata
from unittest import mock

from harness import KERNEL

sys.path.insert(0, KERNEL)
import install  # noqa: E402

# Leaves a process behind that may say more at any time, as a build may.
LEAVES_A_PROCESS = """
import subprocess, sys
print("said", flush=True)
print("complained", file=sys.stderr, flush=True)
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
sys.exit(int(sys.argv[1]))
"""
TASK = {"index": "https://index.test/simple", "idle_s": 1, "sources": True}


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.progress = install.Progress(self.folder)
        self.settings = install.Settings(TASK, None, "http://127.0.0.1:1", self.folder, self.progress)

    def run_program(self, code, *arguments):
        return self.settings.run([sys.executable, "-c", code, *arguments], {}, ["nothing fits"])

    def test_what_a_program_says_is_all_there(self):
        code = "import sys\nfor n in range(20_000): print('line', n); print('x' * 50, file=sys.stderr)\nprint('end', end='')"
        said = self.run_program(code).splitlines()
        self.assertEqual((len(said), said[0], said[-1]), (20_001, "line 0", "end"))
        with self.assertRaises(install.Failure) as caught:
            self.run_program("import sys; sys.exit('nothing fits: \\xe4')")
        self.assertEqual((caught.exception.kind, str(caught.exception)), ("not_found", "nothing fits: \xe4"))

    def test_a_process_that_a_build_leaves_holds_nothing_up(self):
        begun = time.monotonic()
        said = self.run_program(LEAVES_A_PROCESS, "0").splitlines()
        self.addCleanup(os.kill, int(said[1]), signal.SIGKILL)
        self.assertEqual(said[0], "said")
        with self.assertRaises(install.Failure) as caught:
            self.run_program(LEAVES_A_PROCESS, "1")
        self.assertEqual((caught.exception.kind, str(caught.exception)), ("failed", "complained"))
        with open(os.path.join(self.folder, "said"), encoding="utf-8") as file:
            self.addCleanup(os.kill, int(file.read().splitlines()[1]), signal.SIGKILL)
        self.assertLess(time.monotonic() - begun, 30)

    def test_sizes_that_make_no_sense_are_not_told(self):
        path = os.path.join(self.folder, "progress.json")
        for size in ("1.2.3MiB", ".MiB", "9" * 400 + "MiB", "MiB"):
            self.progress.hear("Downloading bell ({})".format(size))
            self.assertFalse(os.path.exists(path), size)
        self.progress.hear("Downloading bell (1.5KiB)")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file), [{"name": "bell", "bytes": 1536}])

    def test_pip_tells_one_file_after_the_other(self):
        code = """
print("Collecting glass-bell")
print("  Downloading https://index.test/files/glass_bell-1.2-py3-none-any.whl (1.5 MB)")
print("Downloading jar-3.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl.metadata (3 kB)")
print("Downloading nonsense (1.2.3 MB)")
print("Installing collected packages: jar, glass-bell")
"""
        told = []
        self.progress.hear = lambda line: told.append((install.Progress.hear(self.progress, line), self.shown())[1])
        self.assertIn("Installing", self.run_program(code))
        bell, jar = [{"name": "glass_bell", "bytes": 1_500_000}], [{"name": "jar", "bytes": 3000}]
        self.assertEqual(told, [None, bell, jar, jar, jar])

    def shown(self):
        try:
            with open(os.path.join(self.folder, "progress.json"), encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return None


class Resolver:
    """Knows an index that has only `bell-hello`, in a version that the image does not have."""

    def __init__(self, can_stay=True):
        self.can_stay = can_stay
        self.stand_ins = []

    def resolve(self, limits, _requirements):
        if "--constraint" in limits:
            raise install.Failure("not_found", "with all that is there, nothing fits")
        if "--find-links" not in limits:
            raise install.Failure("not_found", "the index has no `bell-debian`")
        folder = limits[limits.index("--find-links") + 1]
        for name in sorted(os.listdir(folder)):
            with zipfile.ZipFile(os.path.join(folder, name)) as wheel:
                told = next(wheel.read(path).decode() for path in wheel.namelist() if path.endswith("METADATA"))
            self.stand_ins += [(name, [line for line in told.splitlines() if line.startswith("Requires-Dist")])]
        if not self.can_stay:
            raise install.Failure("not_found", "beside that, nothing fits")
        return {"bell-debian": ("3.0", []), "bell-hello": ("2.0", [])}


class Versions(unittest.TestCase):
    IMAGE = {"bell-debian": "3.0", "bell-hello": "1.0"}

    def resolved(self, resolver):
        folders = [tempfile.TemporaryDirectory() for _ in range(2)]
        for folder in folders:
            self.addCleanup(folder.cleanup)
        output, site = (folder.name for folder in folders)
        needs = "Requires-Dist: Bell.Hello (>=1)\nRequires-Dist: bell-gone\n"
        for name, more in (("bell_debian-3.0", needs), ("bell_hello-1.0", "")):
            os.mkdir(os.path.join(site, name + ".dist-info"))
            with open(os.path.join(site, name + ".dist-info", "METADATA"), "w", encoding="utf-8") as file:
                file.write("Metadata-Version: 2.1\nName: {}\nVersion: {}\n{}".format(*name.split("-"), more))
        task = {**TASK, "requirements": ["bell-debian", "bell-hello>=2"], "superseded": []}
        found = list(metadata.distributions(path=[site]))
        with mock.patch.object(install, "start_relay", lambda _path: 1):
            installation = install.Installation(task, site, output, None)
        with mock.patch.object(install.metadata, "distributions", lambda: found):
            return installation._resolve(resolver, self.IMAGE, {})

    def test_what_no_index_has_stays_where_another_package_has_to_give_way(self):
        resolver = Resolver()
        wanted, replaced = self.resolved(resolver)
        self.assertEqual({name: found[0] for name, found in wanted.items()}, {"bell-debian": "3.0", "bell-hello": "2.0"})
        self.assertEqual(replaced, [{"name": "bell-hello", "has": "1.0", "wants": "2.0"}])
        # It needs there what it needs in the image, as far as the image has that.
        debian, hello = "bell_debian-3.0-py3-none-any.whl", "bell_hello-1.0-py3-none-any.whl"
        self.assertEqual(resolver.stand_ins, [(debian, ["Requires-Dist: Bell.Hello (>=1)"]), (hello, [])])

    def test_where_nothing_fits_the_words_are_those_about_the_index(self):
        with self.assertRaises(install.Failure) as caught:
            self.resolved(Resolver(can_stay=False))
        self.assertEqual((caught.exception.kind, str(caught.exception)), ("not_found", "the index has no `bell-debian`"))


if __name__ == "__main__":
    unittest.main()
