#!/usr/bin/env python3
"""An agent of Deep Agents that works in a sandbox. Its model plays a script, so no key is needed."""

from __future__ import annotations

from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

from belljar.deepagents import BelljarSandbox

PROGRAM = "primes = [n for n in range(2, 50) if all(n % d for d in range(2, n))]\nprint(len(primes), primes[-1])\n"


class Script(GenericFakeChatModel):
    """Plays messages, whatever it is told, and takes all tools."""

    def bind_tools(self, tools: Any, **_options: Any) -> Any:
        return self


def call(tool: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"{tool}-call"}])


def main() -> None:
    model = Script(
        messages=iter(
            [
                call("write_file", file_path="/workspace/primes.py", content=PROGRAM),
                call("execute", command="python3 primes.py && ls /root"),
                AIMessage("There are 15 primes below 50."),
            ]
        )
    )
    with BelljarSandbox() as backend:
        agent: Any = create_deep_agent(model=model, backend=backend)
        messages = agent.invoke({"messages": "How many primes are there below 50?"})["messages"]
    for message in messages:
        if isinstance(message, ToolMessage):
            print(f"{message.name}: {message.text.strip()}")
    print(messages[-1].text)


if __name__ == "__main__":
    main()
