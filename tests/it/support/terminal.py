"""Drives a program through a pseudo-terminal: terminal.py STEPS PROGRAM [ARGUMENT...]

STEPS is a JSON list of ["send", text] and ["expect", pattern]. A pattern has to match what the program showed since the
last match, without colours, movements and carriage returns. Prints all that was shown; exits with the program's own code,
or with 99 when a pattern did not come.
"""

import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time

PATIENCE = 60
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


class Terminal:
    def __init__(self, argv):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp(argv[0], argv)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.raw = b""
        self.seen = 0

    def text(self):
        return ESCAPES.sub("", self.raw.decode("utf-8", "replace"))

    def read(self, seconds):
        """False at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            chunk = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += chunk
        return bool(chunk)

    def expect(self, pattern):
        deadline = time.monotonic() + PATIENCE
        alive = True
        while True:
            found = re.compile(pattern, re.MULTILINE).search(self.text(), self.seen)
            if found:
                self.seen = found.end()
                return True
            if not alive or time.monotonic() > deadline:
                return False
            alive = self.read(0.2)

    def end(self):
        deadline = time.monotonic() + PATIENCE
        while self.read(0.2) and time.monotonic() < deadline:
            pass
        if time.monotonic() >= deadline:
            os.kill(self.pid, 9)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def main():
    steps, argv = json.loads(sys.argv[1]), sys.argv[2:]
    terminal = Terminal(argv)
    for kind, text in steps:
        if kind == "send":
            os.write(terminal.fd, text.encode())
        elif not terminal.expect(text):
            print(terminal.text())
            print(f"NOT SHOWN: {text!r}; since the last match: {terminal.text()[terminal.seen:]!r}")
            os.kill(terminal.pid, 9)
            return 99
    code = terminal.end()
    print(terminal.text())
    return code


sys.exit(main())
