"""What cells see and leave behind: the session laws."""

import os
import signal
import time

from harness import KernelTest


class SessionLaws(KernelTest):
    def test_seeded_values_are_readable(self):
        self.kernel.configure({"a": 123, "b": [1, 2, 3]})
        self.assertEqual(self.value("a, b"), "(123, [1, 2, 3])")

    def test_bindings_persist_from_cell_to_cell(self):
        self.run_ok("x = 41\nimport math\ndef f(): return x + 1")
        self.assertEqual(self.value("f(), math.floor(2.5)"), "(42, 2)")

    def test_what_code_made_of_the_seed_stays_unless_it_is_given_anew(self):
        seed = {"a": 1, "b": [1], "c": 1}
        self.kernel.configure(seed)
        self.run_ok("a = 2\nb.append(2)\ndel c")
        self.kernel.configure({**seed, "d": 4}, tools=[{"name": "t", "description": "", "parameters": {}}])
        self.assertEqual(self.value("a, b, 'c' in globals(), d"), "(2, [1, 2], False, 4)")
        # Another value is a new one, and so is one that is said to be.
        self.kernel.configure({**seed, "c": 5}, given=["b"])
        self.assertEqual(self.value("a, b, c"), "(2, [1], 5)")
        # A process that dies leaves the state before the cell; a fresh one has the whole seed.
        self.kernel.run("import os; os._exit(1)")
        self.assertEqual(self.value("a, b, c"), "(2, [1], 5)")

    def test_rebinding_a_seeded_name_sticks(self):
        self.kernel.configure({"a": 123})
        self.run_ok("a += 100000")
        self.assertEqual(self.value("a"), "100123")

    def test_a_cell_of_several_statements_runs_whole(self):
        run = self.run_ok("total = 0\nfor i in range(5):\n    total += i\nprint(total)\ntotal * 2")
        self.assertEqual((run.stdout, run.value), ("10\n", "20"))

    def test_printed_text_keeps_its_newline_and_nothing_is_added(self):
        self.assertEqual(self.run_ok("print(2)").both, "2\n")
        self.assertEqual(self.run_ok("x = 2").both, "")

    def test_a_syntax_error_leaves_the_session_as_it_was(self):
        self.run_ok("x = 1")
        run = self.kernel.run("x = 2\nprint('never')\ndef f(:")
        self.assertEqual((run.end["status"], run.end["reason"], run.end["exit_code"]), ("failure", "syntax", 0))
        exception = run.end["exception"]
        self.assertEqual(exception["type"], "SyntaxError")
        self.assertIn('File "<cell 2>", line 3', exception["traceback"])
        self.assertIn("^", exception["traceback"])
        self.assertNotIn("belljar_kernel", exception["traceback"])
        self.assertEqual(self.value("x"), "1")

    def test_null_bytes_in_the_source_are_a_syntax_failure(self):
        run = self.kernel.run("x = 1\0")
        self.assertEqual((run.end["status"], run.end["reason"]), ("failure", "syntax"))

    def test_an_exception_leaves_the_state_as_at_the_exception(self):
        run = self.kernel.run("a = 123\nb = 0\nc = a / b")
        self.assertEqual((run.end["status"], run.end["reason"], run.end["exit_code"]), ("failure", "exception", 0))
        exception = run.end["exception"]
        self.assertEqual(exception["type"], "ZeroDivisionError")
        self.assertEqual(exception["value"], "division by zero")
        self.assertEqual(exception["repr"], "ZeroDivisionError('division by zero')")
        self.assertEqual(self.value("a, b, 'c' in globals()"), "(123, 0, False)")

    def test_an_interrupt_raises_keyboard_interrupt_and_keeps_the_state(self):
        run = self.kernel.submit("x = 5\nprint('ready')\nwhile True: pass")
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="interrupt", cell=run.cell)
        self.kernel.finish(run)
        self.assertEqual((run.end["status"], run.end["reason"]), ("interrupted", "by_user"))
        self.assertEqual(run.end["exception"]["type"], "KeyboardInterrupt")
        self.assertEqual(self.value("x"), "5")

    def test_an_interrupt_of_an_ended_cell_is_ignored(self):
        self.run_ok("x = 1")
        for _ in range(20):
            self.kernel.send(type="interrupt", cell=1)
            self.assertEqual(self.value("x"), "1")

    def test_an_interrupt_right_behind_a_cell_reaches_it(self):
        for mode in ("main", "fork") * 10:
            run = self.kernel.submit("while True: pass", mode=mode)
            self.kernel.send(type="interrupt", cell=run.cell)
            self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")

    def test_an_interrupt_ends_a_sleep_at_once(self):
        run = self.kernel.submit("import time\nprint('ready')\ntime.sleep(60)")
        self.kernel.wait_for_output(run, "ready\n")
        started = time.monotonic()
        self.kernel.send(type="interrupt", cell=run.cell)
        self.kernel.finish(run)
        self.assertLess(time.monotonic() - started, 5)
        self.assertEqual(run.end["status"], "interrupted")

    def test_tracebacks_show_only_frames_of_the_user(self):
        run = self.kernel.run(
            "import json\ntry:\n    json.loads('{')\nexcept ValueError as e:\n    raise KeyError(1) from e"
        )
        shown = run.end["exception"]["traceback"]
        self.assertNotIn("belljar_kernel", shown)
        self.assertTrue(shown.startswith("Traceback (most recent call last):\n"))
        self.assertIn("json.loads('{')", shown)
        self.assertIn("direct cause", shown)
        self.assertIn("decoder.py", shown)  # libraries below the cell stay

    def test_a_traceback_shows_source_lines_of_earlier_cells(self):
        self.run_ok("def broken(n):\n    return 1 / n  # the culprit")
        self.run_ok("import linecache; linecache.checkcache()")
        shown = self.kernel.run("broken(0)").end["exception"]["traceback"]
        self.assertIn('File "<cell 1>", line 2, in broken', shown)
        self.assertIn("# the culprit", shown)
        self.assertIn('File "<cell 3>", line 1', shown)

    def test_nested_exec_does_not_disturb_the_cell(self):
        self.kernel.tools["twice"] = lambda x: x * 2
        self.kernel.configure(tools=[{"name": "twice", "description": "", "parameters": {}}])
        run = self.run_ok(
            "import io, contextlib\nbuffer = io.StringIO()\nwith contextlib.redirect_stdout(buffer):\n"
            "    exec('print(1); y = twice(x=4)')\nprint('outer')\nbuffer.getvalue(), y"
        )
        self.assertEqual((run.stdout, run.value), ("outer\n", "('1\\n', 8)"))


class CellValues(KernelTest):
    def test_the_last_expression_is_the_result(self):
        run = self.run_ok("x = 3\nx * 2")
        self.assertEqual(run.end["result"], {"repr": "6", "type": "int", "mime": {}})
        self.assertEqual(self.value("_"), "6")
        self.assertIsNone(self.run_ok("None").end["result"])
        self.assertIsNone(self.run_ok("x = 1").end["result"])
        self.assertIsNone(self.run_ok("").end["result"])

    def test_a_semicolon_behind_the_last_expression_hushes_it(self):
        for code in ("5;", "x = 1; (x) ; # done", "'é;' ;\n\n", "1\r\n2;\r\n", '"""a\nb""";'):
            with self.subTest(code=code):
                self.assertIsNone(self.run_ok(code).end["result"])
        self.assertEqual(self.run_ok("1; 2 # 3;").value, "2")
        self.assertEqual(self.run_ok("1;\n';'").value, "';'")

    def test_an_expression_cell_takes_one_expression_only(self):
        self.assertEqual(self.run_ok(" 1 + 1 ", expression=True).value, "2")
        run = self.kernel.run("x = 1", expression=True)
        self.assertEqual((run.end["status"], run.end["reason"]), ("failure", "syntax"))

    def test_a_failing_repr_does_not_fail_the_cell(self):
        run = self.run_ok("class Bad:\n    def __repr__(self): raise ValueError\nBad()")
        self.assertEqual(run.end["result"]["repr"], "<repr failed: ValueError>")
        self.assertEqual(run.end["result"]["type"], "Bad")

    def test_long_reprs_are_cut(self):
        for code in ("'x' * 10**6", "list(range(10**6))", "dict.fromkeys(range(10**6))"):
            self.assertEqual(len(self.value(code)), 20_000)

    def test_rich_forms_of_the_result(self):
        run = self.run_ok(
            "class Rich:\n"
            "    def _repr_html_(self): return '<b>hi</b>'\n"
            "    def _repr_png_(self): return b'\\x89PNG'\n"
            "    def _repr_json_(self): return {'a': [1, None]}\n"
            "    def _repr_latex_(self): raise RuntimeError\n"
            "    def _repr_markdown_(self): return 'x' * 10**8\n"
            "    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/x': 'y', 'text/plain': 'z'}\n"
            "Rich()"
        )
        self.assertEqual(
            run.end["result"]["mime"],
            {"text/x": "y", "text/html": "<b>hi</b>", "image/png": "iVBORw==", "application/json": {"a": [1, None]}},
        )

    def test_surrogates_do_not_break_the_answer(self):
        run = self.run_ok("print('a\\udc80b'); '\\udc80'")
        self.assertEqual(run.stdout, "a\\udc80b\n")
        self.kernel.run("raise ValueError('\\ud800')")
        self.assertEqual(self.value("1"), "1")

    def test_nan_stays_inside(self):
        run = self.run_ok("class N:\n    def _repr_json_(self): return float('nan')\nN()")
        self.assertEqual(run.end["result"]["mime"], {})
        self.assertEqual(self.value("float('nan')"), "nan")

    def test_name_is_main_and_pickles_find_their_class(self):
        self.assertEqual(self.value("__name__"), "'__main__'")
        self.assertEqual(self.value("class P: pass\nimport pickle\ntype(pickle.loads(pickle.dumps(P()))) is P"), "True")
        self.assertEqual(self.value("'config' not in globals()"), "True")

    def test_input_says_why_it_cannot(self):
        run = self.kernel.run("input('name? ')")
        self.assertEqual(run.end["exception"]["type"], "InputNotAvailable")
        self.assertIn("cannot read input", run.end["exception"]["value"])
        self.assertEqual(self.value("import sys; sys.stdin.read()"), "''")


class Endings(KernelTest):
    def test_sys_exit_variants(self):
        for code, expected in (
            ("sys.exit()", ("success", "exit0", 0)),
            ("sys.exit(0)", ("success", "exit0", 0)),
            ("sys.exit(3)", ("failure", "exit", 3)),
            ("sys.exit('bad luck')", ("failure", "exit", 1)),
            ("raise SystemExit", ("success", "exit0", 0)),
            ("exit(4)", ("failure", "exit", 4)),
        ):
            run = self.kernel.run("import sys\nkept = 1\n" + code)
            self.assertEqual((run.end["status"], run.end["reason"], run.end["exit_code"]), expected, code)
            if "luck" in code:
                self.assertEqual(run.stderr, "bad luck\n")
        self.assertEqual(self.value("kept"), "1")

    def test_the_place_of_an_error_is_marked(self):
        if self.value("import sys; sys.version_info >= (3, 11)") == "True":
            for code in ("1/0", "x = 1\n1/0", "1/0\n"):
                self.assertIn("\n    1/0\n    ~^~\n", self.kernel.run(code).end["exception"]["traceback"])

    def test_deep_recursion_is_a_failure(self):
        run = self.kernel.run("def f(n):\n    return f(n + 1)\nf(0)")
        self.assertEqual((run.end["status"], run.end["exception"]["type"]), ("failure", "RecursionError"))
        run = self.kernel.run("def g():\n    try:\n        g()\n    finally:\n        1/0\ng()")
        self.assertEqual(run.end["status"], "failure")
        run = self.kernel.run("import sys\nsys.setrecursionlimit(60)\ndef h(): h()\nh()")
        self.assertEqual((run.end["status"], run.end["exception"]["type"]), ("failure", "RecursionError"))

    def test_memory_error_is_a_failure(self):
        run = self.kernel.run("raise MemoryError")
        self.assertEqual(run.end["exception"]["type"], "MemoryError")

    def test_exceptions_that_cannot_describe_themselves(self):
        run = self.kernel.run(
            "class Sly(Exception):\n    def __str__(self): raise SystemExit(9)\n    def __repr__(self): return 7\nraise Sly()"
        )
        self.assertEqual(run.end["exception"]["type"], "Sly")
        self.assertEqual(run.end["exception"]["repr"], "<repr failed: TypeError>")
        for raised in ("GeneratorExit", "BaseException('x')"):
            self.assertEqual(self.kernel.run(f"raise {raised}").end["status"], "failure")

    def test_exception_groups_hide_the_kernel_too(self):
        if self.value("import sys; sys.version_info >= (3, 11)") == "False":
            self.skipTest("no exception groups")
        run = self.kernel.run("raise ExceptionGroup('g', [ValueError(1), TypeError(2)])")
        self.assertIn("ValueError: 1", run.end["exception"]["traceback"])
        self.assertNotIn("belljar_kernel", run.end["exception"]["traceback"])

    def test_long_tracebacks_are_cut_in_the_middle(self):
        run = self.kernel.run("raise ValueError('x' * 10**6)")
        self.assertLessEqual(len(run.end["exception"]["traceback"]), 40_000)
        self.assertEqual(len(run.end["exception"]["value"]), 10_000)
        self.assertTrue(run.end["exception"]["traceback"].startswith("Traceback"))

    def test_unpicklable_things_stay_alive(self):
        self.run_ok("import threading\nf = open('/dev/null')\nlock = threading.Lock()\ng = lambda: (f, lock)")
        self.assertEqual(self.value("g() == (f, lock) and not f.closed"), "True")

    def test_a_failure_with_an_open_file_reports_the_first_error(self):
        run = self.kernel.run("f = open('x.txt', 'w')\nb'\\x94'.decode('ascii')")
        self.assertEqual(run.end["exception"]["type"], "UnicodeDecodeError")


class HostileCells(KernelTest):
    def test_modules_of_the_workspace_do_not_replace_those_of_the_kernel(self):
        for name in ("json", "traceback", "asyncio", "socket", "inspect"):
            with open(os.path.join(self.kernel.workspace, name + ".py"), "w", encoding="ascii") as file:
                file.write("raise RuntimeError('shadow')\n")
        with open(os.path.join(self.kernel.workspace, "mine.py"), "w", encoding="ascii") as file:
            file.write("value = 42\n")
        self.assertEqual(self.value("import mine; mine.value"), "42")
        self.assertEqual(self.kernel.run("1/0").end["exception"]["type"], "ZeroDivisionError")
        self.assertEqual(self.kernel.run("import asyncio\nawait asyncio.sleep(0)\n5").value, "5")

    def test_a_module_written_by_a_cell_can_be_imported_by_the_next(self):
        for number in range(5):
            self.run_ok(f"open('fresh{number}.py', 'w').write('v = {number}')")
            self.assertEqual(self.value(f"import fresh{number}; fresh{number}.v"), str(number))

    def test_replaced_builtins_do_not_reach_the_kernel(self):
        self.run_ok(
            "import builtins, json, os\nbuiltins.len = builtins.isinstance = builtins.print = lambda *a: 1 / 0\n"
            "builtins.open = builtins.repr = builtins.str = None\njson.dumps = json.loads = json.JSONEncoder = None\n"
            "os.write = os.getpid = os.dup2 = None"
        )
        self.assertEqual(self.value("1 + 1"), "2")
        self.assertEqual(self.kernel.run("1/0").end["exception"]["type"], "ZeroDivisionError")

    def test_a_trace_function_sees_cells_only(self):
        self.run_ok(
            "import sys\nseen = set()\ndef trace(frame, *a):\n    seen.add(frame.f_code.co_filename)\n"
            "    return trace\nsys.settrace(trace)"
        )
        self.run_ok("def f(): return 1\nf()")
        self.run_ok("sys.settrace(None)")
        self.assertEqual(
            self.value("[name for name in seen if 'belljar_kernel' in name and 'cells' not in name]"), "[]"
        )

    def test_a_raising_trace_function_is_survived(self):
        self.kernel.run("import sys\ndef trace(*a): raise RuntimeError('no')\nsys.settrace(trace)")
        self.kernel.run("(lambda: 1)()")
        self.kernel.run("sys.settrace(None)")
        self.assertEqual(self.value("2"), "2")

    def test_a_signal_handler_of_a_cell_does_not_outlive_it(self):
        self.run_ok("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
        run = self.kernel.submit("print('ready')\nwhile True: pass")
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="interrupt", cell=run.cell)
        self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")

    def test_a_child_that_falls_through_the_cell_stays_silent(self):
        run = self.run_ok("import os\npid = os.fork()\nif pid:\n    status = os.waitpid(pid, 0)[1]\npid > 0")
        self.assertEqual(run.value, "True")
        self.assertEqual(self.value("status"), "0")
        run = self.run_ok(
            "pid = os.fork()\nif not pid:\n    raise SystemExit(7)\nos.WEXITSTATUS(os.waitpid(pid, 0)[1])"
        )
        self.assertEqual(run.value, "7")

    def test_multiprocessing_works(self):
        run = self.run_ok(
            "import multiprocessing\ndef square(x): return x * x\n"
            "with multiprocessing.get_context('fork').Pool(2) as pool:\n    squares = pool.map(square, range(5))\nsquares"
        )
        self.assertEqual(run.value, "[0, 1, 4, 9, 16]")

    def test_waiting_for_children_never_sees_the_kernels(self):
        self.run_ok("x = 1", mode="fork")
        run = self.kernel.run("import os\nos.wait()")
        self.assertEqual(run.end["exception"]["type"], "ChildProcessError")

    def test_the_kernel_ignores_signals_between_cells(self):
        pid = int(self.value("import os; os.getpid()"))
        os.kill(pid, signal.SIGINT)
        self.assertEqual(self.value("os.getpid()"), str(pid))


class Await(KernelTest):
    def test_top_level_await(self):
        self.assertEqual(self.value("import asyncio\nawait asyncio.sleep(0, 'slept')"), "'slept'")
        self.assertEqual(self.value("x = await asyncio.sleep(0, 3)\nx + 1"), "4")
        self.assertEqual(self.value("async with asyncio.Lock():\n    y = 5\ny"), "5")

    def test_background_tasks_go_on_between_cells(self):
        self.run_ok(
            "import asyncio\nticks = 0\nasync def tick():\n    global ticks\n    while True:\n"
            "        ticks += 1\n        await asyncio.sleep(0.005)\ntask = asyncio.create_task(tick())\nawait asyncio.sleep(0)"
        )
        first = int(self.value("ticks"))
        self.wait_until(lambda: int(self.value("ticks")) > first + 5, "the task ticks on")
        self.run_ok("task.cancel()")

    def test_a_task_is_begun_in_one_cell_and_awaited_in_another(self):
        self.run_ok("import asyncio\nasync def late(value):\n    await asyncio.sleep(0.01)\n    return value")
        self.run_ok("task = asyncio.create_task(late(7))")
        self.assertEqual(self.value("await task"), "7")
        run = self.kernel.run("asyncio.get_running_loop()\n1/0")
        self.assertNotIn("belljar", run.end["exception"]["traceback"])
        self.run_ok("import subprocess\nsubprocess.run(['true'])\ntask = asyncio.create_task(late(6))")
        self.assertEqual(self.value("await task"), "6")
        self.run_ok("from asyncio import create_task\ntask = create_task(late(5))")
        self.assertEqual(self.value("await task"), "5")
        # Names like those of `asyncio` are not.
        self.assertEqual(self.value("all_tasks = [1]\nasyncio_like = late\ndef main(): return asyncio.run(late(all_tasks))\nmain()"), "[1]")
        # A loop of its own can only be run where none runs.
        self.assertEqual(
            self.value("loop = asyncio.new_event_loop()\nt = loop.create_task(late(8))\nloop.run_until_complete(t)"), "8"
        )
        self.assertEqual(self.value("asyncio.run(late(9))"), "9")

    def test_one_task_cannot_stop_the_others(self):
        self.run_ok(
            "import asyncio\nticks = 0\nasync def tick():\n    global ticks\n    while True:\n        ticks += 1\n"
            "        await asyncio.sleep(0.005)\nasync def leave():\n    await asyncio.sleep(0.02)\n    raise SystemExit\n"
            "async def stop():\n    await asyncio.sleep(0.04)\n    asyncio.get_running_loop().stop()\n"
            "tasks = [asyncio.create_task(each()) for each in (tick, leave, stop)]"
        )
        time.sleep(0.5)
        self.assertGreater(int(self.value("ticks")), 30)

    def test_a_cell_is_over_when_it_is_said_to_be(self):
        self.run_ok(
            "import asyncio\nasync def leave():\n    await asyncio.sleep(0.02)\n    raise SystemExit(7)\n"
            "async def stop():\n    await asyncio.sleep(0.04)\n    asyncio.get_running_loop().stop()"
        )
        run = self.kernel.run(
            "tasks = [asyncio.create_task(each()) for each in (leave, stop)]\n"
            "for n in range(10):\n    await asyncio.sleep(0.01)\nn"
        )
        self.assertEqual((run.end["status"], run.value), ("success", "9"), run.end)
        # One that takes no notice of its interrupt goes on, and is said to.
        run = self.kernel.submit(
            "print('ready')\nfor n in range(20):\n    try:\n        await asyncio.sleep(0.01)\n"
            "    except asyncio.CancelledError:\n        caught = n\nn"
        )
        self.kernel.wait_for_output(run, "ready\n")
        time.sleep(0.03)  # what was printed is here before `print` has returned
        self.kernel.send(type="interrupt", cell=run.cell)
        self.kernel.finish(run)
        self.assertEqual((run.end["status"], run.value), ("success", "19"), run.end)
        self.assertEqual(self.value("0 <= caught < 20"), "True")

    def test_a_child_of_a_background_task_leaves_the_loop_alone(self):
        self.run_ok(
            "import asyncio, os\nasync def fork():\n    await asyncio.sleep(0.02)\n    if os.fork() == 0:\n"
            "        await asyncio.sleep(60)\n    else:\n        os.wait()\n    return 'parent'\n"
            "task = asyncio.create_task(fork())"
        )
        time.sleep(0.2)
        for n in range(10):
            self.assertEqual(self.value(f"{n} + 1"), str(n + 1))
        self.assertEqual(self.value("await task"), "'parent'")

    def test_interrupts_do_not_break_the_loop(self):
        self.run_ok("import asyncio")
        for _ in range(15):
            run = self.kernel.submit("print('ready')\nwhile True: await asyncio.sleep(0)")
            self.kernel.wait_for_output(run, "ready\n")
            self.kernel.send(type="interrupt", cell=run.cell)
            self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")

    def test_servers_and_timers_go_on_between_cells(self):
        self.run_ok(
            "import asyncio, socket, threading\nasync def greet(reader, writer):\n    writer.write(b'hello')\n    writer.close()\n"
            "server = await asyncio.start_server(greet, '127.0.0.1', 0)\nplace = server.sockets[0].getsockname()\nheard = []\n"
            "asyncio.get_running_loop().call_later(0.02, heard.append, 'timer')\n"
            "def ask():\n    with socket.create_connection(place, 5) as s: heard.append(s.recv(10))\n"
            "threading.Timer(0.05, ask).start()"
        )
        time.sleep(0.3)
        self.assertEqual(self.value("sorted(map(str, heard))"), repr(["b'hello'", "timer"]))

    def test_asyncio_run_inside_a_cell(self):
        self.assertEqual(self.value("import asyncio\nasync def f(): return 9\nasyncio.run(f())"), "9")
        self.assertEqual(self.value("await f()"), "9")

    def test_a_closed_loop_is_replaced(self):
        self.run_ok("import asyncio\nawait asyncio.sleep(0)\nloop = asyncio.get_running_loop()")
        self.run_ok("loop.close()")
        self.assertEqual(self.value("await asyncio.sleep(0, 1)"), "1")

    def test_an_interrupt_cancels_an_awaiting_cell(self):
        run = self.kernel.submit("import asyncio\nprint('ready')\nawait asyncio.sleep(60)")
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="interrupt", cell=run.cell)
        self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")
        self.assertEqual(self.value("await asyncio.sleep(0, 1)"), "1")

    def test_an_exception_after_await_shows_only_the_cell(self):
        run = self.kernel.run("import asyncio\nawait asyncio.sleep(0)\n1/0")
        shown = run.end["exception"]["traceback"]
        self.assertNotIn("asyncio", shown.replace("import asyncio", ""))
        self.assertIn('File "<cell 1>", line 3', shown)

    def test_a_background_task_that_exits_does_not_end_the_worker(self):
        self.run_ok(
            "import asyncio, os\nasync def bad():\n    await asyncio.sleep(0.01)\n    raise SystemExit\n"
            "t = asyncio.create_task(bad())\npid = os.getpid()\nawait asyncio.sleep(0)"
        )
        self.wait_until(lambda: self.value("t.done()") == "True", "the task ends")
        self.assertEqual(self.value("pid == os.getpid()"), "True")
