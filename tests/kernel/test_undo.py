"""Undo, and the names that a cell would assign."""

import unittest

from checkpoint_harness import CheckpointTest
from harness import KernelTest, is_alive


class Undo(CheckpointTest):
    def count_up(self, cells):
        for _ in range(cells):
            self.run_ok(f"x = {self.kernel.next_cell + 1}")

    def test_three_cells_back_and_on_from_there(self):
        self.count_up(5)
        self.assertEqual(self.undo(3), {"type": "undone", "request": 8, "state_of": 2})
        self.assertEqual(self.value("x"), "2")  # cell 6
        self.assertEqual(self.undo(1)["state_of"], 2)
        self.assertEqual(self.undo(1)["state_of"], 1)
        self.assertEqual(self.undo(1)["state_of"], 0)
        self.assertEqual(self.value("'x' in globals()"), "False")

    def test_past_the_ring_it_says_how_far_it_reaches(self):
        self.count_up(2)
        refused = self.undo(3)
        self.assertEqual((refused["type"], refused["code"], refused["request"]), ("refused", "out_of_reach", 8))
        self.assertEqual(refused["message"], "undo reaches 2 cells back")
        self.assertEqual(self.value("x"), "2")

    def test_the_ring_bounds_it(self):
        for n in range(1, 13):
            self.run_ok(f"x = int({n})")  # a call: the cell may do anything, and needs a checkpoint
        self.wait_until(lambda: len(self.runners()) == 9, "the ring is trimmed")
        self.assertEqual(self.undo(8)["message"], "undo reaches 7 cells back")
        self.assertEqual(self.undo(7)["state_of"], 5)
        self.assertEqual(self.value("int(x)"), "5")
        self.wait_until(lambda: len(self.runners()) == 3, "the newer ones are dropped")

    def test_failed_cells_count_and_lost_and_fork_cells_do_not(self):
        self.run_ok("x = 1")
        self.kernel.run("x = 2; 1/0")
        self.lose("x = 3; import os; os._exit(1)")
        self.run_ok("x = 4", mode="fork")
        self.assertEqual(self.value("x"), "2")
        self.assertEqual(self.undo(2)["state_of"], 1)
        self.assertEqual(self.value("x"), "1")

    def test_nothing_is_no_number_of_cells(self):
        for cells in (0, -1):
            self.kernel.connection.send_text(f'{{"type": "undo", "request": 3, "cells": {cells}}}')
            self.assertEqual(self.kernel.expect("refused", request=3)["code"], "malformed")

    def test_a_cell_lost_after_an_undo_goes_back_to_where_that_led(self):
        self.count_up(4)
        self.undo(2)
        self.assertEqual(self.lose("import os; os._exit(1)").end["after"], {"restored": 2})
        self.assertEqual(self.undo(1)["state_of"], 1)

    def test_variables_asked_for_right_before_are_those_of_before(self):
        for n in range(12):
            self.run_ok(f"x = {n}; y = bytearray(8 << 20)")
            self.kernel.send(type="variables", request=1000 + n, private=False)
            self.kernel.send(type="undo", request=2000 + n, cells=1)
            answers = [self.kernel.next_frame(), self.kernel.next_frame()]
            self.assertEqual({answer["type"] for answer in answers}, {"variables", "undone"}, answers)
            listed = next(answer for answer in answers if answer["type"] == "variables")
            self.assertIn({"x": str(n)}, [{one["name"]: one["preview"]} for one in listed["variables"]])

    def test_variables_asked_for_right_before_a_reset_are_refused_at_once_or_there(self):
        for n in range(12):
            self.run_ok(f"x = {n}; y = bytearray(8 << 20)")
            self.kernel.send(type="variables", request=1000 + n, private=False)
            self.kernel.send(type="reset", request=2000 + n)
            answers = {}
            while answers.keys() != {1000 + n, 2000 + n}:
                answer = self.kernel.next_frame()
                answers[answer["request"]] = answer
            answer = answers[1000 + n]
            self.assertIn((answer["type"], answer.get("code")), [("variables", None), ("refused", "busy")])

    def test_resets_in_a_row_leave_a_worker_for_copies(self):
        for n in range(8):
            self.run_ok(f"x = {n}")
            for request in (1, 2, 3):
                self.kernel.send(type="reset", request=request)
            self.kernel.send(type="variables", request=4, private=False)
            answers = [self.kernel.next_frame() for _ in range(4)]
            self.assertEqual([each["type"] for each in answers], ["reset_done"] * 3 + ["variables"], answers)

    def test_processes_of_undone_cells_end(self):
        self.run_ok("import subprocess")
        first = int(self.value("subprocess.Popen(['sleep', '1000']).pid"))
        second = int(self.value("subprocess.Popen(['sleep', '1000']).pid"))
        self.undo(1)
        self.wait_until(lambda: not is_alive(second), "the second process ends")
        self.assertTrue(is_alive(first))

    def test_reset_drops_the_past(self):
        self.count_up(3)
        self.kernel.send(type="reset", request=2)
        self.kernel.expect("reset_done")
        self.assertEqual(self.undo(1)["message"], "there is nothing to undo")
        self.wait_until(lambda: len(self.runners()) == 2, "the old ones are gone")


class UndoWithGaps(CheckpointTest):
    def test_states_that_were_not_kept_are_told(self):
        self.run_ok("x = 1")
        # No descriptors are left for a copy while this state lasts.
        self.run_ok("import os\nheld = []\ntry:\n    while True: held.append(os.dup(0))\nexcept OSError: pass")
        self.assertFalse(self.run_ok("for fd in held: os.close(fd)").end["protected"])
        self.assertEqual(self.undo(1)["message"], "undo reaches 3 cells back, and of those only: 2, 3")
        self.assertEqual(self.undo(2)["state_of"], 1)


class Names(KernelTest):
    def names(self, code):
        self.kernel.send(type="names", request=4, code=code)
        return self.kernel.expect("names", request=4)["names"]

    def test_what_a_cell_could_assign(self):
        code = (
            "a = b = 1\n(c, [d, *e]), f.x, g[0] = 1\nh += 1\ni: int = 1\nj: int\nimport k.l, m as n\nfrom o import p as q\nfrom o import *\n"
            "for r in range(3):\n    s = 1\nwith t as u, v as (w, x): pass\ndef y(z): inner = 1\nclass A: inner = 2\n"
            "async def B(): pass\nif (C := 1): D = 2\nelse: E = 3\ntry: F = 1\nexcept G as H: I = 1\nfinally: J = 1\n"
            "del K\n[L for L in range(3) if (M := L)]\nlambda N: N\nwhile True: O = await P\ndef Q():\n    global R\n    R = 1\na = 2"
        )
        expected = "a b c d e h i k n q r s u w x y A B C D E F H I J K M O Q R".split()
        self.assertEqual(self.names(code), expected)

    @unittest.skipUnless(hasattr(__import__("ast"), "Match"), "needs Python 3.10")
    def test_captures_of_match(self):
        code = "match x:\n    case [a, *b] | {'k': c, **d}: pass\n    case int() as e: pass\n    case _: pass"
        self.assertEqual(self.names(code), ["a", "b", "c", "d", "e"])

    def test_code_that_does_not_parse_has_none(self):
        self.assertEqual(self.names("a = = 1"), [])
        self.assertEqual(self.names("a = '\0'"), [])
        self.assertEqual(self.names("-" * 100_000 + "1"), [])

    def test_they_are_bounded(self):
        self.assertEqual(len(self.names("\n".join(f"a{i} = 1" for i in range(1000)))), 200)

    def test_those_of_a_lost_cell_are_known_when_it_is_told(self):
        code = "import os\na = 1\nos._exit(1)"
        for _ in range(2):
            self.assertEqual(self.kernel.run(code).end["type"], "cell_lost")
            self.assertEqual(self.names(code), ["os", "a"])
        self.assertEqual(self.names("b = 2"), ["b"])

    def test_what_user_code_says_in_their_place_is_not_believed(self):
        for said in ("b'[1]'", "b'{}'", "b'[' * 9000", "b'x' * 100_000"):
            forge = f"import os, struct; os.write(900, struct.pack('>IB', len({said}), ord('B')) + {said}); os._exit(1)"
            self.assertEqual(self.kernel.run(forge).end["type"], "cell_lost")
            self.assertEqual(self.names(forge), ["os", "struct"])

    def test_it_works_while_a_cell_runs(self):
        run = self.kernel.submit("print('up')\nwhile True: pass")
        self.kernel.wait_for_output(run, "up\n")
        self.assertEqual(self.names("a = 1"), ["a"])
