"""Tools of the host, called from cells."""

import time

from harness import KernelTest, ToolProblem

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "the first"},
            "b": {"type": "integer"},
            "label": {"type": "string", "default": "sum"},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
ANY = {"name": "any_tool", "description": "", "parameters": {"type": "object"}}


class Tools(KernelTest):
    def setUp(self):
        super().setUp()
        self.kernel.tools["add"] = lambda a, b, label="": a + b
        self.kernel.tools["any_tool"] = lambda **arguments: arguments
        self.kernel.configure(tools=[ADD, ANY])

    def test_a_tool_returns_its_value(self):
        self.assertEqual(self.value("add(1, 2), add(a=3, b=4), tools.add(5, b=6)"), "(3, 7, 11)")
        self.assertEqual(self.kernel.seen_calls[0]["cell"], 1)
        self.assertEqual(self.kernel.seen_calls[0]["arguments"], {"a": 1, "b": 2})
        self.assertEqual(self.value("any_tool(x=[1, {'y': None}], z=2.5)"), "{'x': [1, {'y': None}], 'z': 2.5}")

    def test_positions_are_those_of_the_required_list(self):
        # The daemon tells the members of an object in the order of their names.
        numbers = {"a": {"type": "integer"}, "z": {"type": "integer"}}
        parameters = {"type": "object", "properties": numbers, "required": ["z", "a"]}
        self.kernel.tools["subtract"] = lambda z, a: z - a
        self.kernel.configure({}, [{"name": "subtract", "description": "", "parameters": parameters}])
        self.assertEqual(self.value("subtract(5, 3)"), "2")

    def test_a_tools_failure_is_raised(self):
        def fail(**_arguments):
            raise ToolProblem("failed", "no such thing")

        self.kernel.tools["any_tool"] = fail
        run = self.kernel.run("any_tool()")
        self.assertEqual(run.end["exception"]["type"], "tools.ToolError")
        self.assertIn("no such thing", run.end["exception"]["value"])
        self.assertNotIn("belljar_kernel", run.end["exception"]["traceback"])
        run = self.run_ok("try:\n    any_tool()\nexcept ToolError as e:\n    caught = e.code, e.message\ncaught")
        self.assertEqual(run.value, "('failed', 'no such thing')")
        self.assertEqual(self.value("tools.ToolError is ToolError"), "True")

    def test_tools_tell_about_themselves(self):
        self.assertEqual(
            self.value("import inspect; str(inspect.signature(add))"), "\"(a: int, b: int, label: str = 'sum') -> str\""
        )
        self.assertIn("the first", self.value("add.__doc__"))
        self.assertIn("stands for what the tool said", self.value("add.__doc__"))
        self.assertEqual(self.value("add.__annotations__['label'], add.__name__"), "(<class 'str'>, 'add')")
        self.assertEqual(self.value("repr(tools)"), "'<tools: add, any_tool>'")

    def test_types_of_all_kinds_are_told(self):
        item = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/item"}}}}
        spec = {
            "name": "typed",
            "description": "Does it.",
            "parameters": {
                "type": "object",
                "properties": {
                    "names": {"type": "array", "items": {"type": "string"}, "description": "who"},
                    "limit": {"type": ["integer", "null"], "default": None},
                    "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
                    "either": {"anyOf": [{"type": "number"}, {"type": "string"}]},
                    "tree": {"$ref": "#/$defs/item"},
                    "trees": {"type": "array", "items": {"$ref": "#/$defs/item"}},
                    "anything": {},
                    "lost": {"$ref": "#/$defs/none"},
                    "endless": {"$ref": "#/$defs/endless"},
                },
                "required": ["names"],
                "$defs": {"item": item, "endless": {"$ref": "#/$defs/endless"}},
            },
            "output": {"type": "array", "items": {"type": "integer"}},
        }
        self.kernel.configure(tools=[spec])
        hints = "{name: str(hint).replace('typing.', '') for name, hint in typed.__annotations__.items()}"
        self.assertEqual(
            eval(self.value(hints)),
            {
                "names": "list[str]",
                "limit": self.value("import typing; str(typing.Optional[int])")[1:-1].replace("typing.", ""),
                "kind": "<class 'str'>",
                "either": self.value("str(typing.Union[float, str])")[1:-1].replace("typing.", ""),
                "tree": "<class 'dict'>",
                "trees": "list[dict]",
                "return": "list[int]",
            },
        )
        text = eval(self.value("typed.__doc__"))
        for line in (
            "Does it.",
            "  names (list[str]): who",
            "  limit (int or None, optional)",
            "  kind (one of 'a', 'b', default 'a')",
            "  either (float or str, optional)",
            "  trees (list[dict], optional)",
            "  anything (optional)",
        ):
            self.assertIn(line, text.splitlines())
        self.assertNotIn("stands for what the tool said", text)
        self.assertEqual(
            self.value("import inspect; inspect.signature(tools.aio.typed) == inspect.signature(typed)"), "True"
        )

    def test_wrong_arguments_are_told_before_anything_is_sent(self):
        for code, said in (
            ("add(1)", "misses: b"),
            ("add(1, 2, 3, 4)", "positional"),
            ("add(1, 2, c=3)", "unexpected argument 'c'"),
            ("add(1, a=2)", "multiple values"),
            ("add(1, object())", "argument `b`"),
            ("add(1, float('nan'))", "argument `b`"),
            ("any_tool(x={1: 2})", "argument `x`"),
            ("deep = []\nfor i in range(200): deep = [deep]\nany_tool(x=deep)", "nested too deeply"),
        ):
            run = self.kernel.run(code)
            self.assertEqual(run.end["exception"]["type"], "TypeError", code)
            self.assertIn(said, run.end["exception"]["value"])
        run = self.kernel.run("any_tool(x='y' * (25 * 1024 * 1024))")
        self.assertEqual(run.end["exception"]["type"], "ValueError")
        self.assertEqual(self.kernel.seen_calls, [])

    def test_tools_from_threads(self):
        run = self.run_ok(
            "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as pool:\n"
            "    sums = list(pool.map(lambda i: add(i, i), range(50)))\nsums == [2 * i for i in range(50)]"
        )
        self.assertEqual(run.value, "True")
        self.assertEqual(len({frame["call"] for frame in self.kernel.seen_calls}), 50)

    def test_tools_awaited_at_once(self):
        self.assertEqual(
            self.value("import asyncio\nawait asyncio.gather(*(tools.aio.add(i, 1) for i in range(20)))"),
            repr(list(range(1, 21))),
        )
        self.assertEqual(self.value("async def f(): return add(1, 1)\nawait f()"), "2")

    def test_tools_in_fork_cells_and_call_numbers_are_unique(self):
        self.run_ok("add(1, 2)")
        self.assertEqual(self.run_ok("add(3, 4)", mode="fork").value, "7")
        self.run_ok("add(5, 6)")
        calls = [frame["call"] for frame in self.kernel.seen_calls]
        self.assertEqual(len(set(calls)), 3)
        self.assertTrue(all(0 <= call < 2**53 for call in calls))

    def test_an_interrupt_ends_a_waiting_call(self):
        del self.kernel.tools["any_tool"]
        run = self.kernel.submit("print('ready')\nany_tool()")
        self.kernel.wait_for_output(run, "ready\n")
        time.sleep(0.05)
        self.kernel.send(type="interrupt", cell=run.cell)
        self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")
        # Its late answer is dropped.
        self.kernel.send(type="tool_result", call=self.kernel.seen_calls[0]["call"], value=1)
        self.assertEqual(self.value("add(1, 1)"), "2")

    def test_a_call_that_is_not_waited_for_any_more_is_given_up(self):
        del self.kernel.tools["any_tool"]
        waits = "import asyncio\ntry:\n    await asyncio.wait_for(tools.aio.any_tool(), 0.05)\nexcept asyncio.TimeoutError: pass\n"
        self.assertEqual(self.value(waits + "add(1, 1)"), "2")
        first = self.kernel.seen_calls[0]["call"]
        self.assertEqual(self.kernel.given_up, [first])
        error = {"code": "cancelled", "message": "nobody waits for it"}
        self.kernel.send(type="tool_failed", call=first, error=error)
        # A child of the process that waits has a copy of the call, and is not asked.
        self.run_ok(
            "import os, signal\ndef handler(*_):\n    if os.fork() == 0: raise SystemError\n    os.wait()\n    raise InterruptedError\n"
            "signal.signal(signal.SIGALRM, handler)\nsignal.setitimer(signal.ITIMER_REAL, 0.1)\n"
            "try:\n    any_tool()\nexcept InterruptedError: pass\nexcept SystemError: os._exit(0)\nadd(1, 1)"
        )
        self.assertEqual(self.kernel.given_up, [first, self.kernel.seen_calls[2]["call"]])

    def test_a_plain_call_starts_no_thread(self):
        self.assertEqual(self.value("add(1, 1)\nimport threading\nthreading.active_count()"), "1")
        self.run_ok("await tools.aio.add(1, 1)")
        self.assertEqual(self.value("add(1, 1), await tools.aio.add(2, 2), threading.active_count()"), "(2, 4, 2)")

    def test_a_caller_that_still_waits_hands_out_the_answers_of_others(self):
        del self.kernel.tools["any_tool"]
        run = self.kernel.submit(
            "import threading, time\n"
            "threading.Thread(target=lambda: (time.sleep(0.1), print(add(1, 1)))).start()\nany_tool()"
        )
        self.kernel.wait_for_output(run, "2\n")
        waits = next(frame["call"] for frame in self.kernel.seen_calls if frame["name"] == "any_tool")
        self.kernel.send(type="tool_result", call=waits, value="late")
        self.assertEqual(self.kernel.finish(run).value, "'late'")

    def test_an_interrupted_caller_leaves_the_reading_to_the_next(self):
        del self.kernel.tools["any_tool"], self.kernel.tools["add"]
        self.run_ok(
            "import threading, time\nsums = []\n"
            "def later():\n    time.sleep(0.1)\n    print('asks', flush=True)\n    sums.append(add(1, 1))\n"
            "thread = threading.Thread(target=later)"
        )
        run = self.kernel.submit("thread.start()\nany_tool()")
        self.kernel.wait_for_output(run, "asks\n")
        time.sleep(0.05)
        self.kernel.send(type="interrupt", cell=run.cell)
        self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")
        call = next(frame["call"] for frame in self.kernel.seen_calls if frame["name"] == "add")
        self.kernel.send(type="tool_result", call=call, value=7)
        self.assertEqual(self.value("thread.join(5)\nsums"), "[7]")

    def test_calls_that_wait_long_side_by_side_all_get_their_answers(self):
        del self.kernel.tools["any_tool"]
        run = self.kernel.submit(
            "import threading\nfrom concurrent.futures import ThreadPoolExecutor\nawait tools.aio.add(1, 1)\n"
            "threading.Timer(2.3, print, ['late']).start()\n"  # longer than one turn
            "with ThreadPoolExecutor(6) as pool:\n"
            "    got = list(pool.map(lambda i: any_tool(i=i), range(6)))\ngot"
        )
        self.kernel.wait_for_output(run, "late\n")
        for frame in [frame for frame in self.kernel.seen_calls if frame["name"] == "any_tool"]:
            self.kernel.send(type="tool_result", call=frame["call"], value=frame["arguments"]["i"])
        self.assertEqual(self.kernel.finish(run).value, "[0, 1, 2, 3, 4, 5]")

    def test_a_signal_handler_may_call_a_tool_while_its_thread_waits_for_another(self):
        del self.kernel.tools["any_tool"]
        run = self.kernel.submit(
            "import signal\nsums = []\nsignal.signal(signal.SIGALRM, lambda *_: sums.append(any_tool(inner=True)))\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.3)\nimport threading\n"
            "threading.Timer(0.8, print, ['late']).start()\n(any_tool(inner=False), sums)"
        )
        self.kernel.wait_for_output(run, "late\n")
        calls = {frame["arguments"]["inner"]: frame["call"] for frame in self.kernel.seen_calls}
        self.kernel.send(type="tool_result", call=calls[False], value="outer")
        self.kernel.send(type="tool_result", call=calls[True], value="inner")
        self.assertEqual(self.kernel.finish(run).value, "('outer', ['inner'])")

    def test_a_thread_that_could_not_be_started_is_started_by_the_next_call(self):
        self.run_ok(
            "import threading\nstart = threading.Thread.start\ndef fail(self): raise RuntimeError('no thread')\n"
            "threading.Thread.start = fail\ntry:\n    await tools.aio.add(1, 1)\nexcept RuntimeError: pass\n"
            "threading.Thread.start = start"
        )
        self.assertEqual(self.value("await tools.aio.add(1, 1)"), "2")

    def test_a_call_without_a_cell_says_so(self):
        self.run_ok("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), add(1, 1))).start()")
        frame = self.kernel.receive()
        self.assertEqual((frame["type"], frame["cell"]), ("tool_call", None))
        self.kernel.send(type="tool_result", call=frame["call"], value=0)

    def test_answers_to_unknown_calls_are_ignored(self):
        for call in (5, 2**40, 2**53 - 1):
            self.kernel.send(type="tool_result", call=call, value=1)
        self.assertEqual(self.value("add(2, 2)"), "4")

    def test_a_child_process_cannot_call_tools(self):
        run = self.run_ok(
            "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    try: add(1, 2)\n"
            "    except ToolError as e: os.write(w, e.code.encode())\n    os._exit(0)\nos.wait()\nos.read(r, 100)"
        )
        self.assertEqual(run.value, "b'unavailable'")

    def test_seeded_names_win_over_tools(self):
        self.kernel.configure({"add": 5}, [ADD])
        self.assertEqual(self.value("add, tools.add(1, 1)"), "(5, 2)")

    def test_pythons_own_functions_win_over_tools(self):
        self.kernel.tools["print"] = lambda: "called"
        self.kernel.configure(tools=[{**ANY, "name": "print"}])
        self.assertEqual(self.run_ok("print(1)").stdout, "1\n")
        self.assertEqual(self.value("tools.print()"), "'called'")
        self.assertEqual(self.value("await tools.aio.print()"), "'called'")

    def test_a_new_configuration_replaces_the_tools(self):
        self.kernel.configure(tools=[{**ANY, "name": "other"}, {**ANY, "name": "not a name"}, {**ANY, "name": "class"}])
        self.assertEqual(
            self.value("'add' in globals(), 'other' in globals(), repr(tools)"), "(False, True, '<tools: other>')"
        )

    def test_a_large_result_arrives(self):
        self.kernel.tools["any_tool"] = lambda: "x" * 5_000_000
        self.assertEqual(self.value("len(any_tool())"), "5000000")


class ToolsInFlight(KernelTest):
    limits = {"tool_calls": 3}

    def test_integers_of_any_size_do_no_harm(self):
        self.kernel.configure({}, [{"name": "t", "description": "", "parameters": {"type": "object", "properties": {"n": {}}}}])
        self.run_ok("keep = 42")
        for code in ("t(n=10**400)", "t(n=[{'a': -2**63 - 1}])"):
            run = self.kernel.run(code)
            self.assertEqual((run.end["status"], run.end["exception"]["type"]), ("failure", "TypeError"))
        huge = "class H:\n  nbytes = 10**400\n  def __sizeof__(self): return 2**62\n  def _repr_json_(self): return {'a': 10**400}\nh = H()\ndisplay(h)\nh"
        run = self.kernel.run(huge)
        self.assertNotIn(str(10**400), str((run.end, run.displays)))
        self.kernel.variables()
        self.assertEqual(self.value("keep"), "42")

    def test_more_calls_than_allowed_wait_in_the_kernel(self):
        self.kernel.configure(tools=[ANY])
        run = self.kernel.submit(
            "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(10) as pool:\n"
            "    values = list(pool.map(lambda i: any_tool(i=i), range(10)))\nsorted(values)"
        )
        answered = 0
        while answered < 10:
            deadline = time.monotonic() + 10
            while len(self.kernel.seen_calls) < min(answered + 3, 10) and time.monotonic() < deadline:
                frame = self.kernel.receive()
                self.assertEqual(frame["type"], "tool_call")
                self.kernel.seen_calls.append(frame)
            with self.assertRaises(TimeoutError):
                self.kernel.receive(0.02)
            call = self.kernel.seen_calls[answered]
            self.kernel.send(type="tool_result", call=call["call"], value=call["arguments"]["i"])
            answered += 1
        self.assertEqual(self.kernel.finish(run).value, repr(list(range(10))))
