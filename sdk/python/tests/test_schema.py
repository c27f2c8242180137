"""What functions get and give as tools, by their annotations."""

from __future__ import annotations

import datetime
import sys
import typing
import unittest
from typing import Annotated, Any, Callable, Optional

import jsonschema
import pydantic
from typing_extensions import TypedDict

from belljar import BadRequestError, Sandbox
from belljar._schema import FunctionTool, schema_of, value_of
from belljar._tools import _value

from .harness import WithDaemon


class Model(pydantic.BaseModel):
    number: int


class Named(pydantic.BaseModel):
    example: int = pydantic.Field(alias="ex")
    other: int = pydantic.Field(default=0, validation_alias="in", serialization_alias="out")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    day: datetime.date


class Pair(TypedDict):
    left: Model
    right: list[Model]


def called(function: Callable[..., Any], **arguments: Any) -> Any:
    """What a call gives, with what the daemon does: it holds both sides against the schemas."""
    tool = FunctionTool(function, None, None)
    jsonschema.validate(arguments, tool.definition["parameters"])
    given = _value(tool, tool.bound(arguments)())["value"]
    jsonschema.validate(given, tool.definition.get("output", {}))
    return given


class Functions(unittest.TestCase):
    def test_models_within_others_are_models_for_the_function(self) -> None:
        def one(m: Model | None = None) -> int:
            return -1 if m is None else m.number

        def many(ms: list[Model], by: dict[str, Optional[Model]]) -> int:
            return sum(m.number for m in [*ms, *filter(None, by.values())])

        def pair(both: Pair, pairs: tuple[Model, int], noted: Annotated[Model, "a note"]) -> int:
            return both["left"].number + both["right"][0].number + pairs[0].number + pairs[1] + noted.number

        def strict(days: list[Strict]) -> str:
            return str(days[0].day)

        m = {"number": 2}
        self.assertEqual((called(one, m=m), called(one, m=None), called(one)), (2, -1, -1))
        self.assertEqual(called(many, ms=[m, m], by={"a": m, "b": None}), 6)
        self.assertEqual(called(pair, both={"left": m, "right": [m]}, pairs=[m, 1], noted=m), 9)
        self.assertEqual(called(strict, days=[{"day": "2026-01-02"}]), "2026-01-02")

    def test_what_pydantic_makes_no_values_of_is_refused_with_its_reason(self) -> None:
        if sys.version_info >= (3, 12):
            self.skipTest("pydantic takes a TypedDict of `typing` from Python 3.12 on")
        Plain = typing.TypedDict("Plain", {"m": Model})

        def takes(plain: Plain) -> None: ...

        takes.__annotations__["plain"] = Plain
        with self.assertRaisesRegex(BadRequestError, "typing_extensions.TypedDict"):
            FunctionTool(takes, None, None)

    def test_models_within_results_are_json(self) -> None:
        def many() -> list[Model]:
            return [Model(number=1), Model(number=2)]

        def maybe(is_there: bool) -> dict[str, Model] | None:
            return {"a": Model(number=1)} if is_there else None

        def plain() -> list[Model]:
            return [{"number": 3}]  # type: ignore[list-item]

        self.assertEqual(called(many), [{"number": 1}, {"number": 2}])
        self.assertEqual((called(maybe, is_there=True), called(maybe, is_there=False)), ({"a": {"number": 1}}, None))
        self.assertEqual(called(plain), [{"number": 3}])

    def test_fields_have_the_names_of_their_schemas(self) -> None:
        def same(named: Named) -> Named:
            return named

        def many(named: list[Named]) -> list[Named]:
            return named

        given, back = {"ex": 1, "in": 2}, {"ex": 1, "out": 2}
        self.assertEqual(called(same, named=given), back)
        self.assertEqual(called(many, named=[given]), [back])

        def says(named: Named):  # type: ignore[no-untyped-def]
            return named

        self.assertEqual(called(says, named=given), '{"ex": 1, "out": 2}')

    def test_an_answer_may_have_models_in_it(self) -> None:
        self.assertEqual(value_of(list[Model], [{"number": 1}]), [Model(number=1)])
        self.assertEqual(schema_of(list[Model])["items"]["required"], ["number"])
        self.assertEqual((value_of({"type": "integer"}, 1), value_of(int, 1)), (1, 1))


class Names(unittest.TestCase):
    def test_names_that_code_could_not_call_are_refused_at_once(self) -> None:
        def fine() -> None: ...

        for name in ("print", "open", "display", "tools", "ToolError", "True", "class", "await", "a b", ""):
            with self.subTest(name), self.assertRaisesRegex(BadRequestError, "is no name for a tool"):
                FunctionTool(fine, name, None)
            with self.subTest(name), self.assertRaisesRegex(BadRequestError, "is no name for a tool"):
                FunctionTool.defined({"name": name}, fine)
        # Words that are none of Python's own everywhere.
        for name in ("match", "type_of", "fine"):
            self.assertEqual(FunctionTool(fine, name, None).name, name)


class SchemaCases(WithDaemon):
    def test_models_within_others_in_calls_from_a_cell(self) -> None:
        with Sandbox.create() as box:

            @box.tool
            def doubled(ms: list[Model], named: Named | None = None) -> list[Named]:
                return [*(Named(ex=2 * m.number) for m in ms), *([named] if named else [])]

            ran = box.run_code("doubled([{'number': 1}], {'ex': 5})")
            self.assertEqual((ran.error, ran.text), (None, "[{'ex': 2, 'out': 0}, {'ex': 5, 'out': 0}]"))

    def test_a_variable_hides_the_tool_of_its_name_which_is_still_among_the_tools(self) -> None:
        with Sandbox.create() as box:
            box.run_code("one = 1")
            box.tool(name="one")(lambda: "the tool's")
            self.assertEqual(box.run_code("print(one, tools.one())").stdout, "1 the tool's\n")


class OnBubblewrap(SchemaCases):
    backend = "bubblewrap"


del SchemaCases
