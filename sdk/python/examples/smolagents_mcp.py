#!/usr/bin/env python3
"""An agent of smolagents whose code runs in a sandbox and calls tools of an MCP server. Its model plays a script, so no key
is needed. Called with `serve`, this file is the server."""

from __future__ import annotations

import sys
from typing import Any

CELLS = [
    "rates = {name: rate(currency=name)['result'] for name in ('USD', 'GBP')}\nprint(rates)",
    "best = max(rates, key=rates.get)\nfinal_answer(f'{best} at {rates[best]}')",
]


def serve() -> None:
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("rates", log_level="ERROR")

    @server.tool()
    def rate(currency: str) -> float:
        """Exchange rate to the euro."""
        return {"USD": 0.9, "GBP": 1.2}[currency]

    server.run()


def main() -> None:
    from mcp import StdioServerParameters
    from smolagents import CodeAgent, Model, ToolCollection
    from smolagents.models import ChatMessage, MessageRole

    from belljar.smolagents import BelljarExecutor

    class Script(Model):  # type: ignore[misc]
        def generate(self, messages: list[Any], **_options: Any) -> Any:
            content = f"Thought: go on.\n<code>\n{CELLS.pop(0)}\n</code>"
            return ChatMessage(role=MessageRole.ASSISTANT, content=content)

    server = StdioServerParameters(command=sys.executable, args=[__file__, "serve"])
    mcp = ToolCollection.from_mcp(server, trust_remote_code=True, structured_output=True)
    with mcp as collection, BelljarExecutor() as executor:
        agent = CodeAgent(tools=[*collection.tools], model=Script(), executor=executor, verbosity_level=0)
        print(agent.run("Which currency is worth most?"))


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
