"""Requests as values: what to send, how to read the answer, and when to send again. The sync and the async client differ
only in how they wait."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, Mapping, TypeVar

from ._wire import ANSWER_BYTES, Head, ResponseParser, encode_request
from .errors import BadRequestError, BelljarError, DaemonError, OutcomeUnknownError, problem_of

T = TypeVar("T")

#: How often, and after what pause, a request is sent again whose answer broke off. The next daemon may take a while.
TRIES = 20
PAUSE_SECONDS = 0.5
#: After so much silence the client asks for the daemon's health, and gives up if that is not answered either.
QUIET_SECONDS = 30.0
HEALTH_SECONDS = 20.0
HEALTH_REQUEST = b"GET /v1/version HTTP/1.1\r\nHost: belljar\r\n\r\n"
#: Bytes that are read at once, and those of an answer that is known to be larger. Room for more than are there costs more
#: than to read them: memory of this size is got from the system each time.
RECEIVE_BYTES = 64 * 1024
LARGE_RECEIVE_BYTES = 256 * 1024
#: Idle connections that are kept for the next request. The daemon closes one after ten seconds.
IDLE_CONNECTIONS = 8
#: How long an idle connection is taken to be alive without a look at it, which is a call of the system.
FRESH_SECONDS = 1.0

#: Without room for a body, the daemon does not read it for up to a minute, and then says so.
_SEND_SECONDS = 90.0


def time_to_send(data: bytes | memoryview) -> float:
    """The daemon reads as fast as its disk writes; a MiB a second is little."""
    return _SEND_SECONDS + len(data) / (1 << 20)


def receive_bytes(parser: ResponseParser) -> int:
    return LARGE_RECEIVE_BYTES if parser.left > RECEIVE_BYTES else RECEIVE_BYTES


class Broken(Exception):
    """A connection ended before the answer did. Whether the request took effect is not known, unless it was not even sent."""

    def __init__(self, reason: str, *, is_stale: bool = False, is_unsent: bool = False) -> None:
        super().__init__(reason)
        #: It ended before all of the request was sent, which therefore did nothing.
        self.is_unsent = is_unsent
        #: The connection was idle and the daemon had closed it: no sign of a daemon that has ended.
        self.is_stale = is_stale

    def outcome_unknown(self) -> OutcomeUnknownError:
        """What it means for a request that must not be sent again."""
        hint = "look whether it was done, for example with `belljar ps`, before you do it again"
        message = f"the connection to the daemon broke before the answer came: {self}"
        return OutcomeUnknownError(message, code="outcome_unknown", hint=hint)


@dataclass(slots=True)
class Call(Generic[T]):
    """A request that can be sent again without another effect, unless `repeats` says otherwise: it only reads, it sets or
    removes something by name, or it has an idempotency key."""

    method: str
    path: str
    parse: Callable[[bytes], T]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The largest answer.
    most: int | None = ANSWER_BYTES
    #: The type that the answer has to have, and what it means if it has another.
    expects: tuple[str, str] | None = None
    #: Whether it is sent again after a lost answer.
    repeats: bool = True

    def outcome(self, head: Head, body: bytes) -> T:
        if not head.is_success:
            raise problem_of(head.status, body)
        if self.expects is not None and head.value(b"content-type") != self.expects[0].encode():
            raise BadRequestError(self.expects[1], code="bad_request")
        try:
            return self.parse(body)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise _senseless() from error

    def encoded(self) -> bytes:
        return encode_request(self.method, self.path, self.headers, self.body)


_DECODER = json.JSONDecoder()


def as_json(body: bytes) -> Any:
    try:
        # Always UTF-8, which `json.loads` would find out anew each time; and without space around it, for which it would look.
        text = body.decode("utf-8")
        value, end = _DECODER.raw_decode(text)
    except ValueError:
        raise _senseless() from None
    if end != len(text):
        raise _senseless()
    return value


def _senseless() -> DaemonError:
    hint = "the daemon may be of another version; restart it with `belljar daemon stop`"
    return DaemonError("the daemon's answer makes no sense", code="bad_answer", hint=hint)


def nothing(_body: bytes) -> None:
    return None


def get(path: str, parse: Callable[[bytes], T]) -> Call[T]:
    return Call("GET", path, parse, headers={"Accept": "application/json"})


def delete(path: str, parse: Callable[[bytes], T]) -> Call[T]:
    return Call("DELETE", path, parse)


def post(path: str, parse: Callable[[bytes], T], body: object = None, *, accept: str = "application/json") -> Call[T]:
    """A POST with an idempotency key, and with a body that is a value of JSON, or bytes that are JSON already."""
    headers = {"Accept": accept, "Content-Type": "application/json", "Idempotency-Key": os.urandom(16).hex()}
    if not isinstance(body, bytes):
        body = b"" if body is None else encoded_json(body)
    return Call("POST", path, parse, body, headers)


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def encoded_json(value: object) -> bytes:
    """JSON as the daemon reads it. `NaN` is none, and neither is half of a surrogate pair."""
    try:
        return _ENCODER.encode(value).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"a value cannot be sent as JSON: {error}", code="bad_request") from error


class Attempts:
    """Says whether, and after what pause, a call is sent again."""

    def __init__(self) -> None:
        self._tries = 0
        self._stale = 0

    def reset(self) -> None:
        """Something arrived, so the count begins anew."""
        self._tries = 0

    @property
    def is_repetition(self) -> bool:
        return self._tries > 0

    def pause_after(self, error: Exception) -> float:
        """The pause before the next try; raises if there is none."""
        if isinstance(error, Broken) and error.is_stale and self._stale <= IDLE_CONNECTIONS:
            self._stale += 1
            return 0.0
        if isinstance(error, Broken):
            if self._tries >= TRIES:
                hint = "the daemon may have ended, or have too many connections of yours; `belljar ps` shows what is there"
                message = f"the connection to the daemon broke: {error}"
                raise DaemonError(message, code="connection_broken", hint=hint) from error
        elif not self._may_pass(error):
            raise error
        self._tries += 1
        return 0.0 if self._tries == 1 else PAUSE_SECONDS

    def _may_pass(self, error: Exception) -> bool:
        if not isinstance(error, BelljarError) or self._tries >= TRIES:
            return False
        # Once an answer broke off, the next daemon may be about to come.
        return error.code == "shutting_down" or (error.code == "daemon_unavailable" and self._tries > 0)
