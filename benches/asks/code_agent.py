"""smolagents' CodeAgent works on tasks of the same server.

Each task has a process of its own, which ends with its time. CodeAgent runs the model's code in that process, so it is
put into a bubblewrap jail that can write only the task's folder; it needs the network of this machine for its model.
`code_agent_task.py` is what runs there, with the Python of an environment that has smolagents.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from asks import tasks

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE / "code_agent_task.py"
REQUIREMENTS = HERE.parent / "requirements/code-agent.txt"
# For the import of smolagents before, and the report after a task's own time.
START_SECONDS, REPORT_SECONDS = 60, 10
NAME = "smolagents CodeAgent"


class CodeAgent:
    def __init__(self, python, server):
        self.python, self.server = python, server
        if not shutil.which("bwrap"):
            raise RuntimeError("CodeAgent runs a model's code in its own process: install bubblewrap, which holds it")

    def work(self, task, seconds):
        with tempfile.TemporaryDirectory(prefix="bjagent", dir="/tmp") as folder:
            task.write_files(folder)
            os.chmod(folder, 0o755)
            return outcome(task, self.run(folder, task, seconds), seconds)

    def run(self, folder, task, seconds):
        """What the process reported, or nothing if it did not in its time."""
        server = self.server
        wanted = {
            "text": task.text, "seconds": seconds, "url": server.url, "model": server.model,
            "temperature": server.temperature, "max_tokens": server.reply_tokens,
            "key": os.environ.get(server.key_variable or "", "none"),
        }  # fmt: skip
        process = subprocess.Popen(
            jail(folder, self.python), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        began = time.monotonic()
        try:
            said, problems = process.communicate(json.dumps(wanted), START_SECONDS + seconds + REPORT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None
        lines = [line for line in said.splitlines() if line.startswith("{")]
        if not lines:
            if time.monotonic() - began >= seconds:
                return None
            raise RuntimeError(f"{task.name}: CodeAgent reported nothing: {problems.strip()[-400:]}")
        return json.loads(lines[-1])


def jail(folder, python):
    """The command that runs the program where only the task's folder can be written, and nothing of /tmp can be seen
    but what the program needs."""
    needed = [place for place in (PROGRAM, pathlib.Path(python).parents[1]) if str(place).startswith("/tmp/")]
    shown = [word for place in needed for word in ("--ro-bind", str(place), str(place))]
    return [
        "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", *shown,
        "--bind", folder, folder, "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL", "--die-with-parent",
        "--chdir", folder, "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", folder,
        "--setenv", "PYTHONDONTWRITEBYTECODE", "1", str(python), str(PROGRAM),
    ]  # fmt: skip


def outcome(task, report, seconds):
    if report is None:
        report = {"answer": None, "ended": "time_limit", "replies": 0, "valid": 0, "tokens_in": 0, "tokens_out": 0}
        report |= {"why": "the process had to be killed, and what it had counted is lost", "seconds": float(seconds)}
    return {"solved": report["answer"] is not None and tasks.is_right(task, report["answer"]), **report}
