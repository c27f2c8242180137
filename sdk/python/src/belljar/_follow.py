"""Following a cell, a command or an ask through the events of its session, also over a restart of the daemon."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Generic, TypeVar

from ._calls import Call, as_json, get, nothing
from ._wire import ServerSentEvent
from .errors import DaemonError, problem_of

T = TypeVar("T")
Event = dict[str, Any]


class Follower(ABC, Generic[T]):
    """Takes events one by one, each once, whatever a resumed stream repeats."""

    def __init__(self) -> None:
        self._last = 0
        self._result: T | None = None

    @property
    def is_done(self) -> bool:
        return self._result is not None

    def result(self) -> T:
        assert self._result is not None
        return self._result

    @abstractmethod
    def call(self) -> Call[object]:
        """The request whose answer is the stream, from the next event on or from an earlier one."""

    @abstractmethod
    def saw(self, event: Event) -> None: ...

    def take(self, sent: ServerSentEvent) -> None:
        # An event of this name is about the stream, not the session: it says why the stream ends.
        if sent.name == "problem":
            raise problem_of(500, sent.data.encode())
        event = as_json(sent.data.encode())
        if not isinstance(event, dict) or not isinstance(event.get("seq"), int):
            raise DaemonError("an event of the daemon makes no sense", code="bad_answer")
        if event["seq"] <= self._last:
            return
        self.saw(event)
        # Only now: if a callback raises, nothing was lost.
        self._last = event["seq"]


class CellFollower(Follower[dict[str, Any]]):
    """Follows a cell or a command from the request that starts it to its result."""

    def __init__(self, session: str, start: Call[object], on_event: Callable[[Event], None]) -> None:
        super().__init__()
        self._session = session
        self._start = start
        self._cell: int | None = None
        self._on_event = on_event

    def call(self) -> Call[object]:
        if self._cell is None:
            # With the same idempotency key, the cell is started once.
            return self._start
        return get(f"{self._session}/events?after={self._last}", nothing)

    def saw(self, event: Event) -> None:
        finished = event.get("result") if event.get("type") == "cell_finished" else None
        cell = finished.get("cell") if isinstance(finished, dict) else event.get("cell")
        if self._cell is None:
            self._cell = cell
        # A resumed stream has the events of the whole session.
        if cell != self._cell:
            return
        if finished is not None:
            self._result = finished
        else:
            self._on_event(event)
