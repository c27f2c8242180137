"""Tools that run in the worker itself: code in code, and readers of variables."""

from harness import KernelTest


def spec(name, *parameters):
    properties = {each: {"type": "string"} for each in parameters}
    if "code" in "".join(parameters):
        properties["timeout"] = {"type": "number"}
    schema = {"type": "object", "properties": properties, "required": list(parameters), "additionalProperties": False}
    return {"name": name, "description": name, "parameters": schema, "local": True}


TOOLS = [
    spec("exec_code", "code"),
    spec("execute_python_code", "python_code_snippet"),
    spec("read_variable", "name"),
    spec("list_variables"),
]


class Nested(KernelTest):
    def setUp(self):
        super().setUp()
        self.kernel.configure({"seeded": 1}, TOOLS)

    def text(self, code):
        return eval(self.value(code))

    def test_what_is_printed_is_the_answer_and_nothing_is_sent(self):
        run = self.run_ok("answer = exec_code('print(1 + 1)')")
        self.assertEqual(run.both, "")
        self.assertEqual(self.text("answer"), "2\n")
        self.assertEqual(self.text("execute_python_code('x = 1')"), "")
        self.assertEqual(self.text("exec_code('import sys; print(1); print(2, file=sys.stderr); 3')"), "1\n2\n3\n")
        self.assertEqual(self.text("tools.exec_code('5')"), "5\n")
        self.assertEqual(self.kernel.seen_calls, [])

    def test_variables_are_those_of_the_cell(self):
        self.run_ok("a = 1\nexec_code('a = a + seeded; b = 5')\nc = a + b")
        self.assertEqual(self.value("a, b, c"), "(2, 5, 7)")

    def test_several_statements_run_whole(self):
        self.assertEqual(self.text("exec_code('for i in range(2):\\n    print(i)\\nprint(9)')"), "0\n1\n9\n")

    def test_an_exception_is_text_and_the_cell_goes_on(self):
        self.run_ok("def broken():\n    return 1 / 0")
        text = self.text("exec_code('kept = 1\\nprint(7)\\nbroken()')")
        self.assertTrue(text.startswith("7\nTraceback"), text)
        self.assertIn('File "<cell 2.1>", line 3', text)
        self.assertIn("return 1 / 0", text)
        self.assertIn("ZeroDivisionError", text)
        self.assertNotIn("belljar_kernel", text)
        self.assertEqual(self.value("kept"), "1")

    def test_a_syntax_error_is_text(self):
        self.assertIn("SyntaxError", self.text("exec_code('1 +')"))

    def test_an_exit_ends_only_the_nested_code(self):
        self.assertIn("SystemExit: 3", self.text("exec_code('import sys; sys.exit(3)')"))

    def test_code_has_its_own_timeout(self):
        endless = "kept = 1\nprint('begun')\nwhile True:\n    pass"
        text = self.text(f"exec_code({endless!r}, timeout=0.2)")
        self.assertEqual(text, "begun\nTimeoutError: the code was ended after 0.2 seconds\n")
        self.assertEqual(self.value("kept"), "1")
        # A call that blocks is ended too, and the cell goes on.
        run = self.run_ok("text = execute_python_code('import time; time.sleep(60)', timeout=0.2)\nprint('on')")
        self.assertEqual(run.stdout, "on\n")
        self.assertIn("TimeoutError", self.text("text"))
        # What ends in time is not disturbed, nor is what comes after.
        self.assertEqual(self.text("exec_code('5', timeout=0.2)"), "5\n")
        self.assertEqual(self.run_ok("import time; time.sleep(0.5); print(1)").stdout, "1\n")

    def test_the_outer_timeout_holds_for_code_in_code(self):
        inner = "exec_code('while True: pass', timeout=30)"
        self.assertIn("after 0.2 seconds", self.text(f"exec_code({inner!r}, timeout=0.2)"))
        outer = "print(exec_code('while True: pass', timeout=0.2)); print('on')"
        self.assertIn("after 0.2 seconds\n\non\n", self.text(f"exec_code({outer!r}, timeout=30)"))

    def test_code_that_catches_everything_is_ended_too(self):
        stubborn = "import time\ncaught = 0\nwhile caught < 2:\n    try:\n        time.sleep(60)\n    except BaseException:\n        caught += 1\ntime.sleep(60)"
        self.assertIn("TimeoutError", self.text(f"exec_code({stubborn!r}, timeout=0.2)"))

    def test_code_in_another_thread_has_its_own_timeout(self):
        run = self.run_ok(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "endless = 'print(1)\\nwhile True:\\n    pass'\n"
            "asleep = 'import time\\nwhile True:\\n    time.sleep(0.01)'\n"
            "stubborn = 'while True:\\n    try:\\n        while True:\\n            pass\\n    except ValueError:\\n        pass'\n"
            "deep = 'print(exec_code(\"while True: pass\", timeout=60))'\n"
            "quick = 'print(5)'\n"
            "codes = [endless, asleep, stubborn, deep, quick] * 2\n"
            "with ThreadPoolExecutor(10) as pool:\n"
            "    texts = list(pool.map(lambda code: exec_code(code, timeout=0.3), codes))\n"
            "print('on')\ntexts"
        )
        self.assertEqual(run.stdout, "on\n")
        late = "TimeoutError: the code was ended after 0.3 seconds\n"
        self.assertEqual(eval(run.value), ["1\n" + late, late, late, late, "5\n"] * 2)
        # What comes after is not disturbed.
        again = "with ThreadPoolExecutor(1) as pool:\n    print(pool.submit(exec_code, 'import time; time.sleep(0.5); 7').result())"
        self.assertEqual(self.run_ok("from concurrent.futures import ThreadPoolExecutor\n" + again).stdout, "7\n\n")

    def test_a_timeout_in_another_thread_spares_what_the_kernel_does(self):
        run = self.run_ok(
            "import threading, time\nfrom belljar_kernel.interrupts import Interrupts\n"
            "interrupts, seen = Interrupts(), []\n"
            "def busy(seconds):\n"
            "    end = time.monotonic() + seconds\n"
            "    while time.monotonic() < end:\n"
            "        pass\n"
            "def work():\n"
            "    alarm = interrupts.alarm(0.1)\n"
            "    try:\n"
            "        alarm.start()\n"
            "        with interrupts:\n"
            "            busy(0.4)\n"
            "            seen.append('whole')\n"
            "        busy(10)\n"
            "        seen.append('late')\n"
            "    except alarm.Expired:\n"
            "        alarm.stop()\n"
            "        seen.append('ended')\n"
            "    busy(1.5)\n"
            "    seen.append('on')\n"
            "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
            "seen"
        )
        self.assertEqual(run.value, "['whole', 'ended', 'on']")

    def test_a_timeout_has_to_be_a_number_above_zero(self):
        for wrong in ("0", "-1", "'1'", "True", "float('nan')"):
            run = self.kernel.run(f"exec_code('1', timeout={wrong})")
            self.assertIn(run.end["exception"]["type"], ("ValueError", "TypeError"), wrong)

    def test_an_interrupt_leaves_no_alarm(self):
        run = self.kernel.submit("print('ready')\nexec_code('while True: pass', timeout=0.5)")
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="interrupt", cell=run.cell)
        self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")
        self.assertEqual(self.run_ok("import time; time.sleep(1); print(1)").stdout, "1\n")

    def test_an_interrupt_is_for_the_cell(self):
        run = self.kernel.submit("print('ready')\nexec_code('while True: pass')")
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="interrupt", cell=run.cell)
        self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")
        self.assertEqual(self.run_ok("print('out')\nexec_code('print(1)')\nprint('again')").stdout, "out\nagain\n")

    def test_nested_runs_do_not_disturb_each_other(self):
        code = "print('a'); inner = exec_code('print(\"b\")'); print('c' + inner)"
        run = self.run_ok(f"outer = exec_code({code!r})\nprint('after')")
        self.assertEqual(run.stdout, "after\n")
        self.assertEqual(self.text("outer"), "a\ncb\n\n")

    def test_threads_get_their_own_output(self):
        run = self.run_ok(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "code = 'import time\\nfor _ in range(5):\\n    print({0}); time.sleep(0.002)'\n"
            "with ThreadPoolExecutor(8) as pool:\n"
            "    texts = list(pool.map(lambda i: exec_code(code.replace('{0}', str(i))), range(16)))\n"
            "print('end')\ntexts == [f'{i}\\n' * 5 for i in range(16)]"
        )
        self.assertEqual((run.value, run.stdout), ("True", "end\n"))
        self.assertEqual(self.value("import sys; type(sys.stdout).__name__"), "'TextIOWrapper'")

    def test_output_that_user_code_redirects_is_left_alone(self):
        self.run_ok(
            "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as f:\n"
            "    print('o')\n    t = exec_code('print(1)')\n    print('p')"
        )
        self.assertEqual(self.value("f.getvalue(), t"), "('o\\np\\n', '1\\n')")

    def test_top_level_await_works(self):
        self.assertEqual(self.text("exec_code('import asyncio\\nawait asyncio.sleep(0, 4)')"), "4\n")

    def test_depth_is_bounded(self):
        run = self.run_ok(
            "texts = []\ndef deeper():\n    texts.append(exec_code('deeper()'))\ndeeper()\n''.join(texts)"
        )
        self.assertIn("nested more than 16 deep", run.value)

    def test_output_is_bounded(self):
        self.run_ok("text = exec_code('print(\"x\" * 3000000)')")
        self.assertIn("left out", self.text("text[-60:]"))
        self.assertEqual(self.value("len(text) < 1_100_000"), "True")

    def test_it_can_wait_inside_of_a_cell_that_waits(self):
        nested = "exec_code('import asyncio\\nawait asyncio.sleep(0, 4)')"
        self.run_ok(f"import asyncio\nawait asyncio.sleep(0)\nfirst = {nested}\nsecond = await asyncio.sleep(0, 5)")
        self.assertEqual(self.value("first, second"), repr(("4\n", 5)))
        self.run_ok(f"async def inner(): return {nested}")
        self.assertEqual(self.value("asyncio.run(inner())"), repr("4\n"))
        self.assertEqual(self.value(f"await asyncio.to_thread(lambda: {nested})"), repr("4\n"))
        self.assertEqual(self.value("asyncio.current_task() is not None and await asyncio.sleep(0, 6)"), "6")

    def test_it_can_be_awaited(self):
        self.assertEqual(self.value("await tools.aio.exec_code('print(1)')"), "'1\\n'")

    def test_in_fork_cells_and_after_going_back(self):
        self.assertEqual(self.run_ok("exec_code('print(seeded)')", mode="fork").value, "'1\\n'")
        lost = self.kernel.run("exec_code('import os; os._exit(1)')")
        self.assertEqual(lost.end["type"], "cell_lost")
        self.assertEqual(self.text("exec_code('print(seeded)')"), "1\n")

    def test_variables_are_read_and_listed(self):
        self.run_ok("total = [1, 2]\nname = 'a\\x1b'")
        self.assertEqual(self.text("read_variable('total')"), "[1, 2]")
        self.assertEqual(
            self.text("list_variables()"), "name: str [2] = 'a\\x1b'\nseeded: int = 1\ntotal: list [2] = [1, 2]"
        )
        run = self.kernel.run("read_variable('gone')")
        self.assertEqual(run.end["exception"]["type"], "tools.ToolError")
        self.assertIn("name 'gone' is not defined", run.end["exception"]["value"])

    def test_names_that_nested_code_made_are_seen_by_the_readers(self):
        self.run_ok("exec_code('fresh = 8')")
        self.assertEqual(self.text("read_variable('fresh')"), "8")

    def test_a_local_tool_that_the_kernel_does_not_know_is_called(self):
        self.kernel.tools["other"] = lambda: 5
        self.kernel.configure(tools=[spec("other")])
        self.assertEqual(self.value("other()"), "5")
