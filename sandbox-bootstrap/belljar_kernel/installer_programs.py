"""`pip` and `uv` as programs that code starts: they have the host install packages, as `%pip install` does.

They stand first on the `PATH` and among Python's modules, also where the image has its own: those would look for an index
in a network that is not there. What else they are asked to do, the image's own programs do, offline.

The request goes to the guardian, on a socket that every process of the sandbox can connect to; the guardian makes a tool
call of it, for which the rules of the session's code hold.
"""

import json
import os
import socket
import sys
from importlib import metadata

from . import hints, notebook_pip

_ADDRESS = "\0belljar-requests"  # the guardian has the same in `requests.rs`
_ANSWER_BYTES = 16 * 1024 * 1024
_READ_BYTES = 64 * 1024
# These commands need the network, or change what cannot be changed, also where the image has its own `pip`.
_NOT_THERE = ("uninstall", "download", "wheel", "index", "search")
_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130
_OFFLINE = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}


class Failure(Exception):
    """What to say, and the exit code."""

    def __init__(self, text, code=_FAILED):
        super().__init__(text)
        self.code = code


def pip(arguments=None):
    """What `pip` does with these arguments; gives its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return _guarded(lambda: _pip(words, _run_pip_of_image))


def uv(arguments=None):
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["pip"]:
        return _guarded(lambda: _pip(words[1:], lambda rest: _run_uv_of_image(["pip", *rest])))
    if words[:1] == ["add"]:
        return _guarded(lambda: _install(words))
    return _guarded(lambda: _run_uv_of_image(words))


def pip_version():
    """The version of the image's own `pip`; 0 if the image has none."""
    try:
        return metadata.version("pip")
    except metadata.PackageNotFoundError:
        return "0"


def _guarded(work):
    try:
        return work()
    except Failure as failure:
        print(f"ERROR: {failure}", file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # so that Python does not try to write the rest
        return _FAILED


def _pip(words, otherwise):
    command = words[0] if words else ""
    own = {"install": _install, "list": _list, "freeze": _freeze, "show": _show}.get(command)
    if own is not None and not {"-h", "--help"} & set(words):
        return own(words)
    if command in _NOT_THERE:
        raise Failure(_supported("pip", words), _USAGE)
    return otherwise(words)


def _install(words):
    try:
        packages, is_quiet = notebook_pip.requirements(words)
    except notebook_pip.NotOfIndex as problem:
        raise Failure(str(problem)) from None
    except notebook_pip.CannotInstall as problem:
        raise Failure(str(problem), _USAGE) from None
    if not is_quiet:
        print(f"Installing {', '.join(packages)} from the package index of the host", flush=True)
    present = _ask_host({"name": "install_packages", "arguments": {"packages": packages}})
    if not is_quiet:
        print("Successfully installed", *(package.replace(" ", "-") for package in present))
    return 0


def _ask_host(request):
    """The value that the tool gives."""
    answer = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guardian:
            guardian.connect(_ADDRESS)
            guardian.sendall(json.dumps(request).encode() + b"\n")
            while len(answer) <= _ANSWER_BYTES:
                part = guardian.recv(_READ_BYTES)
                if not part:
                    break
                answer += part
    except OSError as error:
        raise Failure(f"this sandbox has no installer ({error}); {hints.install_outside()}") from None
    try:
        answer = json.loads(answer)
    except ValueError:
        raise Failure("the installation was given up: the session was reset or frozen, or the request too long") from None
    if answer.get("type") != "tool_result":
        raise Failure(answer.get("error", {}).get("message", "the installation failed"))
    return answer["value"]


def _list(words):
    form = _option(words, "--format") or "columns"
    rows = [(package.metadata["Name"], package.version) for package in _packages()]
    if form == "json":
        print(json.dumps([{"name": name, "version": version} for name, version in rows]))
    elif form == "freeze":
        return _freeze(words)
    elif form == "columns":
        width = max([len("Package"), *(len(name) for name, _ in rows)])
        for name, version in (("Package", "Version"), ("-" * width, "-" * len("Version")), *rows):
            print(f"{name:{width}} {version}")
    else:
        raise Failure(f"`pip list` has the formats columns, freeze and json here, not `{form}`", _USAGE)
    return 0


def _freeze(_words):
    for package in _packages():
        print(f"{package.metadata['Name']}=={package.version}")
    return 0


def _show(words):
    names = [word for word in words[1:] if not word.startswith("-")]
    if not names:
        raise Failure("`pip show` needs the name of a package", _USAGE)
    found, missing = [], []
    for name in names:
        try:
            found.append(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            missing.append(name)
    for number, package in enumerate(found):
        about = package.metadata
        needs = sorted({notebook_pip.name_of(need) for need in package.requires or () if "extra ==" not in need})
        rows = [("Name", about["Name"]), ("Version", package.version), ("Summary", about["Summary"])]
        rows += [("Home-page", about["Home-page"]), ("Author", about["Author"]), ("License", about["License"])]
        rows += [("Location", str(package.locate_file(""))), ("Requires", ", ".join(needs))]
        print("---\n" * (number > 0) + "\n".join(f"{key}: {value or ''}" for key, value in rows))
    if missing:
        print(f"WARNING: Package(s) not found: {', '.join(missing)}", file=sys.stderr)
    return 0 if found else _FAILED


def _packages():
    """What can be imported, each once, by name."""
    found = {}
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name and package.version:
            found.setdefault(notebook_pip.normal(name), package)
    return [found[name] for name in sorted(found)]


def _option(words, name):
    """The value after `--name` or `--name=`."""
    for place, word in enumerate(words):
        if word.startswith(name + "="):
            return word.partition("=")[2]
        if word == name:
            return "".join(words[place + 1 : place + 2])
    return None


def _run_pip_of_image(words):
    os.environ.update(_OFFLINE)
    if words[:1] in (["--version"], ["-V"]) or not words:
        version = "{}.{}".format(*sys.version_info)
        print(f"pip {pip_version()} from {os.path.dirname(sys.modules['pip'].__file__)} (python {version})")
        return 0
    try:
        from pip._internal.cli.main import main
    except ImportError:
        raise Failure(_supported("pip", words), _USAGE) from None
    return main(words)


def _run_uv_of_image(words):
    own = os.path.dirname(os.path.realpath(sys.argv[0]))
    for folder in os.get_exec_path():
        path = os.path.join(folder, "uv")
        if os.path.realpath(folder) != own and os.access(path, os.X_OK):
            os.execve(path, ["uv", *words], {**os.environ, **_OFFLINE})
    raise Failure(_supported("uv", words), _USAGE)


def _supported(program, words):
    means = "`install`, `list`, `freeze`, `show` and `--version`" if program == "pip" else "`uv pip install|list|freeze|show` and `uv add`"
    return (
        f"`{program} {' '.join(words[:2])}` is not there in this sandbox; there is {means}. "
        "Installed packages cannot be changed or removed; a new session begins without them"
    )
