"""Sandboxes that sleep, branch and move."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from belljar import AsyncSandbox, BadRequestError, NotFoundError, Sandbox

from .harness import WithDaemon


class BranchCases(WithDaemon):
    def test_a_sandbox_sleeps_and_wakes_as_it_was(self) -> None:
        with Sandbox.create() as box:
            box.run_code("x = [1]\ny = x\ndef double(n): return 2 * n")
            taken = box.snapshot("mine")
            self.assertEqual((taken.cell, taken.name, taken.missing), (1, "mine", {}))
            self.assertGreater(taken.bytes, 0)
            asleep = box.sleep()
            self.assertEqual((asleep.cell, asleep.missing, asleep.unsaved), (1, {}, False))
            self.assertIsNotNone(asleep.snapshot)
            self.assertEqual(box.info().state, "asleep")
            self.assertEqual(box.run_code("x is y, double(21)").text, "(True, 42)")

    def test_a_sandbox_that_sleeps_says_what_it_could_not_save(self) -> None:
        with Sandbox.create() as box:
            box.run_code("x = 1\nsteps = (n for n in range(3))")
            asleep = box.sleep()
            self.assertEqual((asleep.cell, list(asleep.missing)), (1, ["steps"]))
            self.assertIn("generator", asleep.missing["steps"])
            self.assertEqual(box.sleep(), asleep)
            self.assertEqual(box.run_code("x, 'steps' in globals()").text, "(1, False)")

    def test_branches_go_their_own_ways(self) -> None:
        with Sandbox.create() as box:
            box.files.write("in.txt", "shared")
            box.run_code("x = 1")
            box.run_code("x = 2")
            with box.branch() as one:
                self.assertEqual(one.run_code("x, open('in.txt').read()").text, "(2, 'shared')")
                one.run_code("x = 3; z = 0; open('in.txt', 'w').write('other!')")
                told = box.diff(one)
                self.assertEqual((told.added, told.changed, told.removed), (["z"], ["x"], []))
                self.assertEqual((told.changed_files, told.added_files, told.is_complete), (["in.txt"], [], True))
                self.assertEqual(box.run_code("x, open('in.txt').read()").text, "(2, 'shared')")
            self.assertNotIn(one.name, self.ground.sessions())
            with box.branch(at=1) as earlier:
                self.assertEqual(earlier.run_code("x").text, "1")
            box.snapshot("two")
            box.run_code("x = 9")
            with box.branch(snapshot="two") as saved:
                self.assertEqual(saved.run_code("x").text, "2")
            box.run_code("x = 2")
            three = box.branch("b", count=3)
            self.assertEqual([branch.name for branch in three], ["b-1", "b-2", "b-3"])
            for number, branch in enumerate(three):
                branch.run_code(f"x += {number}")
            self.assertEqual([branch.run_code("x").text for branch in three], ["2", "3", "4"])
            for branch in three:
                branch.kill()
            for wrong in (lambda: box.branch(count=0), lambda: box.branch(at=-1)):
                with self.assertRaises(BadRequestError):
                    wrong()
            with self.assertRaises(NotFoundError):
                box.diff("none")

    def test_a_sandbox_moves_in_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "moved.belljar"
            with Sandbox.create() as box:
                box.files.write("d/in.txt", "text")
                box.run_code("class A:\n    n = 5\na = A()")
                box.export(path)
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            with Sandbox.import_(path, "moved") as again:
                self.assertEqual(again.name, "moved")
                self.assertEqual(again.run_code("a.n, type(a) is A, open('d/in.txt').read()").text, "(5, True, 'text')")
            with Sandbox.import_(path, replay=True, trust=True) as again:
                self.assertEqual(again.run_code("a.n").text, "5")
            damaged = bytearray(path.read_bytes())
            damaged[1500] ^= 1
            path.write_bytes(damaged)
            with self.assertRaises(BadRequestError):
                Sandbox.import_(path)


class AsyncCases(WithDaemon, unittest.IsolatedAsyncioTestCase):
    async def test_the_same_for_asyncio(self) -> None:
        async with await AsyncSandbox.create() as box:
            await box.run_code("x = 1")
            await box.snapshot()
            asleep = await box.sleep()
            self.assertEqual((asleep.cell, asleep.missing, asleep.unsaved), (1, {}, False))
            two = await box.branch(count=2)
            self.assertEqual([(await branch.run_code("x")).text for branch in two], ["1", "1"])
            self.assertEqual((await two[0].diff(two[1])).changed, [])
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "moved.belljar"
                await box.export(path)
                async with await AsyncSandbox.import_(path, "moved") as again:
                    self.assertEqual((await again.run_code("x")).text, "1")
            for branch in two:
                await branch.kill()


class OnDocker(BranchCases):
    backend = "docker"


class OnBubblewrap(BranchCases):
    backend = "bubblewrap"


class AsyncOnBubblewrap(AsyncCases):
    backend = "bubblewrap"


del BranchCases, AsyncCases

if __name__ == "__main__":
    unittest.main()
