"""Exceptions as the daemon shows them: only frames of the user's code, everything bounded."""

import os
import sys
import traceback

from . import hints
from .limits import cut

_TracebackException = traceback.TracebackException
_KERNEL_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CELL_PREFIX = "<cell "
# Chained exceptions and members of groups that are looked at.
_LINKS = 1000
_CUT_MARK = "\n  … the middle of this traceback is left out …\n"


def describe(error, limits, cell_name, only_last=False, no_packages=None):
    """`ExceptionView` of any exception, also one whose own methods raise.

    `only_last` leaves out all frames, for code that did not compile. `no_packages` says why the code can install
    nothing, if it cannot.
    """
    kind = type_name(type(error))
    value = safe_text(str, error, limits.exception_chars)
    try:
        lines = _format(error, only_last)
        traceback_text = "".join(lines)
    except BaseException as trouble:
        traceback_text = f"{kind}: {value}\n(the traceback cannot be shown: {type(trouble).__name__}, in {cell_name})\n"
    hint = _hint(error, limits, no_packages)
    return {
        "type": cut(kind, limits.exception_chars),
        "value": value,
        "repr": safe_text(repr, error, limits.exception_chars),
        "traceback": _cut_middle(traceback_text, limits.traceback_chars - len(hint)) + hint,
    }


def message_with_frames(error, chars):
    """An exception as one text, with the user's frames: the answer to a tool call is text, and has no field for them."""
    message = f"{cut(type_name(type(error)), chars)}: {safe_text(str, error, chars)}"
    try:
        frames = _trim(traceback.extract_tb(error.__traceback__), is_top=False)
        lines = "".join(traceback.format_list(frames)).rstrip()
    except Exception:
        return message  # the error is an object of the user, which may refuse everything
    return f"{message}\nTraceback (most recent call last):\n{_cut_middle(lines, chars)}" if lines else message


def _hint(error, limits, no_packages):
    """A last paragraph that says what to do about the error; empty for most errors."""
    try:
        hint = hints.about(error, no_packages)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""  # the error is an object of the user, which may refuse everything
    return f"\nhint: {cut(hint, limits.exception_chars)}\n" if hint else ""


def type_name(kind):
    """The name with its module, except for `builtins` and `__main__`."""
    try:
        module, name = kind.__module__, kind.__qualname__
        if not isinstance(module, str) or not isinstance(name, str):
            return "object"
    except BaseException:
        return "object"
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def safe_text(convert, thing, chars):
    """`str` or `repr` of something that may refuse."""
    try:
        return cut(convert(thing), chars)
    except KeyboardInterrupt:
        raise
    except BaseException as trouble:
        return f"<{convert.__name__} failed: {type(trouble).__name__}>"


def _format(error, only_last):
    described = _TracebackException(type(error), error, error.__traceback__, compact=_COMPACT)
    if only_last:
        return list(described.format_exception_only())
    _trim_all(described)
    return list(described.format())


# Spares the formatting of what `raise … from` hides; known since Python 3.10.
_COMPACT = sys.version_info >= (3, 10)
if not _COMPACT:

    def _TracebackException(kind, error, frames, compact):  # noqa: N802, ARG001 - stands in for the class
        return traceback.TracebackException(kind, error, frames)


def _trim_all(described):
    waiting, seen = [(described, True)], 0
    while waiting and seen < _LINKS:
        item, is_top = waiting.pop()
        seen += 1
        item.stack[:] = _trim(item.stack, is_top)
        linked = [item.__cause__, item.__context__, *(getattr(item, "exceptions", None) or ())]
        waiting.extend((link, False) for link in linked if link is not None)


def _trim(frames, is_top):
    """Without the kernel's frames, and without the event loop's above the cell."""
    first_of_cell = next((at for at, frame in enumerate(frames) if frame.filename.startswith(_CELL_PREFIX)), None)
    if first_of_cell is not None:
        frames = frames[first_of_cell:]
    elif is_top:
        return []
    return [frame for frame in frames if not frame.filename.startswith(_KERNEL_DIRECTORY)]


def _cut_middle(text, chars):
    """Both ends of a long traceback matter: where it began and what was raised."""
    if len(text) <= chars:
        return text
    half = max((chars - len(_CUT_MARK)) // 2, 0)
    return text[:half] + _CUT_MARK + text[len(text) - half :]
