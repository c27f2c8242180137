"""What notebook commands do: the methods that `notebook.py` lets a cell call.

A shell command writes to the output of the cell itself, so what it says is seen at once and in order. It runs in a
process group of its own, and nothing of that group is left when the cell goes on, is interrupted, or runs out of time.
"""

import _string
import codecs
import io
import os
import re
import resource
import sys
import time
import types

from . import hints, notebook, notebook_pip
from .late_imports import from_stdlib
from .limits import COMMAND_GRACE_S, COMMAND_LOOK_MS, COMMAND_READ_BYTES, TIMEIT_LOOP_S, TIMEIT_RUNS, TIMEIT_S

INSTALL_TOOL = "install_packages"  # a tool of the host
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh")
_NOT_FOUND = 127  # how a shell ends that cannot find a program
_INSTALLERS = frozenset(("pip", "pip3"))
_QUOTED = r"\$(\$?)([^\W\d]\w*)|\\.|['\"]"
_UNITS = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))

# Own references: a cell may replace what these modules hold.
_now = time.perf_counter
_getframe = sys._getframe


class NotebookError(RuntimeError):
    """A notebook command cannot do what it was asked for."""


NotebookError.__module__ = "builtins"


class Lines(list):
    """The lines of a command's output: a list, and the whole as text in `n` (lines) and `s` (separated by blanks)."""

    @property
    def n(self):
        return "\n".join(self)

    @property
    def s(self):
        return " ".join(self)

    @property
    def l(self):  # noqa: E743 - the name that notebooks have for it
        return list(self)

    def __reduce__(self):
        return list, (list(self),)  # so that others can load it


Lines.__module__ = "builtins"


class Captured:
    """What a cell below `%%capture` wrote: `stdout` and `stderr` as text, while it runs and afterwards."""

    def __init__(self):
        self._out, self._err = io.StringIO(), io.StringIO()
        self._before = None

    @property
    def stdout(self):
        return self._out.getvalue()

    @property
    def stderr(self):
        return self._err.getvalue()

    def __str__(self):
        return self.stdout

    def show(self):
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)

    def __enter__(self):
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._out, self._err
        return self

    def __exit__(self, *_exception):
        sys.stdout, sys.stderr = self._before
        self._before = None


Captured.__module__ = "builtins"


class NotebookCommands:
    """The commands. Those that take words fill in values of the code that calls them."""

    def __init__(self, namespace, streams, interrupts, workspace, installer):
        self._namespace = namespace
        self._streams = streams
        self._interrupts = interrupts
        self._workspace = workspace
        self._installer = installer  # gives the tool that installs packages, if there is one
        self.folder = _present_folder()  # where cells begin
        self._folder_before = None
        self.value = None  # of the last expression below a `%%time`

    # `!command`

    def run(self, command):
        self._run(_filled(command, _getframe(1)), None)

    def lines(self, command):
        parts = []
        self._run(_filled(command, _getframe(1)), parts.append)
        return Lines("".join(parts).splitlines())

    def script(self, _words, commands):
        """`%%bash`: text for the shell, in which nothing is filled in."""
        if commands.strip():
            self._shell(commands.rstrip(), None)

    def ls(self, words):
        self._shell(f"ls {_filled(words, _getframe(1))}", None)

    def pip(self, words):
        filled = _filled(words, _getframe(1))
        if filled.split()[:1] == ["install"] and self._installer() is not None:
            self._install(notebook_pip.of_line, filled, _say)
        elif from_stdlib("shutil").which("pip") is None:
            raise NotebookError(hints.no_pip())
        else:
            self._shell(f"pip {filled}", None)

    def _run(self, command, take):
        is_install = self._installer() is not None and notebook_pip.of_shell(command) is not None
        if is_install:
            self._install(notebook_pip.of_shell, command, _say if take is None else take)
        else:
            self._shell(command, take)

    def _install(self, read, text, say):
        try:
            packages, is_quiet = notebook_pip.requirements(read(text))
        except notebook_pip.CannotInstall as problem:
            raise NotebookError(str(problem)) from None
        present = self._installer()(packages)
        from_stdlib("importlib").invalidate_caches()
        self._namespace["_exit_code"] = 0
        if not is_quiet:
            say(f"installed: {', '.join(present)}")

    def _shell(self, command, take):
        """Run the command; `take` is called with its output, which is the cell's own if there is none."""
        shell = next((each for each in _SHELLS if os.access(each, os.X_OK)), None)
        if shell is None:
            raise NotebookError(
                "the image of this sandbox has no shell, so `!` cannot run commands: "
                'run programs with `subprocess.run(["program", "argument"])`, or do it in Python'
            )
        if command.endswith("&") and not command.endswith("&&"):
            raise NotebookError(
                "a command behind `!` or `%%bash` cannot stay in the background: "
                'start what has to go on with `subprocess.Popen(["program", "argument"])`'
            )
        if take is None and not self._streams.is_own(sys.stdout):
            take = sys.stdout.write  # code has redirected it, or runs nested
        self._streams.settle()
        code = self._wait([shell, "-c", command], take)
        self._streams.settle()
        self._namespace["_exit_code"] = code
        if code == _NOT_FOUND and command.split()[0] in _INSTALLERS:
            self._streams.say(hints.no_pip() + "\n")
        from_stdlib("importlib").invalidate_caches()  # it may have made modules

    def _wait(self, arguments, take):
        subprocess = from_stdlib("subprocess")
        output = {} if take is None else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = None
        try:
            # An interrupt that comes between the start of the command and its name here is raised behind both.
            with self._interrupts:
                process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, start_new_session=True, **output)
            if take is not None:
                _copy(process, take)
            _wait_for_end(process.pid)
        except BaseException:
            with self._interrupts:
                if process is not None:
                    _end(process, subprocess.TimeoutExpired)
            raise
        finally:
            with self._interrupts:
                if process is not None:
                    _kill_group(process.pid, 9)
                    process.wait()
                    if process.stdout is not None:
                        process.stdout.close()
        return process.returncode

    # `%cd`, `%pwd`, `%env`, `%%writefile`, `%run`, `%%capture`, `%matplotlib`, `name?`

    def pwd(self, _words):
        return _present_folder()

    def writefile(self, words, text):
        words = _filled(words, _getframe(1))
        flag, _blank, path = words.partition(" ")
        appends = flag in ("-a", "--append")
        path = os.path.expanduser(_unquoted(path if appends else words))
        if not path or path.startswith("-"):
            raise NotebookError("`%%writefile` needs the path of a file, with `-a` before it to add to one")
        done = "Appending to" if appends else "Overwriting" if os.path.exists(path) else "Writing"
        with open(path, "a" if appends else "w", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else text + "\n")
        _say(f"{done} {path}")

    def run_file(self, words):
        """`%run`: a script, whose names the session has afterwards."""
        path, *arguments = from_stdlib("shlex").split(_filled(words, _getframe(1))) or [""]
        if not path or path.startswith("-"):
            raise NotebookError("`%run` needs the path of a script, and the arguments of the script behind it")
        path = os.path.expanduser(path)
        path = path if os.path.exists(path) or path.endswith(".py") else path + ".py"
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        scope, before = {"__name__": "__main__", "__file__": path}, sys.argv
        sys.argv = [path, *arguments]
        try:
            exec(code, scope)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        finally:
            sys.argv = before
            self._namespace.update((name, value) for name, value in scope.items() if not name.startswith("__"))

    def capture(self):
        return Captured()

    def cd(self, words):
        path = _filled(_unquoted(words), _getframe(1))
        before = _present_folder()
        if path == "-":
            if self._folder_before is None:
                raise NotebookError("`%cd -` goes back to the folder before, and there is none yet")
            path = self._folder_before
        os.chdir(os.path.expanduser(path) if path else self._workspace)
        self._folder_before, self.folder = before, os.getcwd()
        _say(self.folder)

    def env(self, words):
        words = _filled(words, _getframe(1))
        if not words:
            return dict(os.environ)
        name, sign, value = words.partition("=")
        if not sign:
            name, sign, value = words.partition(" ")
        name, value = name.strip(), _unquoted(value)
        if not sign:
            if name not in os.environ:
                raise NotebookError(f"there is no variable `{name}` in the environment; `%env {name}=VALUE` sets it")
            return os.environ[name]
        os.environ[name] = value
        _say(f"env: {name}={value}")
        return None

    def matplotlib(self, _words):
        """Figures are shown at the end of every cell anyway, whatever is asked for here."""

    def help(self, name, has_more):
        frame = _getframe(1)
        try:
            thing = eval(name, frame.f_globals, frame.f_locals)
        except Exception as error:
            _say(f"`{name}` cannot be shown: {type(error).__name__}: {error}")
            return
        _say(_description(name, thing, has_more))

    # `%time`, `%timeit`

    def begin(self):
        return _Timer()

    def timed(self, timer, value):
        _say(timer.text())
        return value

    def timer(self):
        return _Timer()

    def take_value(self):
        value, self.value = self.value, None
        return value

    def timeit(self, setup, code, loops, runs, name, line, is_cell):
        run = types.FunctionType(notebook.timed_loop(setup, code, name, line, is_cell), self._namespace)
        repeat = from_stdlib("itertools").repeat
        begun = _now()
        if not loops:
            sizes = (digit * 10**zeros for zeros in range(10) for digit in (1, 2, 5))
            loops = next(each for each in sizes if run(repeat(None, each), _now) >= TIMEIT_LOOP_S or each >= 10**9)
        times = [run(repeat(None, loops), _now) / loops]
        runs = runs or TIMEIT_RUNS
        while len(times) < runs and _now() - begun < TIMEIT_S:
            times.append(run(repeat(None, loops), _now) / loops)
        mean = sum(times) / len(times)
        deviation = (sum((each - mean) ** 2 for each in times) / len(times)) ** 0.5
        each = f"{len(times)} run{'s' * (len(times) > 1)}, {loops:,} loop{'s' * (loops > 1)} each"
        _say(f"{_duration(mean)} ± {_duration(deviation)} per loop (mean ± std. dev. of {each})")


class _Timer:
    """The time since it was made; as a context, it tells it at its end."""

    def __init__(self):
        self._usage, self._begin = resource.getrusage(resource.RUSAGE_SELF), _now()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        _say(self.text())

    def text(self):
        wall, usage = _now() - self._begin, resource.getrusage(resource.RUSAGE_SELF)
        user, system = usage.ru_utime - self._usage.ru_utime, usage.ru_stime - self._usage.ru_stime
        total = _duration(user + system)
        cpu = f"CPU times: user {_duration(user)}, sys: {_duration(system)}, total: {total}"
        return f"{cpu}\nWall time: {_duration(wall)}"


def _duration(seconds):
    """Three digits and a unit."""
    if seconds >= 60:
        return f"{int(seconds // 60)} min {seconds % 60:.0f} s"
    scale, unit = next((each for each in reversed(_UNITS) if seconds >= each[0]), _UNITS[0])
    return f"{seconds / scale:.3g} {unit}"


def _present_folder():
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None  # it was removed


def _say(text):
    sys.stdout.write(text + "\n")


def _unquoted(words):
    words = words.strip()
    return words[1:-1] if len(words) > 1 and words[0] == words[-1] and words[0] in "'\"" else words


def _filled(command, frame):
    """Values of the calling code in place of `{expression}` and `$name`; what cannot be evaluated is the shell's."""
    try:
        pieces = list(_string.formatter_parser(command))
    except ValueError:
        return command  # its braces have no partner
    filled, names = [], _Names(frame)
    for text, field, rest, conversion in pieces:
        filled.append(re.sub(_QUOTED, names.filled, text))
        if field is not None:
            value = None if text.endswith("$") else _field_value(field, rest, conversion, frame)
            shown_by = (f"!{conversion}" if conversion else "") + (f":{rest}" if rest else "")
            filled.append(f"{{{field}{shown_by}}}" if value is None else value)
    return "".join(filled)


class _Names:
    """Fills `$name` in, except between apostrophes, where the shell has no names either."""

    def __init__(self, frame):
        self._scopes = (frame.f_locals, frame.f_globals)
        self._quote = ""  # the one that is open

    def filled(self, found):
        whole, (is_escaped, name) = found.group(), found.groups()
        if whole in ("'", '"'):
            if self._quote in ("", whole):
                self._quote = "" if self._quote else whole
        elif name is not None and self._quote != "'":
            for scope in self._scopes:
                if name in scope:
                    return f"${name}" if is_escaped else str(scope[name])
        elif self._quote == "'" and whole.endswith("'"):
            self._quote = ""  # a backslash means nothing between apostrophes
        return whole


def _field_value(field, rest, conversion, frame):
    """What stands for `{field:rest}`: `x[1:2]` was parted at its colon, `x:.2f` has a format."""
    value = _evaluated(f"{field}:{rest}".strip() if rest else field.strip(), frame, conversion)
    if value is None and rest:
        value = _evaluated(field.strip(), frame, conversion, rest)
    return value


def _evaluated(expression, frame, conversion, form=""):
    """The value as text; None if the braces are meant for the shell."""
    is_foreign = expression.isidentifier() and expression not in frame.f_locals and expression not in frame.f_globals
    if is_foreign or expression.isdigit():
        return None  # such as `{print}` for awk and `{3}` in patterns
    try:
        value = eval(expression, frame.f_globals, frame.f_locals)
        if isinstance(value, tuple):
            return None  # `{1,2}` is for the shell, and a tuple makes no sense in a command
        value = repr(value) if conversion == "r" else value
        return format(value, form) if form else str(value)
    except Exception:
        return None


def _copy(process, take):
    """Pass the output on until the command has ended; what it left in the background ends with it."""
    descriptor, decoder = process.stdout.fileno(), codecs.getincrementaldecoder("utf-8")("replace")
    output = from_stdlib("select").poll()
    output.register(descriptor)
    has_ended = False
    while True:
        if output.poll(0 if has_ended else COMMAND_LOOK_MS):
            data = os.read(descriptor, COMMAND_READ_BYTES)
        elif has_ended:
            data = b""  # something that left the group holds the other end
        else:
            has_ended = _has_ended(process.pid)
            if has_ended:
                _kill_group(process.pid, 9)
            continue
        text = decoder.decode(data, not data)
        if text:
            take(text)
        if not data:
            return


def _has_ended(pid):
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def _wait_for_end(pid):
    """The process stays, so that its group can still be named."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        pass  # code of the session ignores SIGCHLD, so it is gone already


def _end(process, too_late):
    _kill_group(process.pid, 2)
    try:
        process.wait(COMMAND_GRACE_S)
    except too_late:
        pass


def _kill_group(group, signal):
    try:
        os.killpg(group, signal)
    except (ProcessLookupError, PermissionError):
        pass


def _description(name, thing, has_more):
    inspect = from_stdlib("inspect")
    lines = []
    if callable(thing):
        try:
            lines.append(f"Signature: {name}{inspect.signature(thing)}")
        except (TypeError, ValueError):
            pass
    lines.append(f"Type:      {type(thing).__name__}")
    if not callable(thing) and not inspect.ismodule(thing):
        lines.append(f"Value:     {repr(thing)[:1000]}")
    try:
        lines.append(f"File:      {inspect.getfile(thing)}")
    except (TypeError, OSError):
        pass
    text = None
    if has_more:
        try:
            text = "Source:\n" + inspect.getsource(thing)
        except (TypeError, OSError):
            pass
    if text is None:
        text = "Docstring:\n" + (inspect.getdoc(thing) or "(none)")
    return "\n".join((*lines, text)).rstrip()
