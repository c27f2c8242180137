"""What was written to an open file and not flushed: it gets into the file once, however often the snapshot is loaded."""

import os
import unittest

from snapshot_harness import SnapshotTest, stream_of

# As a snapshot has it that was made before files were noted.
OLD = (
    "import belljar_kernel.snapshot_make as made\nclass Old:\n"
    "    def __reduce__(self): return made.file, (path, 'a', {'encoding': 'utf-8', 'errors': 'strict', 'newline': '\\n'}, place, b'one')\n"
)


class Unflushed(SnapshotTest):
    def path_of(self, name):
        return os.path.join(self.kernel.workspace, name)

    def held(self, name):
        with open(self.path_of(name), "rb") as file:
            return file.read()

    def put(self, name, data):
        with open(self.path_of(name), "wb") as file:
            file.write(data)

    def wake_and_end(self, snapshot, code="1"):
        """Wake, run a cell, and end the sandbox at once, as one that is lost; the result is what the cell gave."""
        kernel, report = self.wake(snapshot)
        run = kernel.run(code, cell=2)
        self.assertEqual(run.end["status"], "success", run.end)
        kernel.process.kill()
        kernel.process.wait()
        self.missing = {each["name"]: each["reason"] for each in report["missing"]}
        return run.value

    def test_a_snapshot_that_is_loaded_again_and_again_leaves_the_file_alone(self):
        for mode in ("a", "w", "x", "ab", "wb"):
            with self.subTest(mode=mode):
                one = b"one" if "b" in mode else "one"
                self.run_ok(f"import os\nif os.path.exists('log'): os.unlink('log')\nf = open('log', {mode!r}); f.write({one!r})")
                snapshot = self.take()
                for _ in range(3):
                    self.wake_and_end(snapshot)
                self.assertEqual(self.held("log"), b"")
                self.assertEqual(self.wake_and_end(snapshot, f"f.write({one!r}); f.tell(), f.close()"), "(6, None)")
                self.assertEqual((self.held("log"), self.missing), (b"oneone", {}))

    def test_what_a_cell_has_flushed_since_is_not_written_again(self):
        for mode, size in (("a", 3), ("w", 0)):
            with self.subTest(mode=mode):
                self.put("log", b"old")
                self.run_ok(f"f = open('log', {mode!r}); f.write('one')")
                snapshot = self.take()
                for _ in range(3):
                    self.assertEqual(self.wake_and_end(snapshot, "f.flush(); f.tell()"), str(size + 3))
                    self.assertEqual((self.held("log"), self.missing), (b"old"[:size] + b"one", {}))

    def test_a_new_file_of_the_user_is_not_overwritten_which_is_told(self):
        for mode in ("a", "w", "wb"):
            with self.subTest(mode=mode):
                one = b"one" if "b" in mode else "one"
                self.put("log", b"")
                self.run_ok(f"f = open('log', {mode!r}); f.write({one!r})")
                snapshot = self.take()
                self.wake_and_end(snapshot)
                self.put("log", b"MY,NEW,FILE")
                self.assertEqual(self.wake_and_end(snapshot, f"f.tell(), f.write({one!r}), f.close()"), "(11, 3, None)")
                self.assertEqual(self.held("log"), b"MY,NEW,FILEone")
                reason = self.missing[os.path.realpath(self.path_of("log"))]
                self.assertIn("3 bytes that were not flushed were not written to it, write them again", reason)

    def test_a_new_file_of_the_same_size_is_not_overwritten(self):
        self.run_ok("f = open('log', 'wb'); f.write(b'abc'); f.flush(); f.seek(1); f.write(b'X')")
        snapshot = self.take()
        self.put("log", b"new")
        self.assertEqual(self.wake_and_end(snapshot, "f.tell(), f.close()"), "(3, None)")
        self.assertEqual((self.held("log"), len(self.missing)), (b"new", 1))

    def test_what_is_added_to_a_new_file_of_the_same_size_is_not_added(self):
        self.run_ok("f = open('log', 'a'); f.write('abc'); f.flush(); f.write('d')")
        snapshot = self.take()
        self.put("log", b"new")
        self.wake_and_end(snapshot, "f.close()")
        self.assertEqual((self.held("log"), len(self.missing)), (b"new", 1))

    def test_a_copy_of_the_file_in_its_place_gets_it(self):
        self.run_ok("f = open('log', 'wb'); f.write(b'abc'); f.flush(); f.seek(1); f.write(b'X')")
        snapshot = self.take()
        os.unlink(self.path_of("log"))
        self.put("log", b"abc")
        self.assertEqual(self.wake_and_end(snapshot, "f.tell(), f.close()"), "(2, None)")
        self.assertEqual((self.held("log"), self.missing), (b"aXc", {}))

    def test_a_file_that_is_gone_is_told_with_what_it_lacked(self):
        self.run_ok("f = open('log', 'w'); f.write('one')")
        snapshot = self.take()
        os.unlink(self.path_of("log"))
        self.wake_and_end(snapshot)
        self.assertIn("3 bytes that were not flushed to it are gone", self.missing["f"])
        self.assertFalse(os.path.exists(self.path_of("log")))

    def test_two_objects_of_one_file_each_keep_their_own(self):
        self.run_ok("f, g = open('log', 'a'), open('log', 'a'); f.write('tick\\n'); f.flush(); f.write('one\\n'); g.write('tick\\n')")
        snapshot = self.take()
        for _ in range(2):
            self.wake_and_end(snapshot)
        self.wake_and_end(snapshot, "f.close(); g.close()")
        self.assertEqual((self.held("log"), self.missing), (b"tick\none\ntick\n", {}))

    def test_two_objects_of_a_changed_file_are_both_told_of(self):
        self.run_ok("f, g = open('log', 'a'), open('log', 'a'); f.write('one'); g.write('four')")
        snapshot = self.take()
        self.put("log", b"new")
        self.wake_and_end(snapshot)
        (reason,) = self.missing.values()
        self.assertTrue("3 bytes" in reason and "4 bytes" in reason, reason)

    def test_a_long_line_waits_for_its_end_as_before(self):
        line = 60_000
        self.run_ok(f"f = open('log', 'w', buffering=1, encoding='utf-16'); g = open('bin', 'wb', {2 * line}); f.write('x'); g.write(bytes({line}))")
        snapshot = self.take()
        self.wake_and_end(snapshot)
        self.assertEqual((self.held("log"), self.held("bin")), (b"", b""))
        self.assertEqual(self.wake_and_end(snapshot, "f.write('y\\n'); import os; os.path.getsize('log'), g.tell(), g.close()"), f"(8, {line}, None)")
        self.assertEqual((self.held("log").decode("utf-16"), self.held("bin")), ("xy\n", bytes(line)))

    def test_it_sleeps_again_with_what_is_still_not_flushed(self):
        self.run_ok("f = open('log', 'a'); f.write('one')")
        kernel, _ = self.wake(self.take())
        kernel.run("f.write('two'); n = [1]", cell=2)
        snapshot = self.take(kernel)
        kernel.process.kill()
        kernel.process.wait()
        for _ in range(2):
            self.assertEqual(self.wake_and_end(snapshot, "f.flush(); f.tell()"), "6")
            self.assertEqual((self.held("log"), self.missing), (b"onetwo", {}))

    def test_a_file_that_only_lost_names_lead_to_gets_it_once(self):
        self.run_ok(
            "import os\nclass Fails:\n    def __setstate__(self, _state):\n        if os.path.exists('armed'): raise ValueError('late')\n"
            "    def __getstate__(self): return 1\nboth = [open('log', 'a'), Fails()]; both[0].write('one')"
        )
        snapshot = self.take()
        self.put("armed", b"")
        for _ in range(2):
            kernel = self.fresh()
            report = self.load(kernel, stream_of(snapshot), partial=True)["report"]
            self.assertEqual([each["name"] for each in report["missing"]], ["both"])
            self.assertEqual(self.held("log"), b"one")

    def test_snapshots_without_a_note_of_the_file_are_loaded_with_the_same_care(self):
        for begun in (b"", b"old"):
            with self.subTest(begun=begun):
                self.put("log", begun)
                self.run_ok(OLD + f"path, place = {self.path_of('log')!r}, {len(begun)}; old = Old()")
                snapshot = self.take()
                self.assertNotIn("old", snapshot.missing)
                self.wake_and_end(snapshot)
                self.assertEqual(self.held("log"), begun)
                for _ in range(2):
                    self.assertEqual(self.wake_and_end(snapshot, "old.flush(); old.tell()"), str(len(begun) + 3))
                    self.assertEqual((self.held("log"), self.missing), (begun + b"one", {}))
                self.put("log", b"MY,NEW,FILE")
                self.wake_and_end(snapshot, "old.close()")
                self.assertEqual((self.held("log"), len(self.missing)), (b"MY,NEW,FILE", 1))


if __name__ == "__main__":
    unittest.main()
