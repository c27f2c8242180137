"""Modules that are there from the start."""

from harness import KernelTest


class Preload(KernelTest):
    limits = {"checkpoints": 4}

    def preload(self, *imports, families=()):
        self.kernel.send(type="preload", request=3, imports=list(imports), families=list(families), bind=True)
        return self.kernel.expect("preloaded", request=3)

    def listed(self):
        return [variable["name"] for variable in self.kernel.variables(private=True)["variables"]]

    def test_imports_are_in_the_namespace_and_not_the_users(self):
        answer = self.preload("import json as j, os.path", "from math import sqrt, pi", "from string import *")
        self.assertEqual((answer["failed"], answer["skipped"]), ([], []))
        self.assertEqual(self.value("j.dumps([sqrt(4)]), os.path.sep, digits"), "('[2.0]', '/', '0123456789')")
        self.assertEqual(self.listed(), [])
        self.run_ok("pi = 3")
        self.assertEqual(self.listed(), ["pi"])

    def test_what_cannot_be_imported_is_told(self):
        answer = self.preload("import json", "import no_such_module", "import class")
        self.assertEqual([each["import"] for each in answer["failed"]], ["import no_such_module", "import class"])
        self.assertEqual(answer["failed"][0]["error"], "ModuleNotFoundError: No module named 'no_such_module'")
        self.assertIn("SyntaxError", answer["failed"][1]["error"])

    def test_a_family_is_imported_as_far_as_it_is_there(self):
        answer = self.preload(families=["stdlib"])
        self.assertGreater(answer["names"], 100)
        self.assertIn("winreg", [each["import"] for each in answer["skipped"]])
        self.assertEqual(self.value("statistics.mean([1, 3]), 'this' in globals()"), "(2, False)")
        self.assertEqual((self.listed(), self.kernel.idle_output), ([], []))

    def test_the_seed_wins_and_tools_yield_only_to_what_was_named(self):
        tools = [{"name": name, "description": "", "parameters": {}} for name in ("calendar", "random")]
        self.kernel.configure({"json": 1}, tools)
        self.preload("import json, random", families=["stdlib"])
        self.assertEqual(self.value("json, type(calendar).__name__, type(random).__name__"), "(1, 'Tool', 'module')")

    def test_a_cell_that_dies_and_undo_go_back_to_it(self):
        self.preload("import json")
        self.assertEqual(self.kernel.run("import os; del json; os._exit(1)").end["after"], {"restored": 0})
        self.assertEqual(self.value("json.__name__"), "'json'")
        self.run_ok("del json")
        self.kernel.send(type="undo", request=4, cells=1)
        self.kernel.expect("undone", request=4)
        self.assertEqual(self.value("json.__name__"), "'json'")

    def test_every_later_worker_has_it(self):
        self.preload("import json")
        self.kernel.send(type="reset", request=5)
        frames = sorted(self.kernel.next_frame()["type"] for _ in range(2))
        self.assertEqual(frames, ["preloaded", "reset_done"])
        self.assertEqual(self.value("json.__name__"), "'json'")

    def test_modules_that_are_not_bound_are_only_in_memory_and_only_in_this_worker(self):
        self.kernel.send(type="preload", request=7, imports=["import wave", "import no_such"], families=[], bind=False)
        self.assertEqual(len(self.kernel.expect("preloaded", request=7)["failed"]), 1)
        loaded = "__import__('sys').modules.keys() & {'wave'}, 'wave' in globals()"
        self.assertEqual(self.value(loaded), "({'wave'}, False)")
        self.assertEqual(self.kernel.run("import os; os._exit(1)").end["after"], {"restored": 1})
        self.assertEqual(self.value(loaded), "({'wave'}, False)")
        self.kernel.send(type="reset", request=8)
        self.kernel.expect("reset_done", request=8)
        self.assertEqual(self.value(loaded), "(set(), False)")

    def test_a_module_that_ends_the_process_is_given_up(self):
        self.run_ok("open('ends.py', 'w').write('import os; os._exit(3)')")
        self.kernel.send(type="preload", request=6, imports=["import ends"], families=[], bind=True)
        refused = self.kernel.expect("refused", request=6)
        self.assertIn("exit code 3", refused["message"])
        self.kernel.expect("worker_replaced", exit_code=3)
        self.assertEqual(self.value("1"), "1")

    def test_a_module_that_exits_or_forks_is_only_a_failure(self):
        self.run_ok("open('leaves.py', 'w').write('import sys; sys.exit(3)')")
        self.run_ok("open('forks.py', 'w').write('import os; os.fork()')")
        answer = self.preload("import leaves", "import forks")
        self.assertEqual([each["error"] for each in answer["failed"]], ["SystemExit: 3"])
        self.assertEqual(self.value("forks.__name__"), "'forks'")
