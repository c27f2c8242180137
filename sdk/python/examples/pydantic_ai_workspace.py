#!/usr/bin/env python3
"""An agent of Pydantic AI that works in a sandbox. Its model plays a script, so no key is needed."""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from belljar.pydantic_ai import BelljarSandbox

PROGRAM = "import csv\nrows = list(csv.DictReader(open('sales.csv')))\nprint(max(rows, key=lambda row: int(row['sold']))['month'])\n"


def play(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Writes a program, runs it, and tells what that printed."""
    returned = [part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if not returned:
        return ModelResponse(parts=[ToolCallPart("write", {"path": "most.py", "text": PROGRAM})])
    if returned == ["written"]:
        return ModelResponse(parts=[ToolCallPart("shell", {"line": "python3 most.py"})])
    return ModelResponse(parts=[TextPart(f"Most was sold in {str(returned[0]).strip()}.")])


sandbox = BelljarSandbox[None]()
agent = Agent(FunctionModel(play), capabilities=[sandbox])


@agent.tool
async def write(ctx: RunContext[None], path: str, text: str) -> str:
    """Writes a file."""
    await ctx.workspace.write_text("sales.csv", "month,sold\nMay,3\nJune,7\n")
    await ctx.workspace.write_text(path, text)
    return "written"


@agent.tool
async def shell(ctx: RunContext[None], line: str) -> str:
    """Runs a line of the shell."""
    ran = await ctx.workspace.run(line, shell=True, timeout=60)
    return ran.stdout + ran.stderr


async def main() -> None:
    result = await agent.run("In which month was most sold?")
    print(result.output)
    # The sandbox is there for the next run, until it is removed.
    ref = result.workspace.ref
    assert ref is not None
    print("removed:", await sandbox.destroy(ref))


if __name__ == "__main__":
    asyncio.run(main())
