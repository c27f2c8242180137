"""A kernel for Jupyter: notebooks run in a session of Belljar, whose variables outlive a cell that crashes.

    python -m belljar.jupyter install     # as `belljar jupyter install`; JupyterLab and nbclient then know the kernel
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn, Sequence

#: What the kernel needs beside this package, by module.
_NEEDED = ("ipykernel", "jupyter_client")
_NAME = "belljar"
#: Python would look for modules in the folder of the notebook first, and so run what lies there outside of the sandbox.
_ENTRY = "import sys; sys.path[:] = filter(None, sys.path); from belljar.jupyter import main; main()"
#: Exit codes as the command `belljar` has them: wrong usage, and Belljar's own failures.
_USAGE, _FAILED = 64, 125


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE, f"error: {message}\n")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line: `install`, or what Jupyter starts."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["install"]:
        _install(words[1:])
    else:
        _serve(words)


def _serve(words: Sequence[str]) -> None:
    parser = _Parser(prog="python -m belljar.jupyter", description="The kernel; Jupyter starts it.")
    parser.add_argument("-f", dest="connection_file", metavar="FILE", help="the connection file that Jupyter wrote")
    parser.add_argument("--session", default=os.environ.get("BELLJAR_SESSION") or None)
    parser.add_argument("--image")
    parser.add_argument("--timeout", type=_seconds)
    given, others = parser.parse_known_args(words)
    _check_packages()
    from ._jupyter_kernel import KernelOptions, serve

    serve(KernelOptions(given.connection_file, given.session, given.image, given.timeout), others)


def _install(words: Sequence[str]) -> None:
    parser = _Parser(
        prog="belljar jupyter install",
        description="Tells Jupyter of a kernel whose notebooks run in sessions of Belljar.",
    )
    parser.add_argument("--name", default=_NAME, type=_kernel_name, help="the name of the kernel")
    parser.add_argument("--display-name", help="its name in menus")
    parser.add_argument("--session", help="a session that all its notebooks share, and that stays")
    parser.add_argument("--image", help="the image of its sessions")
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="how long a cell may run")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--user", action="store_true", help="for this user, which is the default")
    place.add_argument("--prefix", help="below a folder, such as that of an environment of Python")
    given = parser.parse_args(words)
    _check_packages()
    from jupyter_client.kernelspec import KernelSpecManager

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.json").write_text(json.dumps(_spec(given), indent=1, ensure_ascii=False) + "\n")
        try:
            manager: Any = KernelSpecManager()
            _refuse_to_replace(manager, given.name)
            at = manager.install_kernel_spec(folder, given.name, user=given.prefix is None, prefix=given.prefix)
        except OSError as error:
            where = given.prefix or "your home"
            _fail(f"the kernel cannot be written below {where}: {error}", "name a folder of yours with `--prefix DIR`")
    print(at)


def _refuse_to_replace(manager: Any, name: str) -> None:
    """A kernel of somebody else that has this name, such as `python3`, stays."""
    found = manager.find_kernel_specs().get(name)
    if found is not None and "belljar" not in (Path(found) / "kernel.json").read_text("utf-8", "replace"):
        _fail(f"there is a kernel `{name}` that is not Belljar's, in {found}", "use another name with `--name NAME`")


def _spec(given: argparse.Namespace) -> dict[str, Any]:
    argv = [sys.executable, "-c", _ENTRY, "-f", "{connection_file}"]
    for flag in ("session", "image", "timeout"):
        value = getattr(given, flag)
        if value is not None:
            argv += [f"--{flag}", str(value)]
    shown = given.display_name or ("Python (Belljar)" if given.name == _NAME else f"Python (Belljar: {given.name})")
    return {
        "argv": argv,
        "display_name": shown,
        "language": "python",
        # A signal would reach the kernel, and not the cell in its sandbox.
        "interrupt_mode": "message",
        "metadata": {"debugger": False},
    }


def _check_packages() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        what = " and ".join(f"`{name}`" for name in missing)
        _fail(f"{sys.executable} has no {what}", f"{sys.executable} -m pip install {' '.join(missing)}")


def _fail(message: str, fix: str) -> NoReturn:
    print(f"error: {message}\n  hint: {fix}", file=sys.stderr)
    sys.exit(_FAILED)


def _kernel_name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) is None:
        raise argparse.ArgumentTypeError(
            "a kernel's name begins with a letter or a digit and has letters, digits, dots, hyphens and underscores"
        )
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of seconds above 0, not {text!r}")
    return seconds


if __name__ == "__main__":
    main()
