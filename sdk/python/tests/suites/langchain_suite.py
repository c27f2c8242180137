"""The standard tests that LangChain has for tools."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import BaseTool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from belljar.langchain import BelljarTool

_OPTIONS: dict[str, Any] = {"checkpointing": "off"}
_CALL: dict[str, Any] = {"code": "6 * 7"}


class TestUnit(ToolsUnitTests):
    @property
    def tool_constructor(self) -> type[BaseTool]:
        return BelljarTool

    @property
    def tool_constructor_params(self) -> dict[str, Any]:
        return _OPTIONS

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return _CALL


class TestIntegration(ToolsIntegrationTests):
    @property
    def tool_constructor(self) -> type[BaseTool]:
        return BelljarTool

    @property
    def tool_constructor_params(self) -> dict[str, Any]:
        return _OPTIONS

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return _CALL
