"""What the Tab key asks a session, and which of its answers can be typed."""

from __future__ import annotations

import builtins
import keyword
from dataclasses import dataclass
from typing import Iterable

#: Bounds on the number and the length of names, because they come from the sandbox.
NAMES = 2000
NAME_CHARS = 100


@dataclass
class Names:
    """Variables, imports, keywords and built-ins that begin with what is typed."""

    start: int
    begins: str


@dataclass
class Members:
    """The attributes of a value, or its keys, that begin with what is typed."""

    start: int
    of: str
    keys: bool
    begins: str


@dataclass
class Paths:
    """The files of a folder of the workspace."""

    start: int
    folder: str
    begins: str


def question(code: str, cursor: int) -> Names | Members | Paths | None:
    """What to ask to complete the word before the cursor; None if nothing of it is known."""
    before = code[:cursor]
    line_start = before.rfind("\n") + 1
    line = before[line_start:]
    quote = _open_quote(line)
    if quote is None:
        return None
    if quote >= 0:
        start = line_start + quote + 1
        subscripted = line[:quote].rstrip()
        of = _dotted_name(subscripted[:-1]) if subscripted.endswith("[") else None
        return _path(before, start) if of is None else Members(start, of, True, before[start:])
    if line.lstrip().startswith(("!", "%")):
        space = max(line.rfind(" "), line.rfind("\t"), line.rfind("="))
        if space >= 0:
            return _path(before, line_start + space + 1)
    start = len(before)
    while start > line_start and _is_word(before[start - 1]):
        start -= 1
    word = before[start:]
    if before[:start].endswith("."):
        of = _dotted_name(before[: start - 1])
        return None if of is None else Members(start, of, False, word)
    return Names(start, word) if word and not word[0].isdigit() else None


def names(begins: str, variables: Iterable[str]) -> list[str]:
    """The names of a session, of Python and its built-ins that begin with what is typed."""
    own = [name for name in variables if is_name(name)][:NAMES]
    return sorted({name for name in (*own, *keyword.kwlist, *dir(builtins)) if name.startswith(begins)})


def is_name(text: str) -> bool:
    return len(text) <= NAME_CHARS and text.isidentifier()


def is_dotted_name(text: str) -> bool:
    return all(map(is_name, text.split(".")))


def can_be_quoted(text: str) -> bool:
    """Whether a person can type it between quotation marks as it is."""
    return 0 < len(text) <= NAME_CHARS and text.isprintable() and not set("\"'\\\ufffd") & set(text)


def _is_word(letter: str) -> bool:
    return letter == "_" or letter.isalnum()


def _open_quote(line: str) -> int | None:
    """The place of the quotation mark of a string that is open at the end of a line, -1 if none is; None in a comment."""
    place, escaped = -1, False
    for at, letter in enumerate(line):
        if escaped:
            escaped = False
        elif place >= 0:
            if letter == line[place]:
                place = -1
            escaped = letter == "\\"
        elif letter == "#":
            return None
        elif letter in "\"'":
            place = at
    return place


def _dotted_name(text: str) -> str | None:
    """The names with dots between them at the end of a text."""
    start = len(text)
    while start and (_is_word(text[start - 1]) or text[start - 1] == "."):
        start -= 1
    return text[start:] if is_dotted_name(text[start:]) else None


def _path(before: str, start: int) -> Paths | None:
    typed = before[start:]
    folder, _, name = typed.rpartition("/")
    if typed.startswith("/"):
        # Other folders of the sandbox cannot be listed.
        if folder != "/workspace" and not folder.startswith("/workspace/"):
            return None
        folder = folder[len("/workspace") :].lstrip("/")
    while folder == "." or folder.startswith("./"):
        folder = folder[1:].lstrip("/")
    return None if ".." in folder.split("/") else Paths(len(before) - len(name), folder, name)
