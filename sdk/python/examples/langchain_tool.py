#!/usr/bin/env python3
"""An agent of LangChain with Python in a sandbox. Its model plays a script, so no key is needed."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

from belljar.langchain import BelljarTool


class Script(GenericFakeChatModel):
    """Plays messages, whatever it is told, and takes all tools."""

    def bind_tools(self, tools: Any, **_options: Any) -> Any:
        return self


def run(code: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "python", "args": {"code": code}, "id": "call"}])


def main() -> None:
    model = Script(
        messages=iter(
            [
                run("values = [3, 1, 2]\nprint('sorting')\nsorted(values)"),
                run("import os\nos.abort()"),
                run("sum(values)"),
                AIMessage("The sum is 6."),
            ]
        )
    )
    with BelljarTool() as python:
        agent: Any = create_agent(model=model, tools=[python])
        messages = agent.invoke({"messages": "What is the sum?"})["messages"]
    for message in messages:
        if isinstance(message, ToolMessage):
            print(f"> {message.text} ({message.artifact.status})")
    print(messages[-1].text)


if __name__ == "__main__":
    main()
