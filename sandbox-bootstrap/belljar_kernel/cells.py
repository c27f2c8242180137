"""Runs a cell in the `__main__` namespace and reports how it went."""

import _frozen_importlib_external
import ast
import gc
import linecache
import posix  # not `os`, whose functions user code may replace
import sys
import time
from collections import deque

from . import harmless, names, notebook, policy, report, wire
from .late_imports import from_stdlib
from .limits import CELL_SOURCES_KEPT, NAMES_BYTES, RECURSION_LIMIT_FLOOR, cut

_CO_COROUTINE = 0x80
_CODE_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
# Names of `asyncio` that need a running loop; those in `_OWN_LOOP` need that none is running.
_IN_LOOP = frozenset(("all_tasks", "create_task", "current_task", "ensure_future", "get_running_loop"))
_COMPREHENSIONS = frozenset(("<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>"))
_LOOP_METHODS = frozenset(("run_forever", "run_until_complete"))
_OWN_LOOP = _LOOP_METHODS | {"Runner", "run"}

_REHEARSAL = b'{"type":"cell","cell":0,"code":"x = [0]\\nx","mode":"main","expression":false}'

_FileFinder = _frozen_importlib_external.FileFinder
_forget_listing = _FileFinder.invalidate_caches
_now = time.perf_counter  # an own reference: a cell may replace what the module holds
_collects, _stop_collecting, _go_on_collecting = gc.isenabled, gc.disable, gc.enable  # likewise


def _wants_loop(codes):
    """Whether the code needs an event loop: it awaits something, or starts a task that a later cell may await."""
    if any(code.co_flags & _CO_COROUTINE for code in codes):
        return True
    run_now = list(codes)
    for code in run_now:  # grows meanwhile
        run_now += [inner for inner in code.co_consts if getattr(inner, "co_name", None) in _COMPREHENSIONS]
    if all(_IN_LOOP.isdisjoint(code.co_names) for code in run_now):
        return False
    used = {name for code in run_now for name in _asyncio_names(code)}
    return not used.isdisjoint(_IN_LOOP) and used.isdisjoint(_OWN_LOOP)


def _asyncio_names(code):
    """Names of `asyncio` that the code uses, also those that it imports from there, and methods of any loop."""
    before, imported = None, set()
    for each in from_stdlib("dis").get_instructions(code):
        if each.opname == "IMPORT_FROM" and before == "asyncio":
            imported.add(each.argval)
        elif each.opname.startswith("LOAD_"):
            if before == "asyncio" or each.argval in imported or each.argval in _LOOP_METHODS:
                yield each.argval
            before = each.argval
        elif each.opname == "IMPORT_NAME":
            before = each.argval


class CellRunner:
    def __init__(self, runner, streams, interrupts, loop, displays, live, is_quiet):
        self._runner = runner
        self._streams = streams
        self._interrupts = interrupts
        self._loop = loop
        self._displays = displays
        self._live = live
        self._is_quiet = is_quiet
        self._was_quiet = False  # since the end of the last cell nothing but the kernel has run
        self._collector_rests = False  # no finalizer may run, and be forgotten
        self._sources = deque()
        self.has_forgotten = False  # the code of early cells
        self._trace = self._profile = None
        self.current = None
        self._restricted = False  # the policy of the present cell, or of the last
        self._no_packages = None  # why that cell can have no packages installed, if it cannot
        self._snippets = 0  # number of snippets that the present cell has run nested
        self._assigns = None  # the names that the present cell assigns, if it can do nothing else

    def run(self, frame):
        """Run the cell and report to the guardian. An answer is sent no matter what the code did."""
        cell = frame["cell"]
        self._prepare()
        self._displays.begin()
        self.current = cell
        self._restricted = bool(frame.get("restricted"))
        self._no_packages = frame.get("no_packages")
        self._snippets = 0
        self._assigns = None
        started = _now()
        outcome = self._outcome(frame)
        duration_ms = (_now() - started) * 1000
        if not self._runner.is_own_process():
            # This is a child that the cell forked and that ran to the end of the cell.
            posix._exit(outcome["exit_code"] or (outcome["status"] != "success"))
        self.current = None
        outcome["duration_ms"] = duration_ms
        outcome["displays_dropped"] = self._displays.dropped
        redo, self._was_quiet = b"", False
        try:
            outcome["live"] = self._live()
            answer = wire.encode_json(outcome)
            is_quiet = self._is_quiet()
            if self._assigns is not None and outcome["status"] == "success" and is_quiet:
                redo = harmless.redo(self._assigns, self._runner.namespace)
            self._was_quiet = is_quiet
            self._rest_collector(is_quiet)
        except BaseException as error:
            answer = _last_resort(duration_ms, type(error).__name__)
        self._runner.send(wire.CELL_DONE, wire.DONE.pack(cell, len(redo)) + redo + answer)

    def _prepare(self):
        self._streams.mend()
        self._interrupts.install()
        self._refresh_imports(self._enter_folder())

    def compile_beside(self, frame):
        """Code for another thread, under a policy of its own. Call this on the first thread, which compiles all code."""
        self.not_quiet()
        self._rest_collector(False)
        self._prepare()
        name = f"<cell {frame['cell']}>"
        self._keep_source(name, frame["code"])
        return self._compiled(frame["code"], name, frame["expression"], bool(frame.get("restricted")))

    def run_beside(self, compiled):
        """How such code went, on the thread that calls this; the value is shown as that of any cell."""
        return outcome_of("success", "ok", result=self._view(self._run_code(*compiled)))

    def failed_beside(self, error, frame):
        return self._failed(error, f"<cell {frame['cell']}>", frame.get("no_packages"), flushes=False)

    def not_quiet(self):
        """Code of the session may have run since the last cell."""
        self._was_quiet = False

    def _rest_collector(self, rests):
        """Between cells, and in those that change only plain values, garbage stays where it is: the collector would run its
        finalizers, which are code of the user."""
        if rests and _collects():
            self._collector_rests = True
            _stop_collecting()
        elif self._collector_rests and not rests:
            self._collector_rests = False
            _go_on_collecting()

    def rehearse(self):
        """Run a dummy cell.

        After a fork the first write to each page has to copy it. The pages that every cell writes to are
        copied here, while no client waits, rather than during the next cell.
        """
        reader = wire.MessageReader()
        reader.feed(wire.pack(wire.HOST_FRAME, _REHEARSAL))
        frame = wire.decode_json(reader.next()[1].decode())
        name = f"<cell {frame['cell']}>"
        stays = self._folder_to_go_back_to()
        self._prepare()
        if stays is not None:
            posix.chdir(stays)
        self._displays.begin()
        started = _now()
        self._keep_source(name, frame["code"])
        linecache.cache.pop(self._sources.pop(), None)
        assigned_names = []

        def check_tree(tree):
            harmless.assigned_plainly(tree, self._runner.namespace)
            harmless.nobody_listens()
            assigned_names.extend(names.assigned_in(tree, 1))

        body, last = self._compiled(frame["code"], name, frame["expression"], False, check_tree)
        self._runner.rehearse_sending(wire.CELL_BEGUN, wire.encode_json(assigned_names))
        scope = {}
        _wants_loop([body, last])
        eval(body, scope)
        value = eval(last, scope)
        namespace = self._runner.namespace
        if "_" in namespace:
            namespace["_"] = namespace["_"]
        outcome = outcome_of("success", "ok", result=self._view(value))
        outcome["duration_ms"] = (_now() - started) * 1000
        outcome.update(displays_dropped=self._displays.dropped, live=self._live())
        self._runner.rehearse_sending(wire.CELL_DONE, wire.DONE.pack(0, 0) + wire.encode_json(outcome))

    def _outcome(self, frame):
        try:
            try:
                self._interrupts.active = True
                if self._interrupts.early:
                    self._interrupts.early = False
                    if self._runner.interrupt_waits(frame["cell"]):
                        raise KeyboardInterrupt
                value = self._execute(frame)
                if self._displays.flush_figures():
                    self._assigns = None  # a cell that failed had left them
                return outcome_of("success", "ok", result=self._view(value))
            finally:
                self._interrupts.active = False
        except BaseException as error:
            self._interrupts.active = False
            floor = sys.getrecursionlimit()
            if floor < RECURSION_LIMIT_FLOOR:
                sys.setrecursionlimit(RECURSION_LIMIT_FLOOR)
            try:
                return self._failed(error, f"<cell {frame['cell']}>", self._no_packages)
            finally:
                sys.setrecursionlimit(floor)

    def _execute(self, frame):
        """The value of the last expression."""
        source, name = frame["code"], f"<cell {frame['cell']}>"
        self._keep_source(name, source)
        scope, begin = self._runner.namespace, self._begin
        if frame["mode"] == "scratch":
            scope, begin = dict(scope), self._begin_scratch
        body, last = self._compiled(source, name, frame["expression"], self._restricted, begin)
        if self._assigns is None:
            self._rest_collector(False)
        self._resume_tracing()
        try:
            value = self._run_code(body, last, scope)
        finally:
            self._suspend_tracing()
        if value is not None:
            scope["_"] = value
            if self._assigns is not None:
                self._assigns.append("_")
        return value

    def _begin(self, tree):
        """Report that the code may have effects from here on, and which names it may assign, should the process die."""
        encoded_names = b""
        try:
            assigns = harmless.assigned_plainly(tree, self._runner.namespace)
            is_quiet = self._was_quiet and self._displays.figures_are_plain()
            if assigns is not None and self._trace is self._profile is None and is_quiet:
                self._assigns = assigns
                return  # it has no effects that matter should the process die
            encoded_names = wire.encode_json(names.assigned_in(tree, self._runner.limits.names))
        except Exception:
            pass  # user code may have left little memory, or another `ast`
        self._runner.send(wire.CELL_BEGUN, encoded_names if len(encoded_names) <= NAMES_BYTES else b"")

    def _begin_scratch(self, _tree):
        """The same for code whose names are dropped: it can assign none of the session, but may change its objects."""
        self._runner.send(wire.CELL_BEGUN, b"")

    def name_snippet(self):
        """The file name of code that runs nested in the present cell."""
        self._snippets += 1
        return f"<cell {self.current or 0}.{self._snippets}>"

    def run_snippet(self, source, name):
        """Run code nested in a cell, under the policy of that cell. Returns the value of its last expression."""
        self._keep_source(name, source)
        return self._run_code(*self._compiled(source, name, False, self._restricted))

    def describe_snippet(self, error, name):
        """An error of code that runs nested in the present cell."""
        return self._described(error, name, self._no_packages)

    def _described(self, error, name, no_packages):
        only_last = isinstance(error, _NotCompiled)
        shown = error.__cause__ if only_last else error
        return report.describe(shown, self._runner.limits, name, only_last, no_packages)

    def _compiled(self, source, name, expression, restricted, on_parsed=None):
        namespace = self._runner.namespace if restricted else None
        # Python 3.11 fails if code of an earlier cell, such as a finalizer, runs while a tree is built.
        collects = _collects()
        _stop_collecting()
        try:
            return _compile(source, name, expression, namespace, on_parsed)
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            raise _NotCompiled from error
        finally:
            if collects:
                _go_on_collecting()

    def _run_code(self, body, last, scope=None):
        """Run compiled code with these names; without them, with those of the session."""
        if scope is None:
            scope = self._runner.namespace
        if _wants_loop([code for code in (body, last) if code is not None]):
            # Both parts run in the loop, so that statements without an `await` can create tasks.
            return self._loop.run(self._run_code_async(body, last, scope))
        if body is not None:
            eval(body, scope)
        return None if last is None else eval(last, scope)

    async def _run_code_async(self, body, last, scope):
        value = None
        for code in (body, last):
            if code is not None:
                value = eval(code, scope)
                if code.co_flags & _CO_COROUTINE:
                    value = await value
        return None if last is None else value

    def _view(self, value):
        return None if value is None else self._displays.view(value)

    def _failed(self, error, cell_name, no_packages, flushes=True):
        if isinstance(error, _NotCompiled):
            reason = "policy" if isinstance(error.__cause__, policy.PolicyError) else "syntax"
            return outcome_of("failure", reason, exception=self._described(error, cell_name, no_packages))
        if isinstance(error, SystemExit):
            return self._exited(error)
        described = self._described(error, cell_name, no_packages)
        if flushes:
            self._flush_figures_after(error)
        if isinstance(error, KeyboardInterrupt):
            return outcome_of("interrupted", "by_user", exception=described)
        return outcome_of("failure", "exception", exception=described)

    def _flush_figures_after(self, error):
        """Show figures that were drawn before the exception; errors in doing so are ignored."""
        if isinstance(error, KeyboardInterrupt):
            return
        try:
            self._displays.flush_figures()
        except BaseException:
            pass

    def _exited(self, error):
        code = error.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            try:
                text = str(code)
            except BaseException:
                text = "<no text>"
            self._streams.say(cut(text, self._runner.limits.exception_chars) + "\n")
            code = 1
        code = int(code)
        if not -(2**31) <= code < 2**31:
            code = 1  # no system has such an exit code
        return outcome_of("failure", "exit", code) if code else outcome_of("success", "exit0")

    def _keep_source(self, name, source):
        """Keep the source for tracebacks, also those of later cells. Without a time stamp it is not checked on disk."""
        # Python 3.11 marks the wrong place in a last line without an end.
        linecache.cache[name] = (len(source), None, (source + "\n").splitlines(True), name)
        self._sources.append(name)
        if len(self._sources) > CELL_SOURCES_KEPT:
            linecache.cache.pop(self._sources.popleft(), None)
            self.has_forgotten = True

    def _enter_folder(self):
        """Begin in the workspace, or where `%cd` went, and give that folder. What `os.chdir` does ends with its cell, unless
        the session keeps it."""
        folder = self._runner.commands.folder
        try:
            present = posix.getcwd()
        except OSError:
            present = None  # it was removed
        if present == folder or self._runner.limits.keep_cwd:
            return present
        try:
            posix.chdir(folder)
        except (OSError, TypeError, ValueError):
            return present  # the other one was removed, or user code put something else there
        return folder

    def _folder_to_go_back_to(self):
        """The present folder, if the next cell begins in another one. Until then code of the session may run in it, and a
        snapshot notes it down."""
        try:
            present = posix.getcwd()
        except OSError:
            return None
        return present if present != self._runner.commands.folder else None

    def _refresh_imports(self, folder):
        """Make sure that a module of the folder that the previous cell wrote is found, even if it was written just now."""
        try:
            finders = sys.path_importer_cache
            if not harmless.has_plain_keys(finders):
                self.not_quiet()  # looking one up may run code of the user
            finder = finders.get(folder)
            if type(finder) is _FileFinder:
                _forget_listing(finder)
            elif finder is not None:
                self.not_quiet()  # it is the user's
                finder.invalidate_caches()
        except BaseException:
            pass  # the folder is gone, or what the user put there is no finder

    def _suspend_tracing(self):
        """A trace function of user code sees cells, not the kernel."""
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        if self._trace is not None:
            sys.settrace(None)
        if self._profile is not None:
            sys.setprofile(None)

    def _resume_tracing(self):
        if self._profile is not None:
            sys.setprofile(self._profile)
        if self._trace is not None:
            sys.settrace(self._trace)


class _NotCompiled(Exception):
    """Nothing of the cell has run."""


def _compile(source, name, expression, restricted_namespace=None, on_parsed=None):
    """`(code of the statements, code of a last expression)`, either may be None.

    With a namespace the code has to keep to the restricted policy. `on_parsed` is shown the tree.
    """
    if expression:
        # Leading blanks are no indentation where there is only one expression.
        source = source.strip()
    tree = notebook.parse(source, name, "eval" if expression else "exec")
    if restricted_namespace is not None:
        policy.check(tree, source, name, restricted_namespace)
    if on_parsed is not None:
        on_parsed(tree)
    if expression:
        return None, compile(tree, name, "eval", _CODE_FLAGS, dont_inherit=True)
    body, last = tree.body, None
    if body and isinstance(body[-1], ast.Expr) and not notebook.is_hushed(body[-1], source):
        last = compile(ast.Expression(body.pop().value), name, "eval", _CODE_FLAGS, dont_inherit=True)
    if not body:
        return None, last
    return compile(tree, name, "exec", _CODE_FLAGS, dont_inherit=True), last


def outcome_of(status, reason, exit_code=0, result=None, exception=None):
    return {"status": status, "reason": reason, "exit_code": exit_code, "result": result, "exception": exception}


def _last_resort(duration_ms, trouble):
    """The answer when the proper one cannot be built; made of nothing that can fail."""
    text = f"the result could not be encoded ({trouble})"
    return (
        f'{{"status":"failure","reason":"exception","exit_code":0,'
        f'"result":null,"exception":{{"type":"KernelError","value":"{text}","repr":"","traceback":""}},'
        f'"duration_ms":{duration_ms:.3f},"displays_dropped":0,'
        f'"live":{{"threads":0,"tasks":0,"children":0}}}}'
    ).encode()
