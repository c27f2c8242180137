"""The base of tests about checkpoints: cells that die, undo, and the processes of a kernel."""

import os
import time

from harness import KernelTest, is_alive


class CheckpointTest(KernelTest):
    def lose(self, code, exit_code=None):
        """Run a cell that dies; a `kill` helps those that would not."""
        run = self.kernel.submit(code)
        if exit_code == "kill":
            time.sleep(0.05)
            self.kernel.send(type="kill", cell=run.cell, grace_ms=100)
        self.kernel.finish(run)
        self.assertEqual(run.end["type"], "cell_lost", run.end)
        self.assertEqual(run.end["killed"], exit_code == "kill")
        if isinstance(exit_code, int):
            self.assertEqual(run.end["exit_code"], exit_code)
        return run

    def undo(self, cells):
        self.kernel.send(type="undo", request=8, cells=cells)
        return self.kernel.next_frame()

    def runners(self):
        """Processes of the kernel beside the guardian."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and parent_of(name) == self.kernel.process.pid and is_alive(name) and not is_helper(name):
                found.append(int(name))
        return found


def is_helper(pid):
    """The process that takes descriptors in the guardian's place is no runner, nor is the one that makes them."""
    try:
        with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as file:
            return file.read() in ("belljar-inbox\n", "belljar-zygote\n")
    except OSError:
        return False


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
