"""How `run.py` goes through the modules, with a ground that runs nothing.

    python3 -m unittest discover -s tests/cpython
"""

import contextlib
import io
import os
import pathlib
import subprocess
import tempfile
import threading
import time
import unittest

import results
import run


class Ground:
    """Gives the entries that it was made with, and notes what was asked for."""

    kind = "jail"

    def __init__(self, entries):
        self.entries, self.asked, self.at_once, self.most_at_once = entries, [], 0, 0
        self.lock = threading.Lock()

    def compare(self, worker, module, seconds):
        with self.lock:
            self.asked.append((module, seconds))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.05)
        with self.lock:
            self.at_once -= 1
        entry = self.entries[module]
        if isinstance(entry, BaseException):
            raise entry
        return entry


def entry(only=None):
    told = {"passed": 1, "end": "done"}
    return {"outside": told, "inside": told, "only_outside": only or {}, "tries": 1, "seconds": 0.0}


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.seen = results.Results(pathlib.Path(folder.name) / "results.json")

    def run_all(self, ground, wanted, seconds_left=60):
        self.seen.begin(ground.kind, "3.11.2", wanted)
        with contextlib.redirect_stderr(io.StringIO()) as told:
            run.Run(ground, self.seen, wanted, 10, time.monotonic() + seconds_left).all()
        return told.getvalue()

    def test_two_modules_run_at_a_time_and_what_differs_again_alone(self):
        ground = Ground({f"test_{name}": entry() for name in "abcdef"} | {"test_x": entry({"A.x": "failure"})})
        told = self.run_all(ground, list(ground.entries))
        self.assertIn("jail: test_x (0 s, 0 wait): 1 outside, 1 inside; outside only: A.x (failure)\n", told)
        self.assertEqual(ground.most_at_once, run.WORKERS)
        self.assertEqual(ground.asked[-1], ("test_x", 20))
        self.assertEqual(self.seen.left("jail"), ([], []))
        # A later run has nothing left to do, and one of other modules does only those.
        self.run_all(ground, list(ground.entries))
        self.seen.begin("jail", "3.11.2", ["test_late"])
        ground.entries["test_y"] = entry()
        self.run_all(ground, ["test_y"])
        self.assertEqual((len(ground.asked), ground.asked[-1]), (9, ("test_y", 10)))
        self.assertEqual(self.seen.left("jail"), (["test_late"], []))

    def test_when_the_time_is_over_the_rest_is_left(self):
        ground = Ground({f"test_{number}": entry() for number in range(50)})
        self.run_all(ground, list(ground.entries), 0.2)
        done = len(self.seen.of("jail"))
        self.assertTrue(0 < done < 50, done)
        self.assertEqual(len(self.seen.left("jail")[0]), 50 - done)

    def test_a_failure_of_the_ground_ends_the_run(self):
        ground = Ground({"test_00": OSError("no room"), **{f"test_{number}": entry() for number in range(50)}})
        with self.assertRaisesRegex(OSError, "no room"):
            self.run_all(ground, list(ground.entries))
        self.assertLess(len(ground.asked), 10)


class Outside(unittest.TestCase):
    @unittest.skipUnless(os.geteuid() == 0, "mounts need root")
    def test_the_tests_are_read_only_as_in_a_sandbox(self):
        with tempfile.TemporaryDirectory() as folder:
            ground = run.Ground(pathlib.Path(folder), "belljar", "jail")
            ground.suite = pathlib.Path(folder)
            words = [*ground.with_suite_read_only(), "touch", f"{folder}/new"]
            said = subprocess.run(words, capture_output=True, text=True, check=False)
            self.assertNotEqual(said.returncode, 0)
            self.assertIn("Read-only file system", said.stderr)
            (ground.suite / "new").touch()  # not so for anybody else


if __name__ == "__main__":
    unittest.main()
