"""The list of variables."""

import json
import unittest

from harness import Kernel, KernelTest
from test_processes import UNSHARE, _can_unshare


class Variables(KernelTest):
    def listed(self, **options):
        answer = self.kernel.variables(**options)
        return {variable["name"]: variable for variable in answer["variables"]}

    def test_user_variables_are_listed_by_name(self):
        self.kernel.configure({"seeded": 1}, [{"name": "tool", "description": "", "parameters": {}}])
        self.run_ok("import math\nb = [1, 2]\na = 'text'\n_hidden = 1\ndef f(): pass\nclass C: pass\n5")
        answer = self.kernel.variables()
        self.assertEqual([variable["name"] for variable in answer["variables"]], ["C", "a", "b", "f", "seeded"])
        self.assertEqual(answer["total"], 5)
        listed = self.listed(private=True)
        self.assertIn("_hidden", listed)
        self.assertNotIn("_", listed)
        self.assertEqual((listed["b"]["preview"], listed["b"]["type"], listed["b"]["shape"]), ("[1, 2]", "list", "[2]"))
        self.assertEqual(listed["a"]["preview"], "'text'")
        self.assertGreater(listed["a"]["bytes"], 10)

    def test_what_python_notes_of_warnings_is_no_variable(self):
        self.run_ok("import warnings; warnings.simplefilter('default'); warnings.warn('x'); there = '__warningregistry__' in globals()")
        self.assertEqual(self.value("there"), "True")
        self.assertNotIn("__warningregistry__", self.listed(private=True))

    def test_the_names_that_a_value_has_are_told_and_asking_changes_nothing(self):
        code = "class C:\n    def __getattr__(self, name):\n        seen.append(name)\n        return {'k': 1, 2: 3}\n"
        self.run_ok(code + "seen = []\nc = C()\nc.alpha = 1\ntable = {'price': 1, '_own': 2, 3: 4}")
        self.assertEqual(list(self.listed(of="c")), ["alpha"])
        self.assertEqual(list(self.listed(of="table", keys=True)), ["price"])
        self.assertEqual(list(self.listed(of="table", keys=True, private=True)), ["price", "_own"])
        self.assertEqual(self.listed(of="c.other", keys=True), {})
        self.assertIn("upper", self.listed(of="str"))
        self.assertEqual(self.listed(of="nobody"), {})
        self.assertEqual(self.listed(of="c.alpha.beta"), {})
        self.assertEqual(self.value("seen"), "[]")
        # By this the daemon tells the answer from one of an earlier kernel, which does not know the question.
        self.assertEqual(self.kernel.variables(of="c")["of"], "c")
        self.assertNotIn("of", self.kernel.variables())

    def test_the_columns_of_a_table_are_its_keys(self):
        # As a data frame has them: `keys()` gives an index, which is no list, and columns may be numbers.
        code = (
            "class Index:\n    def __init__(self, *names): self.names = names\n    def __iter__(self): return iter(self.names)\n"
            "class Frame:\n    def __init__(self): self.columns = Index('price', 'unit price', 7, 'count')\n"
            "    def keys(self): return self.columns\n    def __dir__(self): return ['price', 'count', 'columns', 'keys']\n"
            "frame = Frame()"
        )
        self.run_ok(code)
        self.assertEqual(list(self.listed(of="frame", keys=True)), ["price", "unit price", "count"])
        self.assertEqual(list(self.listed(of="frame", keys=True, begins="un")), ["unit price"])
        self.assertEqual(list(self.listed(of="frame", begins="co")), ["columns", "count"])

    def test_of_many_names_those_are_told_that_begin_with_what_is_typed(self):
        self.run_ok("many = {f'a{n}': n for n in range(1000)} | {'zeros': 1, 'zip': 2, '_z': 3}")
        self.run_ok("wide = type('Wide', (), many)()")
        for of, keys in (("wide", False), ("many", True)):
            self.assertEqual(list(self.listed(of=of, keys=keys, begins="ze")), ["zeros"])
            self.assertEqual(len(self.listed(of=of, keys=keys)), 500)
        self.assertEqual(self.listed(of="wide", begins="_z"), {})
        self.assertEqual(list(self.listed(of="wide", begins="_z", private=True)), ["_z"])

    def test_on_the_way_to_a_value_no_code_runs(self):
        self.run_ok(
            "import os.path\nclass Inner:\n    leaf = 1\n    def method(self): pass\n"
            "class Outer:\n    __slots__ = ('slot', '__dict__')\n    nested = Inner\n"
            "    @property\n    def made(self):\n        open('ran', 'w').close()\n        return Inner()\n"
            "    def __getattr__(self, name):\n        return self.made\n"
            "o = Outer()\no.plain = o.slot = Inner()"
        )
        for of in ("o.made", "o.absent", "o.made.leaf"):
            self.assertEqual(self.listed(of=of, private=True), {}, of)
        self.assertEqual(self.value("os.path.exists('ran')"), "False")
        for of in ("o.plain", "o.slot", "o.nested", "Outer.nested"):
            self.assertEqual(list(self.listed(of=of)), ["leaf", "method"], of)
        self.assertIn("join", self.listed(of="os.path"))
        self.assertIn("__code__", self.listed(of="o.plain.method", private=True))

    def test_no_tool_is_called_for_who_asks_for_names(self):
        self.kernel.tools["tool"] = lambda: "called"
        self.kernel.configure({}, [{"name": "tool", "description": "", "parameters": {"type": "object"}}])
        self.run_ok(
            "class Calls:\n    def keys(self):\n        try:\n            return [tool()]\n"
            "        except ToolError as error:\n            return [error.code]\n"
            "    __dir__ = keys\n    def __repr__(self): return self.keys()[0]\nc = Calls()"
        )
        for keys in (True, False):
            self.assertEqual(list(self.listed(of="c", keys=keys)), ["busy"])
        self.assertEqual(self.listed()["c"]["preview"], "unavailable")
        self.assertEqual(self.kernel.seen_calls, [])
        self.assertEqual(self.value("c"), "called")

    def test_a_variable_that_takes_too_long_to_show_costs_only_itself(self):
        code = "import time\nclass Slow:\n    def __repr__(self): time.sleep(60)\n    def __len__(self):\n        while True: pass\n"
        self.run_ok(code + "a = 1\nslow = Slow()\nz = 2")
        listed = self.listed()
        self.assertEqual((listed["a"]["preview"], listed["z"]["preview"]), ("1", "2"))
        self.assertEqual((listed["slow"]["type"], listed["slow"]["shape"]), ("Slow", None))
        self.assertIn(listed["slow"]["preview"], ("<not shown>", "<repr failed: TimeoutError>"))

    def test_what_cells_made_of_given_values_stays_when_others_are_given(self):
        self.kernel.configure({"a": 1, "b": 1})
        self.run_ok("a = 2")
        self.kernel.configure({"a": 1, "b": 1, "c": 1}, given=["c"])
        self.assertEqual(self.value("a, b, c"), "(2, 1, 1)")
        self.run_ok("b = c = 3")
        self.kernel.configure({"a": 1, "b": 1, "c": 4}, given=["c"])
        self.assertEqual(self.value("a, b, c"), "(2, 3, 4)")
        self.kernel.send(type="reset", request=1)
        self.kernel.expect("reset_done")
        self.assertEqual(self.value("a, b, c"), "(1, 1, 4)")

    def test_imports_and_tools_are_listed_for_whoever_asks(self):
        self.kernel.configure({"seeded": 1}, [{"name": "tool", "description": "", "parameters": {}}])
        self.run_ok("import math\nfrom os import path, sep\na = 1")
        listed = self.listed(imports=True)
        self.assertLessEqual({"a", "math", "path", "seeded", "sep", "tool", "display"}, set(listed))
        self.assertEqual(listed["math"]["type"], "module")
        self.assertFalse([name for name in listed if name.startswith("_")])
        self.assertEqual(sorted(self.listed()), ["a", "seeded", "sep"])

    def test_replacing_an_injected_name_makes_it_a_variable(self):
        self.run_ok("display = 3")
        self.assertEqual(self.listed()["display"]["preview"], "3")

    def test_previews_are_short_and_cheap(self):
        self.run_ok(
            "big = list(range(10**6))\ntext = 'x' * 10**7\nnested = [[[[1]]]]\nloop = []\nloop.append(loop)\n"
            "table = {i: 'v' * 1000 for i in range(1000)}\none = (1,)\nempty = {}\nfrozen = frozenset({1})\n"
            # Its whole `repr` would take four times as much, and more than the copy may.
            "large = bytearray(b'x') * (60 * 2**20)"
        )
        listed = self.listed()
        self.assertTrue(all(len(variable["preview"]) <= 200 for variable in listed.values()))
        self.assertEqual(listed["big"]["shape"], "[1000000]")
        self.assertTrue(listed["big"]["preview"].startswith("[0, 1, 2"))
        self.assertTrue(listed["large"]["preview"].startswith("bytearray(b'xxx"))
        self.assertEqual(listed["one"]["preview"], "(1,)")
        self.assertEqual(listed["empty"]["preview"], "{}")
        self.assertEqual(listed["frozen"]["preview"], "frozenset({1})")
        self.assertEqual(listed["nested"]["preview"], "[[[…]]]")

    def test_arrays_are_summed_up_without_their_repr(self):
        self.run_ok(
            "class ndarray:\n    shape, dtype, nbytes = (3, 4), 'float64', 96\n    def __repr__(self): raise RuntimeError\n"
            "ndarray.__module__ = 'numpy'\nx = ndarray()"
        )
        self.assertEqual(
            self.listed()["x"],
            {
                "name": "x",
                "type": "numpy.ndarray",
                "preview": "numpy.ndarray (3, 4) float64",
                "bytes": 96,
                "shape": "(3, 4)",
            },
        )

    def test_objects_that_refuse_to_be_described(self):
        self.run_ok(
            "class Bad:\n    def __repr__(self): raise ValueError\n    def __len__(self): raise ValueError\n"
            "    def __sizeof__(self): raise ValueError\n    def __getattr__(self, name): raise RuntimeError\nbad = Bad()"
        )
        self.assertEqual(
            self.listed()["bad"],
            {"name": "bad", "type": "Bad", "preview": "<repr failed: ValueError>", "bytes": None, "shape": None},
        )

    def test_a_repr_that_dies_costs_only_its_variable(self):
        self.run_ok(
            "import os, signal\nclass Deadly:\n    def __repr__(self): os._exit(4)\n"
            "class Killed:\n    def __repr__(self): os.kill(os.getpid(), signal.SIGKILL)\n"
            "a = 1; d = Deadly(); e = 2; k = Killed(); z = 3"
        )
        listed = self.listed()
        self.assertEqual([listed[name]["preview"] for name in "aez"], ["1", "2", "3"])
        for name, kind in (("d", "Deadly"), ("k", "Killed")):
            self.assertEqual((listed[name]["type"], listed[name]["preview"][:10]), (kind, "<not shown"))
        self.assertEqual(self.value("a"), "1")

    def test_a_repr_that_forks_is_listed_once(self):
        self.run_ok(
            "import os, time\nclass Forks:\n    def __repr__(self): os.fork(); return 'forked'\n"
            "class Slow:\n    def __repr__(self): time.sleep(0.3); return 'slow'\na = Forks(); b = Slow(); c = 3"
        )
        answer = self.kernel.variables()
        self.assertEqual([each["name"] for each in answer["variables"]], ["Forks", "Slow", "a", "b", "c"])

    def test_many_that_die_cost_only_what_comes_after_them(self):
        self.run_ok("import os\nclass Deadly:\n    def __repr__(self): os._exit(4)\nfirst = 1")
        self.run_ok("for n in range(20): globals()[f'n{n:02}'] = Deadly()\nzuletzt = 2")
        answer = self.kernel.variables()
        self.assertEqual((len(answer["variables"]), answer["total"]), (24, 24))
        listed = {variable["name"]: variable["preview"] for variable in answer["variables"]}
        self.assertEqual((listed["first"], listed["n07"], listed["zuletzt"]), ("1", listed["n00"], "<not shown>"))

    def test_a_repr_that_ends_all_that_show_it_is_told(self):
        self.run_ok(
            "import os, signal\nkeep, guardian = 1, os.getppid()\nclass Deadly:\n    def __repr__(self):\n"
            "        if os.getppid() != guardian: os.kill(os.getppid(), signal.SIGKILL)\nd = Deadly()"
        )
        self.kernel.send(type="variables", request=8, private=False)
        self.kernel.expect("refused", request=8, code="not_listed")
        self.assertEqual(self.value("keep"), "1")


class FewVariables(KernelTest):
    limits = {"variables": 2}

    def test_the_listing_is_cut_and_counted(self):
        self.run_ok("a = b = c = d = 1")
        answer = self.kernel.variables()
        self.assertEqual(([variable["name"] for variable in answer["variables"]], answer["total"]), (["a", "b"], 4))


# Asks for an installation as `pip` does, by itself and by programs that lower their tag or leave parent and session.
SHOWN = r"""
import os, resource, socket, subprocess, sys, time
CLIENT = (
    "import resource, socket, sys\n"
    "if sys.argv[1:] == ['lower']: resource.setrlimit(resource.RLIMIT_RTTIME, (9, 9))\n"
    "client = socket.socket(socket.AF_UNIX)\n"
    "client.connect(chr(0) + 'belljar-requests')\n"
    "client.sendall(b'{\"name\": \"install_packages\", \"arguments\": {}}\\n')\n"
    "print(client.recv(10_000).decode(), flush=True)\n"
)
def ask(*words, lower=()):
    program = [*words, sys.executable, '-S', '-E', '-c', CLIENT, *lower]
    with open('said', 'w') as said: subprocess.run(program, stdout=said)
    while not open('said').read(): time.sleep(0.02)
    return open('said').read().strip()
class Shown:
    def __repr__(self):
        return '|'.join([ask(), ask(lower=['lower']), ask('setsid', '--fork')])
shown = Shown()
"""


@unittest.skipUnless(_can_unshare(), "needs a pid namespace")
class Viewers(KernelTest):
    """The guardian as pid 1, which serves programs."""

    limits = {"preview_chars": 2_000}

    def setUp(self):
        self.kernel = Kernel(limits=self.limits, prefix=(*UNSHARE, "--net"))
        self.addCleanup(self.kernel.close)
        self.assertTrue(self.kernel.start()["probe"]["is_init"])

    def test_what_shows_variables_calls_no_tool_by_its_programs_either(self):
        self.run_ok(SHOWN)
        listed = {variable["name"]: variable["preview"] for variable in self.kernel.variables()["variables"]}
        said = [json.loads(answer) for answer in listed["shown"].split("|")]
        self.assertEqual([answer["type"] for answer in said], ["tool_failed"] * 3)
        for answer in said:
            self.assertIn("only a cell can call tools", answer["error"]["message"])
        self.assertEqual(self.kernel.seen_calls, [])
