"""Functions of a cell that the agent of an `ask` may call, and files that it gets."""

from harness import KernelTest, ToolProblem

TEXT = {"type": "string"}
ASK = {
    "name": "ask",
    "description": "Lets a model work on a task.",
    "parameters": {
        "type": "object",
        "properties": {
            "prompt": TEXT,
            "context": {"type": ["object", "null"], "default": None},
            "files": {"type": ["array", "null"], "items": TEXT, "default": None},
            "functions": {"type": ["array", "null"], "items": {"type": "object"}, "description": "Its functions."},
            "go_on": {"type": ["object", "null"], "default": None},
        },
        "required": ["prompt"],
        "additionalProperties": False,
    },
    "output": {},
}
PRICE = "prices = {'tea': 3.5}\ndef price(name: str, count: int = 1) -> float:\n    'The price of a thing.'\n    return prices[name] * count\n"


class Agent:
    """Answers as the host does: with the calls of this list one after the other, then with what it was told."""

    def __init__(self, *calls):
        self.calls = list(calls)
        self.told = []
        self.first = None
        self.has_ended = False

    def __call__(self, **arguments):
        going_on = arguments.get("go_on")
        if going_on is None:
            self.first = arguments
        elif "answer" not in going_on:
            self.has_ended = True
            return None
        else:
            assert going_on["ask"] == "number one", going_on
            self.told.append(going_on["answer"])
        if "functions" not in self.first:
            return "an answer"
        if len(self.told) < len(self.calls):
            name, given = self.calls[len(self.told)]
            return {"call": {"ask": "number one", "name": name, "arguments": given}}
        return {"answer": "an answer"}


class Asking(KernelTest):
    def setUp(self):
        super().setUp()
        self.kernel.configure(tools=[ASK])

    def agent(self, *calls):
        self.kernel.tools["ask"] = agent = Agent(*calls)
        return agent

    def schema(self, definition, name="f"):
        agent = self.agent()
        self.run_ok(f"from typing import *\n{definition}\nask('x', functions=[{name}])")
        return agent.first["functions"][0]

    def refused(self, code):
        run = self.kernel.run(code)
        self.assertEqual(run.end["status"], "failure", run.end)
        return f"{run.end['exception']['type']}: {run.end['exception']['value']}"

    def test_without_functions_it_is_a_tool_like_any_other(self):
        agent = self.agent()
        self.assertEqual(self.value("ask('x', context={'a': 1})"), "'an answer'")
        self.assertEqual(agent.first, {"prompt": "x", "context": {"a": 1}})
        self.assertEqual(self.value("await tools.aio.ask('y', functions=[])"), "'an answer'")
        self.assertEqual(agent.first, {"prompt": "y"})

    def test_files_are_paths_in_any_form(self):
        agent = self.agent()
        self.run_ok("from pathlib import Path\nask('x', files=['a.csv', Path('b') / 'c.csv'])")
        self.assertEqual(agent.first["files"], ["a.csv", "b/c.csv"])

    def test_functions_are_called_here_while_the_cell_waits(self):
        agent = self.agent(("price", {"name": "tea", "count": 2}), ("note", {"text": "dear"}))
        code = PRICE + "notes = []\ndef note(text: str):\n    notes.append(text)\n    print('noted', text)\nask('x', functions=[price, note])"
        run = self.run_ok(code)
        self.assertEqual((run.value, run.stdout), ("'an answer'", "noted dear\n"))
        self.assertEqual(agent.told, [{"value": 7.0}, {"value": None}])
        self.assertEqual(self.value("notes"), "['dear']")
        self.assertEqual(
            agent.first["functions"][0],
            {
                "name": "price",
                "description": "The price of a thing.",
                "parameters": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1}},
                    "required": ["name"],
                },
            },
        )
        self.assertEqual([call["cell"] for call in self.kernel.seen_calls], [1, 1, 1])

    def test_functions_wait_in_coroutines(self):
        agent = self.agent(("slowly", {"n": 2}), ("plain", {}))
        definitions = "import asyncio\nasync def slowly(n: int):\n    await asyncio.sleep(0)\n    return n + 1\ndef plain():\n    return 'p'\n"
        self.assertEqual(self.value(definitions + "await tools.aio.ask('x', functions=[slowly, plain])"), "'an answer'")
        self.assertEqual(agent.told, [{"value": 3}, {"value": "p"}])
        self.assertIn("tools.aio.ask", self.refused("ask('x', functions=[slowly])"))

    def test_a_timeout_that_a_coroutine_raises_itself_is_its_failure(self):
        agent = self.agent(("impatient", {}), ("gives_up", {}))
        definitions = (
            "import asyncio\nasync def impatient():\n    await asyncio.wait_for(asyncio.sleep(9), 0.01)\n"
            "async def gives_up():\n    raise asyncio.TimeoutError('no patience')\n"
        )
        self.run_ok(definitions + "await tools.aio.ask('x', functions=[impatient, gives_up])")
        failures = [told["failure"] for told in agent.told]
        self.assertEqual([failure["code"] for failure in failures], ["failed", "failed"])
        self.assertIn("TimeoutError", failures[0]["message"])
        self.assertIn("no patience", failures[1]["message"])

    def test_an_exception_is_the_answer_to_the_call(self):
        agent = self.agent(("price", {"name": "gold"}), ("price", {"name": "tea"}))
        self.assertEqual(self.value(PRICE + "ask('x', functions=[price])"), "'an answer'")
        where = 'Traceback (most recent call last):\n  File "<cell 1>", line 4, in price\n    return prices[name] * count'
        failure, value = agent.told
        self.assertEqual(failure["failure"]["code"], "failed")
        message = [line for line in failure["failure"]["message"].split("\n") if not line.strip(" ~^") == ""]
        self.assertEqual("\n".join(message), f"KeyError: 'gold'\n{where}")
        self.assertEqual(value, {"value": 3.5})

    def test_of_an_exception_no_more_is_told_than_fits(self):
        agent = self.agent(("deep", {"n": 300}), ("odd", {}), ("long", {}))
        code = "def deep(n: int):\n    return other(n)\ndef other(n):\n    return deep(n - 1) if n else 1 / 0\n"
        odd = "class Odd(Exception):\n    def __str__(self): return 'x' * 2**20\n    @property\n    def __traceback__(self): raise OSError\n"
        long = "Long = type('L' * 2**20, (Exception,), {})\ndef long(): raise Long\n"
        self.run_ok(code + odd + long + "def odd(): raise Odd\nask('x', functions=[deep, odd, long])")
        deep, odd, long = (told["failure"]["message"] for told in agent.told)
        self.assertTrue(deep.startswith("ZeroDivisionError: division by zero\n") and "left out" in deep, deep)
        self.assertLess(max(len(deep), len(odd), len(long)), 11_000)

    def test_a_template_may_be_named_in_place_of_a_prompt(self):
        agent = self.agent()
        self.assertEqual(self.value("ask(template='menu', context={'a': 1})"), "'an answer'")
        self.assertEqual(agent.first, {"prompt": "@menu", "context": {"a": 1}})
        self.assertEqual(self.value("await tools.aio.ask(template='menu')"), "'an answer'")
        self.run_ok("ask('x', template=None)")
        self.assertEqual(agent.first, {"prompt": "x"})
        self.assertIn("a prompt or a template", self.refused("ask(prompt='x', template='menu')"))
        self.assertIn("multiple values for argument 'prompt'", self.refused("ask('x', template='menu')"))

    def test_what_is_no_json_or_too_large_is_the_answer_to_the_call(self):
        agent = self.agent(("made", {"what": "set"}), ("made", {"what": "text"}), ("made", {"what": "loop"}))
        code = "def made(what):\n    loop = []\n    loop.append(loop)\n    return {'set': {1}, 'text': 'x' * 2**23, 'loop': loop}[what]\nask('x', functions=[made])"
        self.run_ok(code)
        failures = [told["failure"] for told in agent.told]
        self.assertEqual([failure["code"] for failure in failures], ["failed", "too_large", "failed"])
        self.assertIn("made returned what cannot be told: a value of type set", failures[0]["message"])

    def test_a_failure_of_the_ask_is_raised(self):
        def fail(**_arguments):
            raise ToolProblem("failed", "the inner ask was not answered")

        self.kernel.tools["ask"] = fail
        self.assertIn("was not answered", self.refused(PRICE + "ask('x', functions=[price])"))

    def test_what_ends_the_function_without_an_answer_ends_the_ask(self):
        agent = self.agent(("leave", {}))
        run = self.kernel.run("def leave():\n    raise SystemExit(3)\nask('x', functions=[leave])")
        self.assertEqual(run.end["exit_code"], 3, run.end)
        self.assertEqual(self.value("1"), "1")
        self.assertTrue(agent.has_ended)

    def test_an_interrupt_ends_the_function_and_the_ask(self):
        agent = self.agent(("slow", {}))
        run = self.kernel.submit("import time\ndef slow():\n    print('begun')\n    time.sleep(60)\nask('x', functions=[slow])")
        self.kernel.wait_for_output(run, "begun")
        self.kernel.send(type="interrupt", cell=run.cell)
        self.kernel.finish(run)
        self.assertEqual(run.end["status"], "interrupted")
        self.assertEqual(self.value("1"), "1")
        self.assertTrue(agent.has_ended)

    def test_the_time_of_the_code_around_it_ends_a_function(self):
        agent = self.agent(("endless", {}))
        tool = {"name": "exec_code", "description": "", "local": True, "output": TEXT}
        tool["parameters"] = {"type": "object", "properties": {"code": TEXT, "timeout": {"type": "number"}}, "required": ["code"]}
        self.kernel.configure(tools=[ASK, tool])
        code = "def endless():\n    while True:\n        pass\nprint(exec_code(\"ask('x', functions=[endless])\", timeout=0.2))"
        self.assertIn("TimeoutError: the code was ended", self.run_ok(code).stdout)
        self.assertEqual(self.value("1"), "1")
        self.assertTrue(agent.has_ended)

    def test_an_ask_within_a_function_and_one_in_a_thread(self):
        agent = self.agent(("further", {"prompt": "the thing"}))
        code = (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "def further(prompt: str):\n    return ask(prompt)\n"
            "with ThreadPoolExecutor(1) as pool:\n    answer = pool.submit(ask, 'x', functions=[further]).result()\n"
            "answer"
        )
        self.kernel.tools["ask"] = lambda **arguments: "inner" if arguments["prompt"] == "the thing" else agent(**arguments)
        self.assertEqual(self.value(code), "'an answer'")
        self.assertEqual(agent.told, [{"value": "inner"}])

    def test_type_hints_become_a_schema(self):
        def properties(hints):
            return self.schema(f"def f({hints}): pass")["parameters"]["properties"]

        told = properties("a: float, b: bool, c: list[int], d: dict[str, float], e: Optional[str] = None")
        self.assertEqual(told["a"], {"type": "number"})
        self.assertEqual(told["b"], {"type": "boolean"})
        self.assertEqual(told["c"], {"type": "array", "items": {"type": "integer"}})
        self.assertEqual(told["d"], {"type": "object", "additionalProperties": {"type": "number"}})
        self.assertEqual(told["e"], {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None})
        told = properties("a: Literal['x', 2], b: 'Any', c, d: tuple[int, ...], e: tuple[str, int], f: Sequence[str]")
        self.assertEqual(told["a"], {"enum": ["x", 2]})
        self.assertEqual((told["b"], told["c"]), ({}, {}))
        self.assertEqual(told["d"], {"type": "array", "items": {"type": "integer"}})
        self.assertEqual(told["e"], {"type": "array"})
        self.assertEqual(told["f"], {"type": "array", "items": {"type": "string"}})
        told = properties("a: Annotated[int, 'how many'], *others, b: dict = {}, c=object(), **more")
        self.assertEqual(told["a"], {"type": "integer", "description": "how many"})
        self.assertEqual(told["b"], {"type": "object", "additionalProperties": True, "default": {}})
        self.assertEqual((told["c"], set(told)), ({}, {"a", "b", "c"}))
        method = self.schema("class Shop:\n    def price(self, name: str): pass", "Shop().price")
        self.assertEqual(method["parameters"]["required"], ["name"])

    def test_what_no_model_can_call_is_refused_before_anything_is_asked(self):
        self.agent()
        for code, why in (
            ("ask('x', functions=[lambda n: n])", "define it with `def`"),
            ("ask('x', functions=[5])", "not a value of type int"),
            ("ask('x', functions=len)", "takes a list of functions"),
            ("def f(a, /): pass\nask('x', functions=[f])", "by position only"),
            ("def f(a: set): pass\nask('x', functions=[f])", "argument `a` of f: a model cannot give"),
            ("def f(a: dict[int, str]): pass\nask('x', functions=[f])", "keys of a dict"),
            ("def f(a: 'Missing'): pass\nask('x', functions=[f])", "type hints of f"),
            ("def f(): pass\nask('x', functions=[f, f])", "one name"),
        ):
            self.assertIn(why, self.refused(code))
        self.assertEqual(self.kernel.seen_calls, [])

    def test_its_documentation_tells_of_functions_only(self):
        self.assertEqual(
            self.value("import inspect; str(inspect.signature(ask))"),
            "'(prompt: str, context: dict | None = None, files: list[str] | None = None, functions: list = None, template: str = None)'"
            if self.value("import sys; sys.version_info >= (3, 14)") == "True"
            else "'(prompt: str, context: Optional[dict] = None, files: Optional[list[str]] = None, functions: list = None, template: str = None)'",
        )
        self.assertNotIn("go_on", self.value("ask.__doc__"))
