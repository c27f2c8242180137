"""What is packed is loaded once on trial, which changes nothing that the session or anyone else can see."""

import os
import unittest

from snapshot_harness import SnapshotTest

TOUCHES = "class Touches:\n    def __getstate__(self): return 1\n    def __setstate__(self, _state): touch()\ndef touch():\n    import os, socket, sqlite3, subprocess, time\n    "


class Untouched(SnapshotTest):
    """What would touch anything ends the trial, and the name is taken as it is."""

    def in_workspace(self, name):
        return os.path.join(self.kernel.workspace, name)

    def take_touching(self, code):
        self.run_ok(f"before = 1\n{TOUCHES}{code}\ntouches = Touches()\nafter = 2")
        snapshot = self.take()
        self.assertEqual(snapshot.missing, {})
        return snapshot

    def test_a_file_that_loading_opens_to_write_is_not_emptied_and_comes_back(self):
        self.run_ok("with open('kept', 'w') as file: file.write('text')\ndel file")
        snapshot = self.take_touching("open('kept', 'w').close()")
        self.assertEqual(os.path.getsize(self.in_workspace("kept")), 4)
        kernel, report = self.wake(snapshot)
        self.assertEqual(report["missing"], [])
        self.assertEqual(kernel.run("before, type(touches).__name__, after", cell=9).value, "(1, 'Touches', 2)")

    def test_nothing_is_made_removed_started_or_sent(self):
        self.run_ok("import os, socket\nfor name in ('a', 'b'): open(name, 'w').close()\nheard = socket.socket(); heard.bind(('127.0.0.1', 0)); heard.listen(1); port = heard.getsockname()[1]")
        before = None
        for code in (
            "os.remove('a')",
            "os.rename('a', 'b')",
            "os.mkdir('made')",
            "os.symlink('a', 'made')",
            "os.truncate('a', 5)",
            "os.chmod('a', 0)",
            "os.close(os.open('made', os.O_CREAT))",
            "os.system('touch made')",
            "subprocess.run(['touch', 'made'])",
            "sqlite3.connect('made').execute('create table t (x)')",
            "socket.create_connection(('127.0.0.1', port))",
            "os.kill(os.getppid(), 9)",
            "os.mkfifo('made')",
            "os.mknod('made')",
            "from posix import mkfifo; mkfifo('made')",
            "import _posixsubprocess, multiprocessing.util; multiprocessing.util.spawnv_passfds(b'/bin/touch', [b'touch', b'made'], ())",
        ):
            with self.subTest(code=code):
                self.run_ok(f"{TOUCHES}{code}\ntouches = Touches()")
                missing = self.take().missing
                missing.pop("heard")
                self.assertEqual(missing, {})
                names = {name: os.stat(self.in_workspace(name)).st_mode for name in os.listdir(self.kernel.workspace)}
                before = before or names
                self.assertEqual(names, before)
                self.assertEqual([os.path.getsize(self.in_workspace(name)) for name in ("a", "b")], [0, 0])
        self.run_ok("heard.setblocking(False)")
        self.assertEqual(self.kernel.run("heard.accept()").end["exception"]["type"], "BlockingIOError")

    def test_what_is_written_to_open_descriptors_is_lost(self):
        self.run_ok("import os, socket\nfile = os.open('open', os.O_WRONLY | os.O_CREAT); reads, writes = os.pipe(); here, there = socket.socketpair(); peer = there.fileno()")
        self.run_ok(f"{TOUCHES}for each in (file, writes, peer): os.write(each, b'x')\ntouches = Touches()\nclass Bad:\n    def __reduce__(self): return int, ('no number',)\nbad = Bad()")
        # It does not end the trial, which goes on to what fails.
        self.assertEqual(set(self.take().missing), {"here", "there", "bad"})
        self.assertEqual(os.path.getsize(self.in_workspace("open")), 0)
        asked = "import select; select.select([reads, here], [], [], 0)[0]"
        self.assertEqual(self.value(asked), "[]")

    def test_what_modules_hold_open_can_be_read_and_not_be_written(self):
        self.run_ok(
            "import os\nopen('store.py', 'w').write(\"\"\"import os, sqlite3\nopen('rec', 'w').write('abcdef')\nF = open('rec', 'rb'); _ = F.seek(2); G = open('rec', 'r+b', 0)\n"
            "DB = sqlite3.connect('db'); DB.execute('create table if not exists t (v)'); DB.execute('insert into t values (5)'); DB.commit()\n"
            "class Row:\n    def __init__(self): self.v = DB.execute('select v from t').fetchone()[0]\n    def __reduce__(self): return Row, ()\n"
            "class Rec:\n    def __init__(self): self.v = os.pread(F.fileno(), 1, F.tell()); assert self.v == b'c'\n    def __reduce__(self): return Rec, ()\n"
            "class Writes:\n    def __init__(self, is_first=False): is_first or G.write(b'X')\n    def __reduce__(self): return Writes, ()\n\"\"\")\n"
            "import store\nrow = store.Row(); rec = store.Rec(); writes = store.Writes(True); x = 1"
        )
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {"store"})
        with open(self.in_workspace("rec"), encoding="ascii") as file:
            self.assertEqual(file.read(), "abcdef")
        self.assertEqual(self.value("store.F.tell()"), "2")
        kernel, report = self.wake(snapshot)
        self.assertEqual(report["missing"], [])
        self.assertEqual(kernel.run("row.v, rec.v, type(writes).__name__, x", cell=9).value, "(5, b'c', 'Writes', 1)")

    def test_what_would_write_to_a_file_for_reading_and_writing_is_taken_as_it_is(self):
        self.run_ok(
            "import os\nopen('store.py', 'w').write(\"\"\"import sqlite3\nopen('rec', 'w').write('abcdef')\nPLAIN = open('rec', 'r+'); RAW = open('rec', 'r+b', 0)\n"
            "EMPTIED = open('emptied', 'w+'); _ = EMPTIED.write('text'); EMPTIED.flush()\n"
            "DB = sqlite3.connect('db'); DB.execute('create table t (v)'); DB.commit()\n"
            "def insert(): DB.execute('insert into t values (5)'); DB.commit()\n"
            "def other():\n    try: RAW.write(b'X')\n    except OSError as error: raise ValueError('no') from error\n"
            "class Touches:\n    def __init__(self, code): self.code = code\n    def __getstate__(self): return self.code\n    def __setstate__(self, code): exec(code, globals())\n\"\"\")\n"
            "import store"
        )
        for code in ("RAW.write(b'X')", "PLAIN.write('X'); PLAIN.flush()", "EMPTIED.write('X'); EMPTIED.flush()", "RAW.truncate(1)", "insert()", "other()"):
            with self.subTest(code=code):
                self.run_ok(f"before = 1; touches = store.Touches({code!r}); after = 2")
                self.assertEqual(set(self.take().missing), {"store"})
                for name, content in (("rec", "abcdef"), ("emptied", "text")):
                    with open(self.in_workspace(name), encoding="ascii") as file:
                        self.assertEqual(file.read(), content)
                self.assertEqual(self.value("store.DB.execute('select v from t').fetchall()"), "[]")
        self.run_ok("touches = store.Touches(\"raise ValueError('no')\")")
        self.assertEqual(set(self.take().missing), {"store", "touches"}, "it fails for a reason of its own")

    def test_another_program_in_place_of_the_process_costs_only_the_name(self):
        self.run_ok(
            f"before = (each for each in ())\n{TOUCHES}os.execvp('touch', ['touch', 'made'])\ntouches = Touches()\n"
            "class Tries:\n    def __getstate__(self): return 1\n    def __setstate__(self, _state):\n        import os\n        try: os.execv('/nowhere', ['x'])\n        except OSError: pass\n"
            "tries = Tries(); after = 2"
        )
        missing = self.take().missing
        self.assertEqual(set(missing), {"before", "touches"})
        self.assertIn("another program", missing["touches"])
        self.assertFalse(os.path.exists(self.in_workspace("made")))

    def test_a_process_that_loading_forks_holds_nothing_up(self):
        self.take_touching("if not os.fork(): time.sleep(600)")

    def test_a_pipe_that_stays_open_elsewhere_holds_nothing_up(self):
        # Past what Python tells of.
        self.run_ok(f"{TOUCHES}import ctypes\n    if not ctypes.CDLL(None).fork(): time.sleep(30); os._exit(0)\ntouches = Touches()")
        self.assertEqual(self.take(timeout=15).missing, {})

    def test_names_that_were_tried_before_keep_their_verdict(self):
        self.run_ok(
            "open('gone_mod.py', 'w').write('class K: pass')\nimport gone_mod, os\nlost = gone_mod.K()\nfile = open('gone_file', 'w')\n"
            "class Bad:\n    def __reduce__(self): return int, ('no number',)\nbad = Bad()\nos.remove('gone_file')\n"
            f"{TOUCHES}os.remove('made')\ntouches = Touches()\nafter = 2"
        )
        missing = self.take().missing
        self.assertEqual({"file", "bad"}, set(missing) - {"gone_mod"}, missing)

    def test_files_and_arrays_of_files_do_not_set_it_off(self):
        self.run_ok(
            "import os\nwritten = open('written', 'w'); written.write('a'); closed = open('closed', 'w'); closed.close()\nclass Bad:\n"
            "    def __reduce__(self): return int, ('no number',)\nbad = Bad()"
        )
        self.assertEqual(set(self.take().missing), {"bad"})


if __name__ == "__main__":
    unittest.main()
