"""The kernel that Jupyter talks to: each cell runs in the sandbox of a session, and nothing of it in this process."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import signal
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any, ClassVar, Coroutine

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
from IPython.core.inputtransformer2 import TransformerManager
from IPython.utils.tokenutil import token_at_cursor

from . import __version__, _api, _completion
from ._api import SandboxOptions
from ._calls import Call, as_json, get
from ._wire import quoted
from .async_sandbox import AsyncSandbox
from .daemon import default
from .errors import BadRequestError, BelljarError, ExistsError, NotFoundError
from .results import Execution, Result

#: The longest that Tab and the description of a name may take.
_LOOK_SECONDS = 5.0
#: Values of `user_expressions` that are computed for one cell.
_EXPRESSIONS = 32
#: The time for a cell where no other was asked for: what the daemon allows unless its configuration says otherwise. Its
#: usual time is for cells of models, and short for those of people.
_CELL_SECONDS = 3600.0
_Json = dict[str, Any]


@dataclass
class KernelOptions:
    """What the command line of the kernel says."""

    connection_file: str | None = None
    #: A session that stays; without one the kernel has its own, which goes with it.
    session: str | None = None
    image: str | None = None
    timeout: float | None = None

    @property
    def own_name(self) -> str:
        """The name of the kernel's own session. A kernel that is started anew gets the connection file of the one before,
        and so finds the session again."""
        place = self.connection_file or secrets.token_hex()
        return "jupyter-" + hashlib.sha256(os.fsencode(place)).hexdigest()[:12]


class BelljarKernel(Kernel):
    implementation = "belljar"
    implementation_version = __version__
    banner = "Python in a sandbox of Belljar"
    #: Jupyter makes the kernel, so its options are kept by the class.
    options: ClassVar[KernelOptions] = KernelOptions()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._box: AsyncSandbox | None = None
        #: Whether the session was there, with variables that Jupyter does not know of.
        self._is_resumed = False
        self._timeout: float | None = self.options.timeout or _CELL_SECONDS
        self._sigint_before: Any = None

    @property
    def language_info(self) -> _Json:  # type: ignore[override]
        info = None if self._box is None else self._box._info
        version = re.search(r"\d+(\.\d+)+", (info.python or "") if info is not None else "")
        return {
            "name": "python",
            "version": version[0] if version is not None else "3",
            "mimetype": "text/x-python",
            "file_extension": ".py",
            "pygments_lexer": "ipython3",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "nbconvert_exporter": "python",
        }

    @property
    def kernel_info(self) -> _Json:
        # The base class offers its debugger, which would see nothing of what runs in the sandbox.
        return {**super().kernel_info, "supported_features": []}

    async def kernel_info_request(self, stream: Any, ident: Any, parent: Any) -> None:
        # Only the sandbox knows its Python's version. What runs on the control channel has a loop of its own.
        if stream is not self.control_stream:
            try:
                await self._session()
            except BelljarError as error:
                # The first cell tries again, and has a place to say it.
                self.log.warning("the session cannot be made: %s", error)
        await super().kernel_info_request(stream, ident, parent)

    async def _session(self) -> AsyncSandbox:
        """The session, which is made or found again with the first request. Requests of the shell come one by one."""
        if self._box is not None:
            return self._box
        name, image = self.options.session, self.options.image
        if name is not None:
            try:
                self._box = await AsyncSandbox.connect(name)
            except NotFoundError:
                self._box = await AsyncSandbox.create(keep=True, **_with_image(name, image))
            return self._box
        own = self.options.own_name
        try:
            self._box = await AsyncSandbox.create(**_with_image(own, image))
        except ExistsError:
            # The process of an earlier kernel has ended, and the daemon waits for the next before it removes the session.
            daemon = default()
            info = await daemon._async.request(_api.show(_api.session_path(own)))
            self._box = AsyncSandbox(daemon, info, is_owned=True)
            # After a restart that was asked for there are none.
            self._is_resumed = bool(await self._box.variables())
        return self._box

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: _Json | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,
        cell_id: Any = None,
    ) -> _Json:
        def publish(kind: str, content: _Json) -> None:
            if not silent:
                self.send_response(self.iopub_socket, kind, content, channel="shell")

        def say(text: str) -> None:
            publish("stream", {"name": "stderr", "text": f"belljar: {text}\n"})

        def show(result: Result) -> None:
            content = {"data": forms_of(result), "metadata": {}}
            if result.is_main_result:
                publish("execute_result", {**content, "execution_count": self.execution_count})
            else:
                publish("display_data", content)

        def failed(name: str, value: str, traceback: str) -> _Json:
            error = {"ename": name, "evalue": value, "traceback": (traceback or f"{name}: {value}").splitlines()}
            publish("error", error)
            return {"status": "error", "execution_count": self.execution_count, **error}

        if not code.strip():
            return self._success({})
        try:
            box = await self._session()
            if self._is_resumed:
                say(f"the kernel was started anew; the session `{box.name}` goes on, with its variables")
                self._is_resumed = False
            run = await self._within_time(
                lambda timeout: box.run_code(
                    code,
                    on_stdout=lambda text: publish("stream", {"name": "stdout", "text": text}),
                    on_stderr=lambda text: publish("stream", {"name": "stderr", "text": text}),
                    on_result=show,
                    timeout=timeout,
                )
            )
            for note in notes_on(run):
                say(note)
            if run.error is not None:
                return failed(run.error.type, run.error.value, run.error.traceback)
            return self._success(await self._values(box, user_expressions or {}))
        except BelljarError as error:
            if isinstance(error, NotFoundError) and error.code == "no_such_session":
                self._box = None
                say("the session is gone, with its variables; the next cell begins a new one")
            return failed(type(error).__name__, str(error), "")

    def _success(self, values: _Json) -> _Json:
        return {
            "status": "ok",
            "execution_count": self.execution_count,
            "payload": [],
            "user_expressions": values,
        }

    async def _within_time(self, run: Any) -> Execution:
        """Runs a cell with as much time as was asked for, or else as the daemon allows."""
        try:
            execution: Execution = await run(self._timeout)
        except BadRequestError as error:
            most = re.search(r"at most (\d+) s \(`cells\.max_timeout`\)", error.hint or "")
            if most is None or self.options.timeout is not None:
                raise
            self._timeout = float(most[1])
            execution = await run(self._timeout)
        return execution

    async def _values(self, box: AsyncSandbox, expressions: _Json) -> _Json:
        """Values that the frontend wants to know after a cell; computing them changes nothing."""
        values: _Json = {}
        for name, expression in list(expressions.items())[:_EXPRESSIONS]:
            run = await box.run_code(str(expression), mode="fork", timeout=_LOOK_SECONDS)
            if run.error is not None:
                error = run.error
                lines = error.traceback.splitlines()
                values[name] = {"status": "error", "ename": error.type, "evalue": error.value, "traceback": lines}
            else:
                forms = forms_of(run.results[-1]) if run.results else {}
                values[name] = {"status": "ok", "data": forms, "metadata": {}}
        return values

    async def do_complete(self, code: str, cursor_pos: int) -> _Json:
        asked = _completion.question(code, cursor_pos)
        matches: list[str] = []
        if asked is not None:
            try:
                matches = await asyncio.wait_for(self._matches(asked), _LOOK_SECONDS)
            except (BelljarError, asyncio.TimeoutError) as error:
                self.log.info("nothing is offered for Tab: %s", error)
        return {
            "status": "ok",
            "matches": matches,
            "cursor_start": cursor_pos if asked is None else asked.start,
            "cursor_end": cursor_pos,
            "metadata": {},
        }

    async def _matches(self, asked: _completion.Names | _completion.Members | _completion.Paths) -> list[str]:
        box = await self._session()
        client = box._client
        if isinstance(asked, _completion.Paths):
            files = await box.files.list(asked.folder)
            shown = [f"{one.name}/" if one.kind == "folder" else one.name for one in files]
            return [name for name in shown if name.startswith(asked.begins) and _completion.can_be_quoted(name)]
        if isinstance(asked, _completion.Names):
            variables = await client.request(_names(box._path, "imports=true"))
            return _completion.names(asked.begins, variables)
        # Private names would take the room of others in the answer.
        private = str(asked.begins.startswith("_")).lower()
        query = f"of={quoted(asked.of)}&keys={str(asked.keys).lower()}&begins={quoted(asked.begins)}&private={private}"
        is_usable = _completion.can_be_quoted if asked.keys else _completion.is_name
        members = [name for name in await client.request(_names(box._path, query)) if is_usable(name)]
        return members[: _completion.NAMES]

    async def do_inspect(
        self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()
    ) -> _Json:
        data: _Json = {}
        name = token_at_cursor(code, cursor_pos)
        if name and _completion.is_dotted_name(name):
            marks = "??" if detail_level else "?"
            try:
                box = await self._session()
                # Looking at attributes can run code, whose effects are dropped with the copy. The first line fails if there
                # is no such name, of which the second only tells.
                run = await box.run_code(f"{name}\n{name}{marks}", mode="fork", timeout=_LOOK_SECONDS)
                if run.status == "success" and run.stdout:
                    data = {"text/plain": run.stdout}
            except BelljarError as error:
                self.log.info("nothing is known of a name: %s", error)
        return {"status": "ok", "found": bool(data), "data": data, "metadata": {}}

    async def do_is_complete(self, code: str) -> _Json:
        # This only reads the text; Python in the sandbox may be newer, so that it has the last word on what is wrong.
        status, indent = TransformerManager().check_complete(code)
        if status == "incomplete":
            return {"status": status, "indent": " " * (indent or 0)}
        return {"status": "complete" if status == "complete" else "invalid"}

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Comes on the control channel, which is served while a cell runs."""
        if self.session is None:
            return
        content: _Json = {"status": "ok"}
        try:
            if self._box is not None:
                await self._box.interrupt()
        except BelljarError as error:
            content = {"status": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": []}
        self.session.send(stream, "interrupt_reply", content, parent, ident=ident)

    def pre_handler_hook(self) -> None:
        """Frontends that know no interrupt requests send a signal instead, which must not end the request that waits."""
        self._sigint_before = signal.signal(signal.SIGINT, self._on_sigint)

    def post_handler_hook(self) -> None:
        signal.signal(signal.SIGINT, self._sigint_before)

    def _on_sigint(self, _number: int, _frame: FrameType | None) -> None:
        box = self._box
        if box is not None:
            threading.Thread(target=_run_quietly, args=(box.interrupt(),), daemon=True).start()

    async def do_shutdown(self, restart: bool) -> _Json:
        box = self._box
        try:
            if box is not None and restart:
                # The next kernel takes the session over, with its files.
                await box.reset()
            elif box is not None and box._is_mine:
                await box.kill()
        except BelljarError as error:
            self.log.warning("the session `%s` was not left as it should be: %s", box and box.name, error)
        return {"status": "ok", "restart": restart}


class KernelApp(IPKernelApp):
    kernel_class = BelljarKernel

    def init_path(self) -> None:
        """The base class has Python look for modules in the folder of the notebook, whose files are untrusted."""


def serve(options: KernelOptions, words: list[str]) -> None:
    """Serves until Jupyter ends the kernel."""
    BelljarKernel.options = options
    argv = list(words) if options.connection_file is None else ["-f", options.connection_file, *words]
    KernelApp.launch_instance(argv=argv)


def forms_of(result: Result) -> _Json:
    """The forms that a notebook can hold: text, and JSON where the type says so. A sandbox may claim others."""

    def fits(kind: str, value: object) -> bool:
        return isinstance(value, str) or re.fullmatch(r"application/(.*\+)?json", kind) is not None

    return {kind: value for kind, value in result.forms.items() if fits(kind, value)}


def notes_on(run: Execution) -> list[str]:
    """What a person would not expect after a cell: what happened to the variables, and what is not shown."""
    notes, state, cut = [], run.state, run.truncated
    if cut.displays:
        notes.append(f"{cut.displays} displays were too many or too large, and are left out")
    if cut.text:
        notes.append("the text of a value is too long, and only its start is shown: print it to see all of it")
    if cut.dropped_bytes:
        notes.append(f"{cut.dropped_bytes} bytes of output were too many, and are left out")
    what = None
    if state.kind == "lost":
        what = "all variables are gone; files in the workspace remain"
    elif state.kind == "restored":
        back = {None: "before the cell", 0: "at the start"}.get(state.restored_to, f"after cell {state.restored_to}")
        what = f"variables are back as {back}"
    elif state.is_unprotected and state.note is None:
        what = "the cell ran without a checkpoint to go back to"
    said = ": ".join(part for part in (what, state.note) if part is not None)
    return [*notes, said] if said else notes


def _with_image(name: str, image: str | None) -> SandboxOptions:
    return {"name": name, "image": image}


def _names(session: str, query: str) -> Call[list[str]]:
    return get(f"{session}/variables?{query}", lambda answer: [str(one["name"]) for one in as_json(answer)["variables"]])


def _run_quietly(work: Coroutine[Any, Any, object]) -> None:
    try:
        asyncio.run(work)
    except BelljarError:
        # The cell goes on; a second try, or the stop button, says why.
        pass
