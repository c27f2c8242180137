"""A whole program, as the package is meant to be used, with the daemon killed in the middle of a cell."""

from __future__ import annotations

import asyncio
import json

import pydantic

from belljar import AsyncSandbox, Sandbox

from .harness import eventually, in_thread
from .test_async import run
from .test_packages import WithIndex
from .test_tools import runs, says

_DATA = "month,sold\n" + "".join(f"{month},{n}\n" for n, month in enumerate(["may", "june", "july"], 1))
_PANDAS = "import pandas as pd; df = pd.read_csv('in.csv'); df.describe()"
_PLOT = "df.sold.plot();"
# Jails run the host's Python, which has no pandas.
_PLAIN = """
import csv
class Table(list):
    def _repr_html_(self): return f'<table>{len(self)}</table>'
df = Table(csv.DictReader(open('in.csv')))
df
"""
_PICTURE = """
class Plot:
    def _repr_png_(self): return b'\\x89PNG'
display(Plot())
"""
_CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
_IMPORTS = "from bell_dep import inner; inner.DEEP"
_WAITS = "print('waits')\nwhile True: pass"
_SLOW = "import time\nfor i in range(20):\n    print(i)\n    time.sleep(0.1)\nlen(df)"


class Answer(pydantic.BaseModel):
    month: str


class SnippetCases(WithIndex):
    configuration = '[model.script]\nprovider = "script"\nfile = "script.toml"\n'
    image: str | None = None
    code = (_PLAIN, _PICTURE)

    def setUp(self) -> None:
        script = runs("rate(currency='USD'); best = 'july'") + says(json.dumps({"month": "july"}))
        (self.ground.home / "script.toml").write_text(script)

    def test_sync(self) -> None:
        with Sandbox.create(image=self.image, memory="2GiB") as box:
            box.files.write("in.csv", _DATA)
            table = box.run_code(self.code[0], on_stdout=print, timeout=120)
            self.assertIsNone(table.error)
            self.assertEqual(table.state.kind, "kept")
            self.assertIn("<table", table.results[-1].html or "")
            self.assertTrue((box.run_code(self.code[1]).results[0].png_bytes or b"").startswith(b"\x89PNG"))

            lines: list[str] = []
            slow = in_thread(lambda: box.run_code(_SLOW, on_stdout=lines.append))
            eventually("output", lambda: bool(lines) or None)
            self.ground.kill()
            self.assertEqual((slow().text, "".join(lines)), ("3", "".join(f"{i}\n" for i in range(20))))

            self.assertEqual(box.files.read("in.csv"), _DATA)
            self.assertEqual([entry.name for entry in box.files.list()], ["in.csv"])
            self.assertIn("in.csv", box.commands.run("ls -la").stdout)
            box.run_code("df = None")
            box.undo()
            self.assertEqual(box.run_code("len(df)").text, "3")
            self.assertEqual(box.run_code(_CRASHES).state.kind, "restored")
            self.assertEqual([package.name for package in box.install("bell-dep").packages], ["bell-dep"])
            self.assertEqual(box.run_code(_IMPORTS).text, "7")
            self.assertIn("df", [variable.name for variable in box.variables()])
            self.assertIsNone(box.interrupt())
            waits: list[str] = []
            endless = in_thread(lambda: box.run_code(_WAITS, on_stdout=waits.append))
            eventually("it waits", lambda: bool(waits) or None)
            number, ended = box.interrupt(), endless()
            self.assertEqual((ended.status, ended.cell), ("interrupted", number))
            self.assertEqual(box.run_code("len(df)").text, "3")
            self.assertEqual(box.receipt()["backend"], self.backend)

            @box.tool
            def rate(currency: str) -> float:
                """Exchange rate to the euro."""
                return {"USD": 0.5}[currency]

            kinds: list[str] = []
            asking = in_thread(
                lambda: box.ask("Which?", schema=Answer, approval="ask", on_event=lambda e: kinds.append(e["type"]))
            )
            while "ask_finished" not in kinds:
                for request in box.approvals():
                    request.accept()
            self.assertEqual(asking(), Answer(month="july"))
            self.assertEqual(box.run_code("best").text, "'july'")
        self.assertEqual(self.ground.sessions(), [])

    def test_async(self) -> None:
        async def work() -> None:
            async with await AsyncSandbox.create(image=self.image, memory="2GiB") as box:
                await box.files.write("in.csv", _DATA)
                table = await box.run_code(self.code[0], on_stdout=print, timeout=120)
                self.assertIsNone(table.error)
                self.assertEqual(table.state.kind, "kept")
                self.assertIn("<table", table.results[-1].html or "")
                picture = (await box.run_code(self.code[1])).results[0].png_bytes
                self.assertTrue((picture or b"").startswith(b"\x89PNG"))

                lines: list[str] = []
                slow = asyncio.create_task(box.run_code(_SLOW, on_stdout=lines.append))
                while not lines:
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(self.ground.kill)
                self.assertEqual(((await slow).text, "".join(lines)), ("3", "".join(f"{i}\n" for i in range(20))))

                self.assertEqual(await box.files.read("in.csv"), _DATA)
                self.assertEqual([entry.name for entry in await box.files.list()], ["in.csv"])
                self.assertIn("in.csv", (await box.commands.run("ls -la")).stdout)
                await box.run_code("df = None")
                await box.undo()
                self.assertEqual((await box.run_code("len(df)")).text, "3")
                self.assertEqual((await box.run_code(_CRASHES)).state.kind, "restored")
                self.assertEqual([package.name for package in (await box.install("bell-dep")).packages], ["bell-dep"])
                self.assertEqual((await box.run_code(_IMPORTS)).text, "7")
                self.assertIn("df", [variable.name for variable in await box.variables()])
                self.assertIsNone(await box.interrupt())
                waits: list[str] = []
                endless = asyncio.create_task(box.run_code(_WAITS, on_stdout=waits.append))
                while not waits:
                    await asyncio.sleep(0.02)
                number, ended = await box.interrupt(), await endless
                self.assertEqual((ended.status, ended.cell), ("interrupted", number))
                self.assertEqual((await box.run_code("len(df)")).text, "3")
                self.assertEqual((await box.receipt())["backend"], self.backend)

                @box.tool
                async def rate(currency: str) -> float:
                    """Exchange rate to the euro."""
                    return {"USD": 0.5}[currency]

                kinds: list[str] = []
                asking = asyncio.create_task(
                    box.ask("Which?", schema=Answer, approval="ask", on_event=lambda e: kinds.append(e["type"]))
                )
                while "ask_finished" not in kinds:
                    for request in await box.approvals():
                        await request.accept()
                self.assertEqual(await asking, Answer(month="july"))
                self.assertEqual((await box.run_code("best")).text, "'july'")
            self.assertEqual(self.ground.sessions(), [])

        run(work())


class OnDocker(SnippetCases):
    backend = "docker"
    image = "belljar/science"
    code = (_PANDAS, _PLOT)


class OnBubblewrap(SnippetCases):
    backend = "bubblewrap"


del SnippetCases
