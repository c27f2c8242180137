"""Jobs: code that runs once, each time in a fresh sandbox that goes with it."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Literal, Mapping, Sequence, TypedDict

from ._api import bytes_of, named_texts, seconds_of, text_of, texts_of, values_of, wrong
from ._calls import Attempts, Broken, Call, as_json, delete, encoded_json, get, nothing, post
from ._exchange import Exchanges
from ._sync import end_of
from .daemon import Daemon, chosen
from .errors import BelljarError, DaemonError, NotFoundError, problem_of
from .results import ExecutionError, Json

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Jobs that are sent with one request. The daemon takes more, but counts them all against `quota.jobs` at once.
_BATCH_JOBS = 500
#: An input of `map` that is larger goes into a file.
_ITEM_BYTES = 4096
#: A value of a job that is larger is not read, because untrusted code wrote it.
_RESULT_BYTES = 64 * 1024 * 1024
#: Names of files that are not the caller's.
_RESERVED = "_belljar_"
_RUNNER = f"{_RESERVED}run.py"
_RESULT = f"{_RESERVED}result.json"
_CODE = "main.py"


class JobOptions(TypedDict, total=False):
    """How jobs are run; what is not given is as the daemon's configuration says."""

    image: str | None
    #: Bytes, or text such as `"2GiB"`.
    memory: int | str | None
    cpus: float | None
    backend: Literal["docker", "bubblewrap"] | None
    #: Variables of the environment.
    envs: Mapping[str, str] | None
    #: Files beside the code, by their paths there: text, bytes, or a path of a file or folder here.
    files: Mapping[str, str | bytes | os.PathLike[str]] | None
    #: Packages that are installed first.
    packages: Sequence[str] | None
    #: Seconds that each may run.
    timeout: float | None
    #: Patterns of files that are kept, such as `"*.png"`; `JobResult.files` has them.
    artifacts: Sequence[str] | None


@dataclass
class JobResult:
    """How a job ended. No end is an exception in this process: look at `error`, or call `check`."""

    id: str
    #: `passed`, `failed`, `timed_out`, `crashed`, `out_of_memory`, `cancelled` or `error`.
    verdict: str
    exit_code: int
    #: Why it ended this way, in a sentence.
    reason: str
    #: The value of the last expression or, if that is None or there is none, of the variable `result`.
    value: Any
    #: Its `repr`, if it is a value that JSON does not have, as NaN, or a dictionary with keys that are no text. Of one that
    #: is longer, the first 20,000 characters: what has to be whole goes into a file that is kept.
    text: str | None
    error: ExecutionError | None
    stdout: str
    stderr: str
    duration_s: float
    #: The files that were kept, by path. Untrusted code wrote them.
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    #: Whether part of `text`, `stdout` or `stderr` is left out, because there was too much of it.
    truncated: bool = False

    def check(self) -> JobResult:
        """Raises a `RuntimeError` with the traceback unless the job passed."""
        if self.error is not None:
            raise RuntimeError(f"job {self.id} did not pass: {self.error}")
        return self


def run_job(
    code: str | os.PathLike[str],
    *,
    args: Sequence[str] = (),
    daemon: Daemon | None = None,
    **options: Unpack[JobOptions],
) -> JobResult:
    """Runs code once, in a fresh sandbox that goes with it. Text is code, a path is a file of it; `args` are its
    `sys.argv`. Exceptions, timeouts and crashes of the code are in the result. A Ctrl-C ends the job."""
    plan = _Plan(code, [None], args=args, has_items=False, parallel=None, **options)
    return end_of(plan.run(chosen(daemon)._sync.exchanges))[0]


async def run_job_async(
    code: str | os.PathLike[str],
    *,
    args: Sequence[str] = (),
    daemon: Daemon | None = None,
    **options: Unpack[JobOptions],
) -> JobResult:
    """The same as `run_job`, with asyncio. If the task is cancelled, so is the job."""
    plan = _Plan(code, [None], args=args, has_items=False, parallel=None, **options)
    return (await plan.run(chosen(daemon)._async))[0]


def map(
    code: str | os.PathLike[str],
    inputs: Iterable[Any],
    *,
    parallel: int | None = None,
    daemon: Daemon | None = None,
    **options: Unpack[JobOptions],
) -> list[JobResult]:
    """Runs code once for each input, each time in a fresh sandbox, and gives the results in the order of the inputs.

    The input, which JSON has to have, is there as the variable `item`; the value is that of the last expression or, if
    that is None or there is none, of the variable `result`, and JSON has to have it, too. A job that does not pass has an
    `error` in its result and ends no other. At most `parallel` run at once. A Ctrl-C ends all.
    """
    plan = _Plan(code, list(inputs), args=(), has_items=True, parallel=parallel, **options)
    return end_of(plan.run(chosen(daemon)._sync.exchanges))


async def map_async(
    code: str | os.PathLike[str],
    inputs: Iterable[Any],
    *,
    parallel: int | None = None,
    daemon: Daemon | None = None,
    **options: Unpack[JobOptions],
) -> list[JobResult]:
    """The same as `map`, with asyncio. If the task is cancelled, so are the jobs."""
    plan = _Plan(code, list(inputs), args=(), has_items=True, parallel=parallel, **options)
    return await plan.run(chosen(daemon)._async)


class _Plan:
    """What is to be sent, checked before anything is."""

    def __init__(
        self,
        code: str | os.PathLike[str],
        items: list[Any],
        *,
        args: Sequence[str],
        has_items: bool,
        parallel: int | None,
        image: str | None = None,
        memory: int | str | None = None,
        cpus: float | None = None,
        backend: str | None = None,
        envs: Mapping[str, str] | None = None,
        files: Mapping[str, str | bytes | os.PathLike[str]] | None = None,
        packages: Sequence[str] | None = None,
        timeout: float | None = None,
        artifacts: Sequence[str] | None = None,
    ) -> None:
        if parallel is not None and (isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1):
            raise wrong(f"`parallel` is a number of at least 1, not {parallel!r}")
        self._parallel = parallel
        self._has_items = has_items
        self._args = texts_of(args, "args")
        self._items = [encoded_json(item) for item in items]
        self._name, self._code = _code_of(code)
        self._files = values_of(files, "files")
        for path, content in self._files.items():
            if not isinstance(content, (str, bytes, os.PathLike)):
                raise wrong(f"`{path}` in `files` is text, bytes or a path, not {type(content).__name__}")
            plain = os.path.normpath(text_of(path, "files"))
            if plain.startswith(_RESERVED) or plain == self._name:
                raise wrong(f"the name `{path}` in `files` is taken by the code of the job", "use another name")
        given = {"image": image, "cpus": cpus, "backend": backend, "timeout_s": seconds_of(timeout)}
        self._common: Json = {key: value for key, value in given.items() if value is not None}
        if memory is not None:
            self._common["memory_bytes"] = bytes_of(memory, "memory")
        self._common["env"] = named_texts(envs, "envs")
        self._common["with"] = texts_of(packages, "packages")
        self._common["artifacts"] = [_RESULT, *texts_of(artifacts, "artifacts")]
        # The daemon cancels the jobs when this process ends, however it does.
        self._common.update(script=_RUNNER, ephemeral=True)

    async def run(self, exchanges: Exchanges) -> list[JobResult]:
        results: list[JobResult] = []
        for start in range(0, len(self._items), _BATCH_JOBS):
            results += await self._run_batch(exchanges, self._items[start : start + _BATCH_JOBS])
        return results

    async def _run_batch(self, exchanges: Exchanges, items: list[bytes]) -> list[JobResult]:
        path, ids = await self._submit(exchanges, items)
        try:
            return await _Batch(exchanges, path, ids).results()
        except DaemonError:
            # It does not answer; it ends the jobs itself when it sees that nobody waits for them.
            raise
        except GeneratorExit:
            # Nothing can be awaited any more; the daemon ends the jobs itself.
            raise
        except BaseException:
            try:
                await exchanges.request(delete(path, nothing))
            except BelljarError:
                # What went wrong before is what the caller has to know.
                pass
            raise

    async def _submit(self, exchanges: Exchanges, items: list[bytes]) -> tuple[str, list[str]]:
        archive = self._archive(items)
        jobs = [{"name": f"{self._name} [{number}]", "args": self._words(number, item)} for number, item in enumerate(items)]
        for is_last in (False, True):
            put = Call("PUT", "/v1/job-inputs", as_json, archive, {"Content-Type": "application/x-tar"})
            sent = await exchanges.request(put)
            body = {"common": {**self._common, "input": sent["id"]}, "jobs": jobs, "parallel": self._parallel}
            try:
                made = await exchanges.request(post("/v1/batches", as_json, body))
            except NotFoundError as error:
                # A daemon that was restarted meanwhile has not kept the files.
                if is_last or error.code != "no_such_input":
                    raise
                continue
            return f"/v1/batches/{made['id']}", list(made["jobs"])
        raise AssertionError("the second try returns or raises")

    def _words(self, number: int, item: bytes) -> list[str]:
        """The arguments of the runner: what it runs, with which input, and the arguments of the code."""
        if not self._has_items:
            given = ["none", ""]
        elif len(item) > _ITEM_BYTES:
            given = ["file", _item_file(number)]
        else:
            given = ["json", item.decode("utf-8")]
        return [self._name, "yes" if self._has_items else "no", *given, *self._args]

    def _archive(self, items: list[bytes]) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, content in self._files.items():
                if isinstance(content, (str, bytes)):
                    _add(archive, path, content.encode("utf-8") if isinstance(content, str) else content)
                else:
                    archive.add(os.fspath(content), path, filter=_plain)
            _add(archive, self._name, self._code)
            _add(archive, _RUNNER, Path(__file__).with_name("_job_runner.py").read_bytes())
            for number, item in enumerate(items):
                if len(item) > _ITEM_BYTES:
                    _add(archive, _item_file(number), item)
        return packed.getvalue()


class _Batch:
    """Follows a batch, also over a restart of the daemon."""

    def __init__(self, exchanges: Exchanges, path: str, ids: list[str]) -> None:
        self._exchanges = exchanges
        self._path = path
        self._ids = ids
        self._last = 0
        self._results: dict[int, JobResult] = {}

    async def results(self) -> list[JobResult]:
        attempts = Attempts()
        while True:
            try:
                await self._follow(attempts)
                break
            except (Broken, DaemonError) as error:
                await self._exchanges.sleep(attempts.pause_after(error))
        for index, job in enumerate(self._ids):
            if index not in self._results:
                # Its end was not among the events: it is no longer kept, or it will say itself what became of it.
                try:
                    shown = await self._exchanges.request(get(f"/v1/jobs/{job}", as_json))
                    self._results[index] = await self._result(shown)
                except NotFoundError:
                    self._results[index] = _lost(job)
        return [self._results[index] for index in range(len(self._ids))]

    async def _follow(self, attempts: Attempts) -> None:
        """Reads events until the last one."""
        events = await self._exchanges.events(get(f"{self._path}/events?after={self._last}", nothing))
        try:
            while (sent := await events.next()) is not None:
                # An event of this name is about the stream: it says why it ends.
                if sent.name == "problem":
                    raise problem_of(500, sent.data.encode())
                event = as_json(sent.data.encode())
                kind = event.get("type")
                if kind == "batch_ended":
                    return
                if kind == "job_ended":
                    # What it left is read at once: others may need its room.
                    self._results[event["index"]] = await self._result(event["job"])
                self._last = event.get("seq", self._last)
                attempts.reset()
        finally:
            events.close()
        raise Broken("the stream ended")

    async def _result(self, job: Json) -> JobResult:
        end = job.get("end")
        if end is None:
            raise DaemonError("a job has ended without an end", code="bad_answer")
        verdict, reason = str(end["verdict"]), str(end["reason"])
        stdout, stderr, is_cut = await self._output(job)
        kept = {one["path"]: one["bytes"] for one in end["artifacts"]}
        is_large = kept.get(_RESULT, 0) > _RESULT_BYTES
        files = {} if is_large or not kept else await self._files(job["id"])
        told = _told(files.pop(_RESULT, None))
        error = None
        if verdict != "passed":
            error = _raised(told.get("error")) if verdict == "failed" else None
            error = error or ExecutionError(verdict, reason, "", verdict)
        elif is_large:
            error = ExecutionError("too_large", f"its value takes more than {_RESULT_BYTES} bytes", "", "too_large")
        elif not told and _RESULT in kept:
            error = ExecutionError("lost", "its value is no longer kept", "", "lost")
        text = told.get("text")
        return JobResult(
            id=job["id"],
            verdict=verdict,
            exit_code=end["exit_code"],
            reason=reason,
            value=told.get("value") if error is None else None,
            text=text if isinstance(text, str) else None,
            error=error,
            stdout=stdout,
            stderr=stderr,
            duration_s=end["duration_ms"] / 1000,
            files=files,
            truncated=is_cut or told.get("is_cut") is True,
        )

    async def _output(self, job: Json) -> tuple[str, str, bool]:
        """Both streams, and whether part of them is left out."""
        if job.get("started_at") is None:
            return "", "", False
        try:
            events = await self._exchanges.events(get(f"/v1/jobs/{job['id']}/events?follow=false", nothing))
            try:
                while (sent := await events.next()) is not None:
                    if sent.name == "cell_finished":
                        result = as_json(sent.data.encode())["result"]
                        cut = result["truncated"]
                        is_cut = any(cut[name] for name in ("stdout_bytes", "stderr_bytes", "dropped_bytes"))
                        return str(result["stdout"]), str(result["stderr"]), is_cut
            finally:
                events.close()
        except DaemonError:
            # The whole batch is followed anew.
            raise
        except BelljarError:
            # Its output is no longer kept, which is no reason to lose the other results.
            pass
        return "", "", False

    async def _files(self, job: str) -> dict[str, bytes]:
        call = Call("GET", f"/v1/jobs/{job}/artifacts", bytes, headers={"Accept": "application/x-tar"}, most=None)
        try:
            packed = await self._exchanges.request(call)
        except NotFoundError:
            # Files of jobs that have ended make room for others.
            return {}
        files: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.isreg() else None
                if content is not None:
                    files[entry.name] = content.read()
        return files


def _lost(job: str) -> JobResult:
    """What is said of a job that the daemon has forgotten meanwhile."""
    reason = "the daemon no longer knows it"
    error = ExecutionError("lost", reason, "", "lost")
    return JobResult(job, "error", 1, reason, None, None, error, "", "", 0.0)


def _told(result: bytes | None) -> Json:
    """What the code left as its result, or something that it wrote there itself."""
    try:
        told = json.loads(result or b"{}")
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _raised(told: object) -> ExecutionError | None:
    if not isinstance(told, dict) or not all(isinstance(told.get(key), str) for key in ("type", "value", "traceback")):
        return None
    return ExecutionError(told["type"].rpartition(".")[2], told["value"], told["traceback"], told["type"])


def _code_of(code: str | os.PathLike[str]) -> tuple[str, bytes]:
    if isinstance(code, str):
        try:
            return _CODE, code.encode("utf-8")
        except UnicodeEncodeError:
            raise wrong("the code is no text in UTF-8") from None
    if not isinstance(code, os.PathLike):
        raise wrong(f"code is text, or the path of a file with it, not {type(code).__name__}")
    path = Path(code)
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise BelljarError(f"the code cannot be read: {error}", code="client") from error


def _item_file(number: int) -> str:
    return f"{_RESERVED}items/{number}.json"


def _add(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Only files and folders, of nobody in particular."""
    if not (entry.isreg() or entry.isdir()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
