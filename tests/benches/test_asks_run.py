"""The benchmark of models as a whole: a daemon, jails, and the server that plays a model. BELLJAR names the binary."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import bench_path

import daemon
import models
from asks import belljar_asks, code_agent, scripted, tasks

BINARY = os.environ.get("BELLJAR")
# `benches/models.py` makes it, when it is run without `--no-code-agent`.
CODE_AGENT = Path(os.environ.get("CODE_AGENT_PYTHON", bench_path.ROOT / "target/peers/code-agent/bin/python"))
RUN_SECONDS = 300
# A task with a file, and replies of which the first has not the agreed form, and the second is no Python.
TASK = next(task for task in tasks.load("tasks") if task.files)
SPOILT = (scripted.GARBLED, scripted.BAD_SYNTAX, scripted.CODE)


def on(url):
    """How both sides ask the server of that address."""
    return models.Server(url, "m", "compatible", 0.0, 1024, 0, "", "bubblewrap")


@contextlib.contextmanager
def playing(task, *plan):
    """The server that plays these replies to the task."""
    with scripted.serving(scripted.Script([task], {task.name: plan})) as served:
        yield on(served.url)


@contextlib.contextmanager
def silent():
    """A server that never answers: nothing takes its connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield on(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")


@contextlib.contextmanager
def asking(server):
    with daemon.Daemon(BINARY, belljar_asks.config(server)) as served:
        asks = belljar_asks.BelljarAsks(served)
        yield asks
        asks.client.close()


@unittest.skipUnless(BINARY, "BELLJAR names no binary")
class Whole(unittest.TestCase):
    def test_valid_replies_are_counted_in_every_dialect(self):
        for last, solved in ((scripted.ANSWER, True), (scripted.WRONG_ANSWER, False)):
            with playing(TASK, *SPOILT, last) as server, asking(server) as asks:
                for dialect in belljar_asks.DIALECTS:
                    with self.subTest(dialect=dialect, solved=solved):
                        found = asks.work(TASK, dialect, 60)
                        self.assertEqual((found["ended"], found["solved"]), ("answered", solved), found)
                        self.assertEqual((found["replies"], found["valid"]), (4, 2), found)
                        self.assertGreater(found["tokens_in"], found["tokens_out"])

    def test_a_model_that_never_keeps_to_the_form_has_no_valid_reply(self):
        with playing(TASK, *[scripted.GARBLED] * 10) as server, asking(server) as asks:
            found = asks.work(TASK, "json_action", 60)
        self.assertEqual(
            (found["ended"], found["solved"], found["replies"], found["valid"]), ("malformed", False, 4, 0)
        )

    def test_a_task_ends_with_its_time(self):
        with silent() as server, asking(server) as asks:
            found = asks.work(TASK, "tool_calls", 1)
        self.assertEqual((found["ended"], found["solved"], found["replies"]), ("time_limit", False, 0), found)

    def test_the_program_prints_its_tables_and_keeps_the_results(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            command = [sys.executable, bench_path.ROOT / "benches/models.py", BINARY, "--scripted", "--harder"]
            command += ["--backend", "bubblewrap", "--dialects", "tool_calls,xml_tags", "--out", out]
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
            self.assertEqual(done.returncode, 0, done.stderr)
            for dialect in ("tool_calls", "xml_tags"):
                self.assertIn(f"| {dialect} | 12 | 12 | 24 of 24 (100 %) |", done.stdout)
            self.assertEqual(out.with_suffix(".md").read_text(encoding="utf-8").strip(), done.stdout.strip())
            self.assertEqual(len(json.loads(out.read_text(encoding="utf-8"))["results"]["xml_tags"]), 12)


@unittest.skipUnless(CODE_AGENT.exists() and shutil.which("bwrap"), "there is no environment with smolagents")
class WithCodeAgent(unittest.TestCase):
    def test_replies_of_code_agent_are_counted_by_the_same_rule(self):
        with playing(TASK, *SPOILT, scripted.ANSWER) as server:
            found = code_agent.CodeAgent(CODE_AGENT, server).work(TASK, 60)
        self.assertEqual((found["ended"], found["solved"]), ("answered", True), found)
        self.assertEqual((found["replies"], found["valid"]), (4, 2), found)

    def test_a_task_ends_with_its_time(self):
        with silent() as server:
            found = code_agent.CodeAgent(CODE_AGENT, server).work(TASK, 2)
        self.assertEqual((found["ended"], found["solved"], found["replies"]), ("time_limit", False, 0), found)


if __name__ == "__main__":
    unittest.main()
