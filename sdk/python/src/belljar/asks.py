"""Asking a model, and deciding what waits for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Mapping, Sequence, TypedDict

from . import _api
from ._async import AsyncClient
from ._calls import Call, as_json, get, nothing, post
from ._schema import schema_of, value_of
from ._sync import SyncClient
from ._wire import quoted
from .errors import AskError

Json = dict[str, Any]
ApprovalPolicy = Literal["auto", "ask"] | Sequence[str]


@dataclass
class Request:
    """What waits for a decision."""

    id: str
    #: The name of the sandbox.
    sandbox: str
    #: `cell` or `tool`.
    kind: Literal["cell", "tool"]
    #: Of a cell.
    code: str | None
    #: Of a tool.
    tool: str | None
    arguments: Json | None
    asked_at: str


def request_of(told: Json) -> Request:
    subject = told["subject"]
    return Request(
        id=told["id"],
        sandbox=told["session_name"],
        kind=subject["kind"],
        code=subject.get("code"),
        tool=subject.get("name"),
        arguments=subject.get("arguments"),
        asked_at=told["asked_at"],
    )


def _decide(request: Request, decision: Json) -> Call[None]:
    return post(f"/v1/approvals/{quoted(request.id)}", nothing, decision)


def _accept(request: Request, code: str | None) -> Call[None]:
    return _decide(request, {"accept": {} if code is None else {"code": _api.text_of(code, "code")}})


def _reject(request: Request, reason: str | None) -> Call[None]:
    return _decide(request, {"reject": {} if reason is None else {"reason": _api.text_of(reason, "reason")}})


def _respond(request: Request, text: str) -> Call[None]:
    return _decide(request, {"respond": {"text": _api.text_of(text, "text")}})


class Approval(Request):
    """What waits for a decision, and the decision."""

    def __init__(self, client: SyncClient, request: Request) -> None:
        super().__init__(**vars(request))
        self._client = client

    def accept(self, code: str | None = None) -> None:
        """Lets it run; of a cell, with this code instead."""
        self._client.request(_accept(self, code))

    def reject(self, reason: str | None = None) -> None:
        """Does not let it run, which ends the ask."""
        self._client.request(_reject(self, reason))

    def respond(self, text: str) -> None:
        """Does not let it run; the model gets these words as the answer."""
        self._client.request(_respond(self, text))


class AsyncApproval(Request):
    """What waits for a decision, and the decision."""

    def __init__(self, client: AsyncClient, request: Request) -> None:
        super().__init__(**vars(request))
        self._client = client

    async def accept(self, code: str | None = None) -> None:
        """Lets it run; of a cell, with this code instead."""
        await self._client.request(_accept(self, code))

    async def reject(self, reason: str | None = None) -> None:
        """Does not let it run, which ends the ask."""
        await self._client.request(_reject(self, reason))

    async def respond(self, text: str) -> None:
        """Does not let it run; the model gets these words as the answer."""
        await self._client.request(_respond(self, text))


def approvals(session_id: str) -> Call[list[Request]]:
    def parse(answer: bytes) -> list[Request]:
        waiting = as_json(answer)["approvals"]
        return [request_of(one) for one in waiting if one["session"] == session_id]

    return get("/v1/approvals", parse)


class AskOptions(TypedDict, total=False):
    """How a model works; what is not given is as the daemon's configuration says."""

    #: Values that become variables.
    context: Mapping[str, Any] | None
    model: str | None
    #: Names of the tools that it may use.
    tools: Sequence[str] | None
    #: What a person has to allow: nothing, every cell and tool that acts outside, or the tools that are named.
    approval: ApprovalPolicy | None
    restricted: bool | None
    #: Whether the conversation begins anew.
    fresh: bool
    steps: int | None
    tokens: int | None
    seconds: float | None


def start(
    session: str,
    text: str,
    schema: Any,
    *,
    context: Mapping[str, Any] | None = None,
    model: str | None = None,
    tools: Sequence[str] | None = None,
    approval: ApprovalPolicy | None = None,
    restricted: bool | None = None,
    fresh: bool = False,
    steps: int | None = None,
    tokens: int | None = None,
    seconds: float | None = None,
) -> Call[int]:
    body: Json = {"text": _api.text_of(text, "text"), "fresh": fresh, "context": dict(context or {})}
    if schema is not None:
        body["schema"] = schema_of(schema)
    if approval is not None:
        body["approval"] = approval if isinstance(approval, str) else {"tools": list(approval)}
    given = {"model": model, "tools": None if tools is None else list(tools), "restricted": restricted}
    body.update({name: value for name, value in given.items() if value is not None})
    limits = {"steps": steps, "tokens": tokens, "seconds": _api.seconds_of(seconds, "seconds")}
    body["limits"] = {name: value for name, value in limits.items() if value is not None}
    return post(f"{session}/asks", lambda answer: int(as_json(answer)["ask"]), body)


def wait(session: str, ask: int) -> Call[Json]:
    return get(f"{session}/asks/{ask}?wait=true", lambda answer: dict(as_json(answer)["end"]))


def cancel(session: str, ask: int) -> Call[None]:
    return post(f"{session}/asks/{ask}/cancel", nothing)


def answer_of(end: Json, schema: Any) -> Any:
    """The answer, or an `AskError` that says why there is none."""
    outcome = end["outcome"]
    if outcome != "answered":
        usage = end.get("usage") or {}
        tokens = sum(count for count in usage.values() if isinstance(count, int) and not isinstance(count, bool))
        message = end.get("message") or f"the model did not answer: {outcome}"
        raise AskError(message, outcome=outcome, steps=end["steps"], tokens=tokens)
    if schema is None:
        return end.get("answer") or ""
    return value_of(schema, end.get("value"))
