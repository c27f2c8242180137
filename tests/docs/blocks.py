"""Fenced blocks of Markdown pages: which are run, which are files, and what their commands are to answer.

A block in `sh` is a script: each of its commands has to succeed. A block in `console` is a dialogue: lines that begin
with `$ ` are commands (`> ` goes on with one), and what follows is what they print, with `…` for anything. A comment
right before a block says more:

    <!-- not run: why -->      the block is shown only
    <!-- file: PATH -->        the block is written to this path of the reader's home

A block in `toml` that is neither is a configuration that the daemon has to accept.
"""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

RUN = ("sh", "console")
_COMMENT = re.compile(r"<!--\s*(not run|file):\s*(.*?)\s*-->")
_FENCE = re.compile(r"^(\s*)(`{3,})\s*(\S*)")


class BadPage(Exception):
    """A page breaks the rules above."""


@dataclass
class Command:
    line: int
    text: str
    #: What it is to print; None if that is not said.
    expected: str | None = None


@dataclass
class Block:
    line: int
    language: str
    lines: list[str] = field(default_factory=list)
    not_run: str | None = None
    file: str | None = None

    @property
    def text(self):
        return "".join(line + "\n" for line in self.lines)

    @property
    def is_run(self):
        return self.language in RUN and self.not_run is None and self.file is None

    @property
    def is_configuration(self):
        return self.language == "toml" and self.not_run is None and self.file is None

    def commands(self):
        return _dialogue(self) if self.language == "console" else _script(self)


def blocks_of(page: Path):
    """The blocks of a page, in order."""
    found, block, fence, said = [], None, None, {}
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        opening = _FENCE.match(line)
        if block is not None:
            if opening and opening[2] == fence and not opening[3]:
                found.append(block)
                block = None
            else:
                block.lines.append(line)
        elif opening:
            fence = opening[2]
            block = Block(number, opening[3], not_run=said.get("not run"), file=said.get("file"))
            said = {}
        elif comment := _COMMENT.match(line):
            said[comment[1]] = comment[2]
        elif line.strip() and said:
            raise BadPage(f"{page}:{number}: a comment for a block stands before something else")
    if block is not None:
        raise BadPage(f"{page}:{block.line}: the block does not end")
    return found


def _is_whole(text):
    """Whether the shell would run this, and not wait for more of it."""
    if text.endswith("\\\n"):
        return False
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    return checked.returncode == 0 and not checked.stderr


def _script(block):
    commands, part, first = [], "", None
    for number, line in enumerate(block.lines, start=block.line + 1):
        if not part and (not line.strip() or line.lstrip().startswith("#")):
            continue
        first = first or number
        part += line + "\n"
        if _is_whole(part):
            commands.append(Command(first, part))
            part, first = "", None
    if part:
        raise BadPage(f"line {first}: the shell does not understand this: {part}")
    return commands


def _dialogue(block):
    commands = []
    for number, line in enumerate(block.lines, start=block.line + 1):
        if line.startswith("$ "):
            commands.append(Command(number, line[2:] + "\n", ""))
        elif not commands:
            raise BadPage(f"line {number}: a dialogue begins with a command, `$ …`")
        elif line.startswith("> ") and not commands[-1].expected:
            commands[-1].text += line[2:] + "\n"
        else:
            commands[-1].expected += line + "\n"
    return commands


def matches(expected, printed):
    """Whether a command printed what is expected; `…` stands for anything, blanks at the ends of lines do not count."""

    def plain(text):
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = ".*".join(re.escape(part) for part in plain(expected).split("…"))
    return re.fullmatch(pattern, plain(printed), re.DOTALL) is not None
