"""The restricted policy, checked before a cell runs."""

from harness import KernelTest

EXEC = {
    "name": "exec_code",
    "description": "Runs code.",
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    "local": True,
}


class RestrictedPolicy(KernelTest):
    def run_restricted(self, code, **options):
        return self.kernel.run(code, restricted=True, **options)

    def check_refused(self, code, containing="", **options):
        run = self.run_restricted(code, **options)
        self.assertEqual((run.end["status"], run.end["reason"]), ("failure", "policy"), (code, run.end))
        self.assertEqual(run.end["exception"]["type"], "PolicyError")
        self.assertIn(containing, run.end["exception"]["value"])
        self.assertEqual(run.both, "", code)
        return run

    def check_runs(self, code, expected):
        run = self.run_restricted(code)
        self.assertEqual((run.end["status"], run.value), ("success", expected), (code, run.end))

    def test_rebinding_a_seeded_name_sticks(self):
        self.kernel.configure({"x": 1})
        self.check_runs("x = x + 1\nx", "2")
        self.check_runs("x", "2")
        self.assertEqual(self.value("x"), "2")

    def test_print_is_captured(self):
        run = self.run_restricted("print(1 + 1)")
        self.assertEqual((run.end["status"], run.stdout), ("success", "2\n"))

    def test_code_that_calculates_runs(self):
        for code, expected in (
            ("import math, statistics as s\nfrom collections import Counter\ns.mean([1, 3]) + math.floor(2.5)", "4"),
            ("class P:\n    def __init__(self, x):\n        self._x = x\nP(3)._x", "3"),
            ("def f(*a, **k):\n    global g\n    g = 1\n    return sorted(a, key=lambda v: -v)\nf(1, 2)", "[2, 1]"),
            ("'{} {:>3}'.format(1, 2) + f'{3!r}'", "'1   23'"),
            ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    t = str(e)\nt", "'division by zero'"),
            ("async def f(): return 5\nawait f()", "5"),
            ("[y := 3, __name__]", "[3, '__main__']"),
        ):
            self.check_runs(code, expected)

    def test_what_is_not_allowed_is_refused_before_anything_runs(self):
        for code in (
            "import os",
            "import os.path as math",
            "import json, sys",
            "from . import x",
            "from subprocess import run",
            "from json import codecs",
            "from math import *",
            "import math as __builtins__",
            "open('x')",
            "o = open",
            "exec('1')",
            "eval('1')",
            "compile('1', '', 'eval')",
            "__import__('os')",
            "__builtins__",
            "globals()['x']",
            "getattr(1, 'real')",
            "().__class__.__base__.__subclasses__()",
            "(lambda: 0).__globals__",
            "(x for x in ()).gi_frame",
            "import random; random._os",
            "import dataclasses; dataclasses.sys",
            "'{0.__class__}'.format(1)",
            "t = '{0.__class__}'; t.format(1)",
            "'{a.__class__}'.format_map({'a': 1})",
            "import operator; operator.attrgetter('x')",
            "import string; string.Formatter().vformat('', (), {})",
            "def f(__class__): pass",
            "def __builtins__(): pass",
            "class __x: pass",
            "try: pass\nexcept Exception as __builtins__: pass",
            "def f():\n    global __builtins__",
            "x.__class__ = 1",
            "del x.__dict__",
        ):
            self.check_refused("print('ran')\n" + code)

    def test_the_match_statement_reads_no_hidden_attributes(self):
        if self.value("import sys; sys.version_info >= (3, 10)") == "True":
            self.check_refused("match 1:\n    case object(__class__=c): pass", "__class__")

    def test_an_expression_is_checked_too(self):
        self.check_refused(" open('x')", "open", expression=True)
        run = self.run_restricted(" 1 + 1", expression=True)
        self.assertEqual(run.value, "2")

    def test_the_first_violation_is_told_with_its_line(self):
        run = self.check_refused("x = 1\ny = open\nz = exec", "`open`")
        self.assertIn('File "<cell 1>", line 2', run.end["exception"]["traceback"])
        self.assertIn("y = open", run.end["exception"]["traceback"])
        self.check_refused("import os", "allowed are: abc, ")

    def test_a_module_of_an_earlier_cell_is_refused(self):
        self.run_ok("import os as tool, math")
        self.check_refused("tool.getcwd()", "the module in `tool`")
        self.check_runs("math.floor(1.5)", "1")

    def test_a_syntax_error_is_one(self):
        run = self.run_restricted("open(")
        self.assertEqual(run.end["reason"], "syntax")

    def test_other_cells_are_free(self):
        self.check_refused("import os")
        self.run_ok("import os")

    def test_code_that_runs_nested_keeps_to_the_policy_of_its_cell(self):
        self.kernel.configure(tools=[EXEC])
        run = self.run_restricted("exec_code('import os')")
        self.assertIn("PolicyError", run.value)
        self.assertNotIn("os", self.value("sorted(n for n in globals() if n == 'os')"))
        self.assertEqual(self.value("exec_code('import os')"), "''")
