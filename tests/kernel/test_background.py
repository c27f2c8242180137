"""Background cells, threads of the main line with an output and an end of their own, and cells with names of their own."""

import unittest

from harness import KernelTest

SLOW = "import time\nwhile True:\n    time.sleep(0.01)"


class BackgroundTest(KernelTest):
    def setUp(self):
        super().setUp()
        self.runs = {}

    def begin(self, code, mode="background", **options):
        run = self.kernel.submit(code, mode=mode, **options)
        self.runs[run.cell] = run
        return run

    def take(self):
        """Take in one frame, of whichever cell it is."""
        frame = self.kernel.next_frame()
        run = self.runs.get(frame.get("cell"))
        if run is None:
            return frame
        if frame["type"] == "output":
            run.output.append((frame["stream"], frame["data"]))
            return frame
        run.frames.append(frame)
        if frame["type"] in ("cell_done", "cell_lost", "refused"):
            self.assertIsNone(run.end, "a cell ended twice")
            run.end = frame
        return frame

    def finish(self, *runs):
        while any(run.end is None for run in runs):
            self.take()
        return runs[0]

    def until(self, run, text):
        while text not in run.both:
            self.assertIsNone(run.end)
            self.take()

    def main(self, code):
        run = self.finish(self.begin(code, mode="main"))
        self.assertEqual(run.end.get("status"), "success", run.end)
        return run


class Threads(BackgroundTest):
    def test_its_descriptors_are_out_of_the_way_and_closes_no_file_of_the_session(self):
        code = "import os\nf = [os.open('/dev/null', 0) for _ in range(4)]\nprint('f', max(f) < 20)\n"
        code += "for n in range(900, 950):\n    try: os.close(n) if n > 906 else None\n    except OSError: pass\n"
        code += "held = []\nwhile len(held) < 40: held.append(os.dup2(f[0], 907 + len(held)))"
        run = self.finish(self.begin(code))
        self.assertEqual(run.end["status"], "success", run.end)
        self.main("import time; time.sleep(0.3)\nassert all(os.fstat(each) for each in [*f, *held])")

    def test_it_shares_the_variables_and_has_its_own_output_beside_a_running_cell(self):
        self.main("go, seen = False, []")
        beside = self.begin(
            "import sys, time\nprint('begun')\nwhile not go:\n    time.sleep(0.01)\n"
            "seen.append(go)\nprint('from the thread')\nprint('oops', file=sys.stderr)\n6 * 7"
        )
        self.until(beside, "begun\n")
        main = self.begin("go = 'now'\nimport time\nwhile not seen:\n    time.sleep(0.01)\nprint('main'); time.sleep(0.2)", mode="main")
        self.finish(beside, main)
        self.assertEqual((beside.stdout, beside.stderr, main.both), ("begun\nfrom the thread\n", "oops\n", "main\n"))
        self.assertEqual((beside.end["status"], beside.value), ("success", "42"))
        self.assertEqual(self.main("seen").value, "['now']")

    def test_writes_to_both_streams_keep_their_order_in_each_cell(self):
        code = "import sys\nfor n in range(200):\n    print(n, file=(sys.stdout, sys.stderr)[n % 2])"
        beside, main = self.begin(code), self.begin(code, mode="main")
        self.finish(beside, main)
        expected = "".join(f"{n}\n" for n in range(200))
        self.assertEqual((beside.both, main.both), (expected, expected))

    def test_displays_are_of_their_cell(self):
        beside = self.finish(self.begin("print('a')\ndisplay([1])\nprint('b')"))
        self.assertEqual([frame["type"] for frame in beside.frames], ["display", "cell_done"])
        self.assertEqual((beside.both, beside.displays[0]["text/plain"]), ("a\nb\n", "[1]"))

    def test_output_of_commands_of_the_shell_is_of_their_cell(self):
        self.assertEqual(self.finish(self.begin("!echo there")).both, "there\n")

    def test_an_exception_a_syntax_error_and_an_exit_are_told(self):
        failed = self.finish(self.begin("1 / 0"))
        self.assertEqual((failed.end["status"], failed.end["exception"]["type"]), ("failure", "ZeroDivisionError"))
        self.assertNotIn("background.py", failed.end["exception"]["traceback"])
        self.assertEqual(self.finish(self.begin("1 +")).end["reason"], "syntax")
        ended = self.finish(self.begin("import sys\nsys.exit(3)")).end
        self.assertEqual((ended["reason"], ended["exit_code"]), ("exit", 3))
        self.assertEqual(self.main("1").value, "1")

    def test_await_works_beside_a_cell_that_awaits(self):
        code = "import asyncio\nawait asyncio.sleep(0.2, 'x')"
        beside, main = self.begin(code), self.begin(code, mode="main")
        self.finish(beside, main)
        self.assertEqual((beside.value, main.value), ("'x'", "'x'"))

    def test_several_run_at_once_and_are_listed_to_the_next_daemon(self):
        runs = [self.begin(f"print({n})\n{SLOW}") for n in range(3)]
        for run, n in zip(runs, range(3), strict=True):
            self.until(run, f"{n}\n")
        self.kernel.hang_up()
        self.kernel.listen()
        hello = self.kernel.start()
        self.assertEqual((hello["running"], hello["last_cell"]), ([1, 2, 3], 3))
        self.kernel.send(type="interrupt", cell=2)
        self.assertEqual(self.finish(runs[1]).end["status"], "interrupted")

    def test_a_tool_can_be_called_from_it(self):
        self.kernel.tools["double"] = lambda n: 2 * n
        self.kernel.configure(tools=[{"name": "double", "description": "", "parameters": {"properties": {"n": {}}}}])
        self.assertEqual(self.finish(self.begin("double(n=21)")).value, "42")

    def test_restricted_code_is_checked(self):
        self.assertEqual(self.finish(self.begin("import os", restricted=True)).end["reason"], "policy")


class Scratch(KernelTest):
    """Cells with names of their own."""

    def test_it_sees_the_names_of_the_session_and_drops_its_own(self):
        self.run_ok("given, shared = 20, []")
        run = self.run_ok("given += 1\ndef twice():\n    return 2 * given\nshared.append(1)\nprint(twice())", mode="scratch")
        self.assertEqual(run.stdout, "42\n")
        self.assertEqual(self.value("given, shared, 'twice' in globals()"), "(20, [1], False)")

    def test_plain_assignments_of_it_are_not_repeated_after_a_loss(self):
        self.run_ok("x = 1")
        self.run_ok("x = 2", mode="scratch")
        run = self.kernel.run("import os\nos._exit(1)")
        self.assertEqual((run.end["after"], self.value("x")), ({"restored": 2}, "1"))

    def test_what_it_changed_is_kept_when_a_later_cell_dies(self):
        self.run_ok("shared = []")
        self.run_ok("shared.append(1)", mode="scratch")
        self.kernel.run("import os\nos._exit(1)")
        self.assertEqual(self.value("shared"), "[1]")

    def test_its_value_is_not_the_last_one_of_the_session(self):
        self.run_ok("5")
        self.assertEqual(self.run_ok("_ + 1", mode="scratch").value, "6")
        self.assertEqual(self.value("_"), "5")

    def test_await_works(self):
        self.assertEqual(self.run_ok("import asyncio\nawait asyncio.sleep(0, 7)", mode="scratch").value, "7")


class Ends(BackgroundTest):
    def test_an_interrupt_is_an_exception_in_its_thread_only(self):
        self.main("ended = []")
        beside = self.begin(f"try:\n    print('on')\n    {SLOW.replace(chr(10), chr(10) + '    ')}\nfinally:\n    ended.append(1)")
        self.until(beside, "on\n")
        main = self.begin("import time\ntime.sleep(0.5)\nx = 5", mode="main")
        self.kernel.send(type="interrupt", cell=beside.cell)
        self.finish(beside, main)
        self.assertEqual((beside.end["status"], beside.end["reason"]), ("interrupted", "by_user"))
        self.assertEqual((main.end["status"], self.main("x, ended").value), ("success", "(5, [1])"))

    def test_an_interrupt_reaches_it_while_the_first_thread_is_in_c_code(self):
        beside = self.begin(f"print('on')\n{SLOW}")
        self.until(beside, "on\n")
        main = self.begin("import time\ntime.sleep(3)", mode="main")
        self.kernel.send(type="interrupt", cell=beside.cell)
        self.finish(beside)
        self.assertIsNone(main.end)

    def test_a_kill_ends_it_by_an_exception_where_that_works(self):
        self.main("x = 1")
        beside = self.begin(f"print('on')\n{SLOW}")
        self.until(beside, "on\n")
        self.kernel.send(type="kill", cell=beside.cell, grace_ms=5000)
        end = self.finish(beside).end
        self.assertEqual((end["type"], end["killed"], end["after"], end["rolled_back"]), ("cell_lost", True, "kept", False))
        self.assertEqual(self.main("x").value, "1")

    def test_one_that_does_not_end_takes_the_main_line_back(self):
        self.main("x = 1")
        beside = self.begin(
            "x = 2\nprint('on')\nimport time\nwhile True:\n    try:\n        time.sleep(0.01)\n    except BaseException:\n        pass"
        )
        self.until(beside, "on\n")
        main = self.begin("print('main')\nimport time\ntime.sleep(60)", mode="main")
        self.until(main, "main\n")
        self.kernel.send(type="kill", cell=beside.cell, grace_ms=200)
        self.finish(beside, main)
        self.assertEqual((beside.end["killed"], beside.end["after"]), (True, {"restored": 1}))
        self.assertEqual((main.end["killed"], main.end["rolled_back"]), (False, True))
        self.assertEqual(self.main("x").value, "1")

    def test_a_rollback_by_another_cell_ends_it(self):
        beside = self.begin(f"print('on')\n{SLOW}")
        self.until(beside, "on\n")
        main = self.finish(self.begin("import os\nos._exit(3)", mode="main"))
        end = self.finish(beside).end
        self.assertEqual((end["type"], end["rolled_back"], end["killed"]), ("cell_lost", True, False))
        self.assertNotIn("rolled_back", main.end)

    def test_one_that_kills_its_process_alone_is_to_blame(self):
        self.main("x = 1")
        end = self.finish(self.begin("import os\nos._exit(3)")).end
        self.assertEqual((end["exit_code"], end["rolled_back"], end["after"]), (3, False, {"restored": 1}))
        self.assertEqual(self.main("x").value, "1")

    def test_an_undo_ends_it(self):
        self.main("x = 1")
        self.main("x = 2")
        beside = self.begin(f"print('on')\n{SLOW}")
        self.until(beside, "on\n")
        self.kernel.send(type="undo", request=7, cells=1)
        end = self.finish(beside).end
        self.assertEqual((end["rolled_back"], end["after"]), (True, {"restored": 1}))
        self.kernel.expect("undone", request=7)
        self.assertEqual(self.main("x").value, "1")

    def test_a_reset_ends_it(self):
        beside = self.begin(f"print('on')\n{SLOW}")
        self.until(beside, "on\n")
        self.kernel.send(type="reset", request=3)
        self.assertEqual(self.finish(beside).end["after"], "lost")
        self.kernel.expect("reset_done", request=3)

    def test_what_one_that_is_done_has_changed_is_not_lost(self):
        self.main("x = 1")
        self.assertEqual(self.finish(self.begin("x = 2")).end["status"], "success")
        main = self.finish(self.begin("import os\nos._exit(1)", mode="main"))
        self.assertEqual(main.end["after"], {"restored": 2})
        self.assertEqual(self.main("x").value, "2")

    def test_checkpoints_are_made_while_it_runs_and_know_nothing_of_its_thread(self):
        beside = self.begin(f"print('on')\n{SLOW}")
        self.until(beside, "on\n")
        self.main("x = 1")
        self.main("x = 2")
        main = self.finish(self.begin("import os\nos._exit(1)", mode="main"))
        self.finish(beside)
        self.assertEqual(main.end["after"], {"restored": 3})
        threads = self.main("import threading\nx, [each.name for each in threading.enumerate() if 'belljar' in each.name]")
        self.assertEqual(threads.value, "(2, [])")

    def test_an_end_that_its_code_forged_is_the_end_and_what_follows_is_not_shown(self):
        forge = (
            "import os, struct, sys, time\nprint('before')\n"
            "from belljar_kernel import wire\n"
            "control = next(fd for fd in range(800, 1000) if os.path.exists(f'/proc/self/fd/{fd}'))\n"
            "said = b'{\"status\":\"success\",\"reason\":\"ok\",\"exit_code\":0,\"result\":null,\"exception\":null,"
            "\"duration_ms\":0,\"displays_dropped\":0,\"live\":{\"threads\":0,\"tasks\":0,\"children\":0}}'\n"
            "os.write(control, wire.pack(wire.BACKGROUND_DONE, struct.pack('>Q', 1) + said))\n"
            "time.sleep(0.3)\nprint('after')\nok = True"
        )
        beside = self.finish(self.begin(forge))
        self.assertEqual((beside.end["status"], beside.both), ("success", "before\n"))
        self.assertEqual(self.main("1").value, "1")

    def test_a_worker_cannot_end_cells_that_are_not_its_own(self):
        self.main("1")
        forge = (
            "import os, struct\nfrom belljar_kernel import wire\n"
            "control = next(fd for fd in range(800, 1000) if os.path.exists(f'/proc/self/fd/{fd}'))\n"
            "os.write(control, wire.pack(wire.BACKGROUND_DONE, struct.pack('>Q', 99)))\nimport time\ntime.sleep(60)"
        )
        self.assertEqual(self.finish(self.begin(forge)).end["type"], "cell_lost")
        self.assertEqual(self.main("2").value, "2")


if __name__ == "__main__":
    unittest.main()
