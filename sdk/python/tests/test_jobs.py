"""Jobs and batches of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import belljar
from belljar import BadRequestError, BelljarError, JobResult, QuotaError

from .harness import SOON, WithDaemon, eventually, in_thread
from .test_async import run


class JobCases(WithDaemon):
    configuration = "[jobs]\nslots = 2\n[quota]\njobs = 6\n"

    def open_jobs(self) -> list[dict[str, Any]]:
        listed = json.loads(self.ground.command("--json", "job", "ls").stdout)
        return [job for job in listed["jobs"] if job["state"] != "ended"]

    def test_a_job_has_its_value_output_and_files(self) -> None:
        code = "import os, sys\nprint(sys.argv[1:], os.environ['A'], __name__)\nopen('out.txt', 'w').write(open('in/a.txt').read() * 2)\n{'n': 1}"
        files: dict[str, str | bytes | os.PathLike[str]] = {"in/a.txt": "ab", "b.bin": b"\x00"}
        job = belljar.run_job(code, args=["x y"], files=files, envs={"A": "1"}, artifacts=["out.*"])
        self.assertEqual((job.verdict, job.exit_code, job.error, job.value), ("passed", 0, None, {"n": 1}), job)
        self.assertEqual((job.stdout, job.stderr, job.files), ("['x y'] 1 __main__\n", "", {"out.txt": b"abab"}))
        self.assertIs(job.check(), job)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script.py"
            script.write_text("import helper\nresult = helper.X")
            (Path(folder) / "lib.py").write_text("X = [1, None]")
            job = belljar.run_job(script, files={"helper.py": Path(folder) / "lib.py"})
        self.assertEqual(job.check().value, [1, None])
        odd = belljar.run_job("object")
        self.assertEqual((odd.value, odd.text, odd.error), (None, "<class 'object'>", None))

    def test_what_is_left_out_of_a_result_is_said(self) -> None:
        whole = belljar.run_job("print('x'); {1: 'a', '1': 'b'}")
        self.assertEqual((whole.value, whole.text, whole.truncated), (None, "{1: 'a', '1': 'b'}", False))
        text, output = belljar.run_job("set(range(20_000))"), belljar.run_job("print('x' * 1_000_000); 1")
        self.assertEqual((text.truncated, output.truncated, output.value), (True, True, 1))

    def test_each_way_to_end_is_told(self) -> None:
        def error_of(code: str, **options: Any) -> tuple[str, str, int]:
            job = belljar.run_job(code, **options)
            assert job.error is not None and job.value is None
            return job.verdict, job.error.name, job.exit_code

        self.assertEqual(error_of("1 / 0"), ("failed", "ZeroDivisionError", 1))
        self.assertEqual(error_of("def ("), ("failed", "SyntaxError", 1))
        self.assertEqual(error_of("raise SystemExit(3)"), ("failed", "failed", 3))
        self.assertEqual(error_of("while True: pass", timeout=1), ("timed_out", "timed_out", 124))
        self.assertEqual(error_of("import os; os.kill(os.getpid(), 9)")[0], "crashed")
        failed = belljar.run_job("import json\ndef f():\n    json.loads('x')\nf()")
        assert failed.error is not None
        self.assertEqual(failed.error.type, "json.decoder.JSONDecodeError")
        self.assertIn('"main.py", line 4', failed.error.traceback)
        self.assertNotIn("_belljar", failed.error.traceback)
        self.assertIn("JSONDecodeError", failed.stderr)
        with self.assertRaisesRegex(RuntimeError, "JSONDecodeError"):
            failed.check()

    def test_what_code_writes_as_its_result_is_data(self) -> None:
        forged = 'import os\nopen("_belljar_result.json", "w").write({!r})\nos._exit({})'
        for text in ["[]", '{"error": {"type": 1}}']:
            failed = belljar.run_job(forged.format(text, 1))
            assert failed.error is not None
            self.assertEqual((failed.error.name, failed.value), ("failed", None))
        passed = belljar.run_job(forged.format("[" * 100_000, 0))
        assert passed.error is not None
        self.assertEqual((passed.verdict, passed.error.name, passed.value), ("passed", "lost", None))

    def test_results_have_the_order_of_the_inputs_and_one_failure_ends_no_other(self) -> None:
        code = "import time\ntime.sleep(0.5 if item == 0 else 0)\nprint('for', item)\nresult = 12 // (item - 2)"
        ran = belljar.map(code, iter([0, 1, 2, 3]), parallel=2)
        self.assertEqual([one.value for one in ran], [-6, -12, None, 12])
        self.assertEqual([one.stdout for one in ran], [f"for {n}\n" for n in range(4)])
        self.assertEqual([one.error and one.error.name for one in ran], [None, None, "ZeroDivisionError", None])
        large = [{"text": "ä" * 300_000}, "x", None, 1.5]
        lengths = belljar.map("len(item['text']) if isinstance(item, dict) else [item]", large)
        self.assertEqual([one.check().value for one in lengths], [300_000, ["x"], [None], [1.5]])
        self.assertEqual(belljar.map("item", []), [])
        (odd,) = belljar.map("{1, 2}", [0])
        assert odd.error is not None
        self.assertEqual((odd.verdict, odd.error.name), ("failed", "TypeError"))

    def test_more_inputs_than_one_batch_takes_are_several_batches(self) -> None:
        with mock.patch("belljar.jobs._BATCH_JOBS", 2):
            self.assertEqual([one.value for one in belljar.map("item * 2", range(5))], [0, 2, 4, 6, 8])

    def test_with_asyncio(self) -> None:
        async def work() -> None:
            job, ran = await asyncio.gather(belljar.run_job_async("6 * 7"), belljar.map_async("item + 1", [1, 2]))
            self.assertEqual((job.value, [one.value for one in ran]), (42, [2, 3]))
            task = asyncio.create_task(belljar.map_async("while True: pass", [1, 2, 3]))
            while len(self.open_jobs()) < 3:
                await asyncio.sleep(0.1)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        run(work())
        self.assertEqual(self.open_jobs(), [])

    def test_what_is_wrong_is_refused_before_anything_runs(self) -> None:
        wrong: list[dict[str, Any]] = [
            {"inputs": [object()]},
            {"inputs": [float("nan")]},
            {"inputs": [1], "parallel": 0},
            {"inputs": [1], "timeout": -1},
            {"inputs": [1], "packages": "numpy"},
            {"inputs": [1], "files": {"main.py": ""}},
            {"inputs": [1], "files": {"_belljar_run.py": ""}},
            {"inputs": [1], "artifacts": ["../x"]},
        ]
        for options in wrong:
            with self.subTest(options=options), self.assertRaises(BadRequestError):
                belljar.map("1", **options)
        with self.assertRaises(BelljarError):
            belljar.run_job(Path("/none.py"))
        with self.assertRaises(BadRequestError):
            belljar.run_job(1)  # type: ignore[arg-type]
        with self.assertRaises(QuotaError) as refused:
            belljar.map("1", range(7))
        self.assertIn("job 6 of the batch", refused.exception.message)
        self.assertEqual(self.open_jobs(), [])

    def test_a_daemon_that_is_killed_loses_nothing(self) -> None:
        code = "import time\nfor n in range(4): print(n, flush=True); time.sleep(0.5)\nitem"
        running = in_thread(lambda: belljar.map(code, [0, 1, 2, 3]))
        eventually("two run", lambda: [job["state"] for job in self.open_jobs()].count("running") == 2 or None)
        self.ground.kill()
        ran: list[JobResult] = running()
        self.assertEqual([one.check().value for one in ran], [0, 1, 2, 3])
        self.assertEqual({one.stdout for one in ran}, {"0\n1\n2\n3\n"})

    def test_jobs_go_with_the_program(self) -> None:
        code = "import belljar; belljar.map('while True: pass', [1, 2, 3])"
        program = subprocess.Popen([sys.executable, "-c", code], env=_environment(), stderr=subprocess.DEVNULL)
        try:
            eventually("they are there", lambda: len(self.open_jobs()) == 3 or None)
        finally:
            program.kill()
            program.wait(SOON)
        began = time.monotonic()
        eventually("they have gone", lambda: not self.open_jobs() or None)
        self.assertLess(time.monotonic() - began, 30)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(belljar.__file__).parents[1])}


class OnDocker(JobCases):
    backend = "docker"


class OnBubblewrap(JobCases):
    backend = "bubblewrap"


del JobCases
