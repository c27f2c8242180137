"""A tool for agents of LangChain: Python in a sandbox, whose variables live on from one call to the next.

    from langchain.agents import create_agent
    from belljar.langchain import BelljarTool

    with BelljarTool(image="belljar/science") as python:
        create_agent(model=…, tools=[python]).invoke(…)
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.tools import BaseTool
from pydantic import BaseModel, Field, PrivateAttr

from ._api import SandboxOptions, seconds_of, wrong
from .results import Execution
from .sandbox import Sandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DESCRIPTION = (
    "Runs Python in a sandbox without network, and tells what it printed and the value of its last expression. Variables, "
    "imports and files live on from one call to the next. If the code fails, the variables that it had set are kept; if "
    "it crashes or takes too long, they are as before the call."
)


class _Code(BaseModel):
    code: str = Field(description="Python code. The value of the last expression is shown; no `print` is needed for it.")


class BelljarTool(BaseTool):
    """Runs code in a sandbox of its own, or in one that is given and then stays. The artifact of a call is its
    `Execution`, with pictures and tables in all their forms."""

    name: str = "python"
    description: str = _DESCRIPTION
    args_schema: Any = _Code
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    _box: Sandbox = PrivateAttr()
    _is_owned: bool = PrivateAttr()
    _timeout: float | None = PrivateAttr()

    def __init__(
        self,
        box: Sandbox | None = None,
        *,
        tool_name: str = "python",
        description: str = _DESCRIPTION,
        timeout: float | None = None,
        **options: Unpack[SandboxOptions],
    ) -> None:
        super().__init__(name=tool_name, description=description)
        if box is not None and options:
            raise wrong("options are for a new sandbox, and one is given")
        self._timeout = seconds_of(timeout)
        self._is_owned = box is None
        self._box = Sandbox.create(**options) if box is None else box

    @property
    def box(self) -> Sandbox:
        return self._box

    def _run(self, code: str, **_context: Any) -> tuple[str, Execution]:
        run = self._box.run_code(code, timeout=self._timeout)
        return text_of(run), run

    def close(self) -> None:
        """Removes the sandbox, unless it was given."""
        if self._is_owned:
            self._box.kill()

    def __enter__(self) -> BelljarTool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def text_of(run: Execution) -> str:
    """What a model has to know of a run."""
    parts = [run.stdout, run.stderr]
    parts += [str(result) for result in run.results]
    if run.truncated:
        parts.append("[some of the output is left out]")
    if run.error is not None:
        parts.append(str(run.error))
        if run.state.kind == "restored":
            parts.append("[the variables are as before this call]")
        elif run.state.kind == "lost":
            parts.append("[all variables are lost]")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[nothing was printed]"
