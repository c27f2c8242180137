"""Words where it hurts: what stands below the traceback of a missing package, and of a network that is not there."""

import errno
import os
import subprocess
import sys
import unittest

from harness import KERNEL, Kernel, KernelTest

sys.path.insert(0, KERNEL)
from belljar_kernel import hints  # noqa: E402

NETWORK = "hint: this sandbox has no network: no host can be reached, and trying again does not help. There are "


def can_part_from_network():
    return subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


class MissingPackages(KernelTest):
    def traceback(self, code, kind="ModuleNotFoundError", **options):
        exception = self.kernel.run(code, **options).end["exception"]
        self.assertEqual(exception["type"], kind)
        return exception["traceback"]

    def hint(self, code, kind="ModuleNotFoundError", **options):
        before, _, hint = self.traceback(code, kind, **options).partition("\nhint: ")
        self.assertNotIn("\nhint: ", hint)
        return hint

    def test_the_words_stand_once_below_the_trimmed_traceback(self):
        self.run_ok("import sys\nsys.modules['polars'] = None")
        self.assertEqual(
            self.traceback("x = 1\nimport polars"),
            "Traceback (most recent call last):\n"
            '  File "<cell 2>", line 2, in <module>\n'
            "    import polars\n"
            "ModuleNotFoundError: import of polars halted; None in sys.modules\n"
            "\n"
            "hint: the package `polars` is not installed: `%pip install polars` in a cell installs it, "
            "and so does `belljar install -s SESSION polars` outside of the session\n",
        )

    def test_code_that_can_have_nothing_installed_is_not_told_to_install(self):
        why = "no packages are installed here: the policy says so"
        self.run_ok("import sys\nsys.modules['polars'] = None")
        told = f"the package `polars` is not installed, and {why}\n"
        for mode in ("main", "fork", "background"):
            self.assertEqual(self.hint("import polars", mode=mode, no_packages=why), told, mode)
        unknown = self.hint("import nobody_knows_this_one", no_packages=why)
        self.assertTrue(unknown.endswith(f"an installed package; {why}\n"), unknown)
        line = self.hint("pip install polars", "SyntaxError", no_packages=why)
        self.assertEqual(line, f"`pip` is a program and no Python, and {why}\n")
        for whose in (hints.FOR_CELLS, hints.FOR_JOBS):
            error = ModuleNotFoundError("no", name="polars")
            self.assertNotIn("`%pip", hints.about(error, why, whose))
            self.assertNotIn("--with", hints.about(error, why, whose))
            self.assertNotIn("packages", hints._no_network(why, whose))
        # It holds for that cell alone.
        self.assertIn("%pip install polars", self.hint("import polars"))

    def test_a_script_of_a_job_is_told_why_packages_are_refused(self):
        library = os.path.join(KERNEL, "shims", "lib")
        for why, told in (("", "`belljar job run --with polars`"), ("the policy says so", "and the policy says so")):
            env = {**os.environ, "PYTHONPATH": library, "BELLJAR_IN_JOB": "1", "BELLJAR_NO_PACKAGES": why}
            code = "import os, sys; assert not {'BELLJAR_IN_JOB', 'BELLJAR_NO_PACKAGES'} & set(os.environ)\n"
            code += "sys.modules['polars'] = None; import polars"
            said = subprocess.run([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True, check=False).stderr
            self.assertIn("\nhint: the package `polars` is not installed", said)
            self.assertIn(told, said)

    def test_import_names_are_mapped_to_packages(self):
        for module, package in (
            ("sklearn.linear_model", "scikit-learn"),
            ("cv2", "opencv-python-headless"),
            ("PIL.Image", "pillow"),
            ("yaml", "pyyaml"),
            ("bs4", "beautifulsoup4"),
            ("google.protobuf", "protobuf"),
            ("polars", "polars"),
            ("IPython.display", "ipython"),
        ):
            error = ModuleNotFoundError(f"No module named {module!r}", name=module)
            self.assertIn(f"`%pip install {package}` in a cell", hints.about(error))

    def test_modules_of_the_standard_library_are_never_offered(self):
        for module in (*getattr(sys, "stdlib_module_names", ()), "tkinter", "_tkinter", "distutils", "imp", "asyncore", "__x"):
            self.assertIsNone(hints.about(ModuleNotFoundError("no", name=module)), module)

    def test_a_name_that_nobody_knows_gets_no_command_to_install_it(self):
        hint = self.hint("import nobody_knows_this_one")
        self.assertIn("`nobody_knows_this_one` is neither a file of the current folder nor an installed package", hint)
        self.assertNotIn("install nobody_knows_this_one", hint)

    def meant(self, name, other):
        return (
            f"`{name}` is neither a file of the current folder nor an installed package; did you mean `{other}`? If not, "
            "a package is installed with `%pip install` and its name in the index, which may be another one\n"
        )

    def test_a_package_that_is_there_is_not_said_to_be_missing(self):
        self.run_ok("import sys, types\nsys.modules['sklearn'] = types.ModuleType('sklearn')")
        self.assertEqual(self.hint("import sklearn.cross_validation"), "")

    def test_a_slip_is_told(self):
        with open(os.path.join(self.kernel.workspace, "my_module.py"), "w", encoding="utf-8"):
            pass
        self.assertEqual(self.hint("import my_modul"), self.meant("my_modul", "my_module"))
        self.assertEqual(self.hint("import pandsa"), self.meant("pandsa", "pandas"))

    def test_a_part_that_a_module_does_not_have_is_no_matter_of_installing(self):
        self.assertEqual(self.hint("import json.no_such_part"), "")
        self.assertEqual(self.hint("from json import nothing", "ImportError"), "")

    def test_only_the_cause_of_the_error_counts(self):
        self.run_ok("import sys\nsys.modules['polars'] = None\ndef load():\n    import polars")
        self.assertIn("polars", self.hint("try:\n    load()\nexcept ImportError as e:\n    raise ValueError from e", "ValueError"))
        self.assertEqual(self.hint("try:\n    load()\nexcept ImportError:\n    1 / 0", "ZeroDivisionError"), "")
        self.assertEqual(self.hint("try:\n    load()\nexcept ImportError:\n    pass\n1 / 0", "ZeroDivisionError"), "")
        self.assertEqual(self.run_ok("try:\n    load()\nexcept ImportError as e:\n    print('caught')").both, "caught\n")

    def test_pip_without_its_sign_is_told(self):
        hint = self.hint("x = 1\npip install -q polars  # fast", "SyntaxError")
        self.assertEqual(hint, "`pip` is a program and no Python: write `%pip install -q polars # fast`\n")
        self.assertEqual(self.hint("def f(:", "SyntaxError"), "")

    @unittest.skipIf(sys.version_info < (3, 11), "groups of exceptions came with Python 3.11")
    def test_a_group_has_the_hint_of_its_members(self):
        error = ModuleNotFoundError("no", name="polars")
        self.assertIn("polars", hints.about(ExceptionGroup("two", [ValueError(1), error])))  # noqa: F821

    def test_an_error_that_refuses_everything_is_still_reported(self):
        code = (
            "class Bad(ModuleNotFoundError):\n"
            "    name = property(lambda self: 1 / 0)\n"
            "    __cause__ = property(lambda self: 1 / 0)\n"
            "raise Bad('x')"
        )
        self.assertEqual(self.hint(code, "Bad"), "")

    def test_code_that_runs_nested_is_told_too(self):
        self.kernel.configure(
            tools=[{"name": "exec_code", "description": "", "parameters": {"type": "object"}, "local": True}]
        )
        self.assertIn("%pip install nltk", self.value("import sys; sys.modules['nltk'] = None\nexec_code(code='import nltk')"))


class Network(unittest.TestCase):
    def test_errors_of_a_network_are_known_by_their_cause(self):
        import socket

        for error, is_of_network in (
            (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
            (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), True),
            (socket.gaierror(socket.EAI_SERVICE, "Servname not supported"), False),
            (OSError(errno.ENETUNREACH, "Network is unreachable"), True),
            (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), False),
            (FileNotFoundError(errno.ENOENT, "no"), False),
        ):
            self.assertEqual(hints._is_of_network(error), is_of_network, error)


@unittest.skipUnless(can_part_from_network(), "needs root, for a namespace without a network")
class WithoutNetwork(unittest.TestCase):
    def setUp(self):
        self.kernel = Kernel(prefix=("unshare", "-n"))
        self.addCleanup(self.kernel.close)
        self.kernel.start()

    def test_a_network_that_is_not_there_is_told_once(self):
        for code, kind in (
            ("import socket\nsocket.create_connection(('192.0.2.1', 80), 5)", "OSError"),
            ("import socket\nsocket.getaddrinfo('example.invalid', 80)", "socket.gaierror"),
            ("import urllib.request\nurllib.request.urlopen('http://192.0.2.1/', timeout=5)", "urllib.error.URLError"),
            ("import http.client\nhttp.client.HTTPConnection('192.0.2.1').request('GET', '/')", "OSError"),
            ("import asyncio\nawait asyncio.open_connection('192.0.2.1', 80)", "OSError"),
        ):
            with self.subTest(code):
                exception = self.kernel.run(code).end["exception"]
                self.assertEqual(exception["type"], kind)
                self.assertEqual(exception["traceback"].count("hint: "), 1)
                self.assertIn("\n\n" + NETWORK, exception["traceback"])
                self.assertTrue(exception["traceback"].endswith("for packages\n"))

    def test_what_is_refused_on_this_machine_is_no_matter_of_the_network(self):
        exception = self.kernel.run("open('/no/such/file')").end["exception"]
        self.assertNotIn("hint: ", exception["traceback"])


if __name__ == "__main__":
    unittest.main()
