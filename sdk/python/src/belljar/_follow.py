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
    def saw(self, event: Event) -> list[object]:
        """Gives what callbacks have returned: coroutines, perhaps."""

    def read(self, sent: ServerSentEvent) -> Event | None:
        """The event, unless it was taken before."""
        # An event of this name is about the stream, not the session: it says why the stream ends.
        if sent.name == "problem":
            raise problem_of(500, sent.data.encode())
        event = as_json(sent.data.encode())
        if not isinstance(event, dict) or not isinstance(event.get("seq"), int):
            raise DaemonError("an event of the daemon makes no sense", code="bad_answer")
        return event if event["seq"] > self._last else None

    def take(self, event: Event) -> list[object]:
        """Tells callbacks of an event, and gives what they have returned."""
        outcomes = self.saw(event)
        self._last = event["seq"]
        return outcomes


class CellFollower(Follower[dict[str, Any]]):
    """Follows a cell or a command from the request that starts it to its result."""

    def __init__(self, session: str, start: Call[object], on_event: Callable[[Event], object]) -> None:
        super().__init__()
        self._session = session
        self._start = start
        self._cell: int | None = None
        self._on_event = on_event

    @classmethod
    def begun(cls, session: str, cell: int, after: int, on_event: Callable[[Event], object]) -> CellFollower:
        """Follows one that was started before, whose events come after a number."""
        follower = cls(session, get(f"{session}/events?after={after}", nothing), on_event)
        follower._cell, follower._last = cell, after
        return follower

    def call(self) -> Call[object]:
        if self._cell is None:
            # With the same idempotency key, the cell is started once.
            return self._start
        return get(f"{self._session}/events?after={self._last}", nothing)

    def saw(self, event: Event) -> list[object]:
        finished = event.get("result") if event.get("type") == "cell_finished" else None
        cell = finished.get("cell") if isinstance(finished, dict) else event.get("cell")
        if self._cell is None:
            self._cell = cell
        # A resumed stream has the events of the whole session.
        if cell != self._cell:
            return []
        if finished is not None:
            self._result = finished
            return []
        return [self._on_event(event)]


class AskFollower(Follower[dict[str, Any]]):
    """Follows an ask to its end."""

    def __init__(self, session: str, ask: int, on_event: Callable[[Event], object]) -> None:
        super().__init__()
        self._path = f"{session}/asks/{ask}?stream=true"
        self._ask = ask
        self._on_event = on_event

    def call(self) -> Call[object]:
        # The stream begins with the ask; what was seen is passed over.
        return get(self._path, nothing)

    def saw(self, event: Event) -> list[object]:
        outcomes = [self._on_event(event)]
        if event.get("type") == "ask_finished" and event.get("ask") == self._ask:
            self._result = event["end"]
        return outcomes
