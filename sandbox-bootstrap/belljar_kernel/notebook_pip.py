"""What `pip install` in a cell asks for. A sandbox has no network, so the host's installer does it."""

import re

from . import hints
from .late_imports import from_stdlib

_PYTHONS = ("python", "python3")
_PIPS = ("pip", "pip3")
_SHELL_SIGNS = frozenset("();<>|&")
_FILE = ("-r", "--requirement")
_FILE_BYTES = 64 * 1024
_FILE_ENDINGS = (".whl", ".tar.gz", ".zip", ".egg", ".txt")
_QUIET = ("-q", "-qq", "-qqq", "--quiet")
# These options ask for what is so anyway. Models write `--upgrade` by habit: a package that is missing comes in its
# newest version, and one that is there stays, because code may have imported it.
_WITHOUT_EFFECT = frozenset(
    (
        "-U",
        "--break-system-packages",
        "--disable-pip-version-check",
        "--no-cache-dir",
        "--no-color",
        "--no-input",
        "--only-binary=:all:",
        "--prefer-binary",
        "--root-user-action=ignore",
        "--system",
        "--upgrade",
        "--user",
    )
)


class CannotInstall(ValueError):
    """The words after `pip install` ask for something that the installer does not do."""


class NotOfIndex(CannotInstall):
    """What is named comes from no index."""


def of_shell(command):
    """The words after `pip` if a shell command is a `pip install` and nothing else, otherwise None."""
    lexer = from_stdlib("shlex").shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return None  # a quote is open, which the shell shall tell
    if any(_SHELL_SIGNS.issuperset(word) for word in words):
        return None
    if words[:1] and words[0] in _PYTHONS and words[1:2] == ["-m"]:
        words = words[2:]
    elif words[:1] == ["uv"]:
        words = words[1:]
    return words[1:] if words[:1] and words[0] in _PIPS and words[1:2] == ["install"] else None


def of_line(text):
    """The words after `%pip`, in which `numpy<3` needs no quotes."""
    try:
        return from_stdlib("shlex").split(text, comments=True)
    except ValueError as problem:
        raise CannotInstall(f"`%pip {text}` cannot be read: {problem}") from None


def requirements(words):
    """The packages that `install …` names, and whether it shall say nothing about them."""
    packages, is_quiet = [], False
    words = iter(words[1:])
    for word in words:
        option, sign, value = word.partition("=")
        if word in _QUIET:
            is_quiet = True
        elif word in _FILE or (option in _FILE and sign):
            packages += _of_file(value if sign else next(words, ""))
        elif word.startswith("-"):
            if word not in _WITHOUT_EFFECT:
                raise CannotInstall(hints.pip_option(word))
        else:
            packages.append(word)
    for package in packages:
        _check(package)
    if not packages:
        raise CannotInstall("`pip install` needs the name of a package, as in `%pip install polars`")
    return packages, is_quiet


def _check(package):
    """Refuse what the host would refuse anyway, before the user is told that it is being installed."""
    named = package.partition(";")[0].strip()
    is_url = "://" in named or "@" in named
    if is_url or named[:1] in (".", "~") or "/" in named or named.lower().endswith(_FILE_ENDINGS):
        raise NotOfIndex(hints.not_of_index(package, "a URL" if is_url else "a path or a file"))


def _of_file(path):
    """The packages that a file names, one in a line."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as problem:
        raise CannotInstall(f"the requirements in `{path}` cannot be read: {problem}") from None
    if len(text) > _FILE_BYTES:
        raise CannotInstall(f"the requirements in `{path}` are longer than {_FILE_BYTES} characters")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    found = [line for line in lines if line]
    for line in found:
        if line.startswith("-"):
            raise CannotInstall(hints.pip_option(line.split()[0]))
    return found


def normal(name):
    """The name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement):
    """The name at the beginning of a requirement."""
    return re.match(r"[A-Za-z0-9._-]*", requirement).group()
