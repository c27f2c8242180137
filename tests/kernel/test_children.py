"""Python programs that code of a sandbox starts: where they find packages, and what a script of a job says at its end."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from harness import KERNEL

SHIMS = os.path.join(KERNEL, "shims", "lib")
SAYS = "import json, sys; print(json.dumps([sys.path, {name: getattr(module, '__file__', None) for name, module in sys.modules.items()}]))"


class Children(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.packages = os.path.join(folder.name, "packages")
        shims = os.path.join(folder.name, "kernel", "shims", "lib")
        os.makedirs(shims)
        os.mkdir(self.packages)
        os.symlink(os.path.join(KERNEL, "belljar_kernel"), os.path.join(folder.name, "kernel", "belljar_kernel"))
        # The same file, with a folder for packages that a test may have.
        with open(os.path.join(SHIMS, "sitecustomize.py"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn('"/belljar/packages/site"', text)
        self.write(os.path.join(shims, "sitecustomize.py"), text.replace("/belljar/packages/site", self.packages))
        self.shims = shims

    def write(self, path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def run_python(self, *words, path=(), **variables):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join((self.shims, *path)), **variables}
        words = [sys.executable, *words]
        return subprocess.run(words, env=environment, cwd=self.folder, capture_output=True, text=True)

    def test_packages_take_no_place_of_the_standard_library(self):
        self.write(os.path.join(self.packages, "json.py"), "raise RuntimeError('a package shadows the library')")
        self.write(os.path.join(self.packages, "bell.py"), "HERE = True")
        done = self.run_python("-c", SAYS.replace("import json", "import bell, json"))
        self.assertEqual(done.stderr, "")
        path, modules = json.loads(done.stdout)
        self.assertEqual(modules["bell"], os.path.join(self.packages, "bell.py"))
        self.assertNotIn(self.packages, modules["json"])
        place = path.index(self.packages)
        self.assertGreater(place, path.index(os.path.dirname(os.__file__)))
        behind = [entry for entry in path if entry.endswith(("/site-packages", "/dist-packages"))]
        self.assertTrue(all(path.index(entry) > place for entry in behind), path)

    def test_what_an_image_does_at_the_start_is_done_too(self):
        other = os.path.join(self.folder, "other")
        os.mkdir(other)
        self.write(os.path.join(other, "sitecustomize.py"), "import builtins\nbuiltins.of_image = __file__")
        done = self.run_python("-c", "import sitecustomize as s; print(of_image == s.__file__)", path=[other])
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))

    def test_isolated_programs_are_left_alone(self):
        done = self.run_python("-I", "-c", SAYS)
        self.assertNotIn(self.packages, json.loads(done.stdout)[0])

    def test_the_script_of_a_job_says_what_is_missing(self):
        self.write(os.path.join(self.folder, "s.py"), "import os\nassert 'BELLJAR_IN_JOB' not in os.environ\nimport sys\nsys.modules['polars'] = None\nimport polars\n")
        done = self.run_python("s.py", BELLJAR_IN_JOB="1")
        self.assertEqual(done.returncode, 1)
        before, _, hint = done.stderr.partition("\nhint: ")
        self.assertTrue(before.startswith("Traceback (most recent call last):\n"), before)
        self.assertEqual(
            hint, "the package `polars` is not installed: `belljar job run --with polars` installs it before the script begins\n"
        )
        self.assertNotIn("hint", self.run_python("s.py").stderr)

    def test_other_ends_of_a_script_are_as_they_were(self):
        for code, code_of_exit, last in (
            ("import sys; sys.exit(3)", 3, ""),
            ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
            ("try:\n    import polars_x\nexcept ImportError:\n    1 / 0", 1, "ZeroDivisionError: division by zero\n"),
            ("pip install x", 1, "name the packages with `belljar job run --with`\n"),
        ):
            self.write(os.path.join(self.folder, "s.py"), code)
            done = self.run_python("s.py", BELLJAR_IN_JOB="1")
            self.assertEqual(done.returncode, code_of_exit, done.stderr)
            self.assertTrue(done.stderr.endswith(last), done.stderr)


if __name__ == "__main__":
    unittest.main()
