"""The same with asyncio."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Coroutine, TypeVar

from belljar import AsyncSandbox, BadRequestError, NotFoundError, Result

from .harness import SOON, WithDaemon, eventually, in_thread

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, SOON)

    return asyncio.run(bounded())


class AsyncCases(WithDaemon):
    def test_cells_files_and_commands(self) -> None:
        async def work() -> None:
            async with await AsyncSandbox.create(memory="512MiB", seed={"s": 1}) as box:
                told: list[str] = []
                results: list[Result] = []

                async def later(text: str) -> None:
                    await asyncio.sleep(0)
                    told.append(text)

                ran = await box.run_code("print(s)\ndisplay([1])\ns + 1", on_stdout=later, on_result=results.append)
                self.assertEqual((ran.text, told, [one.text for one in results]), ("2", ["1\n"], ["[1]", "2"]))
                await box.files.write("a.txt", "text")
                self.assertEqual(await box.files.read("a.txt"), "text")
                self.assertEqual(await box.files.read("a.txt", format="bytes"), b"text")
                await box.files.make_dir("d")
                self.assertEqual({entry.name for entry in await box.files.list()}, {"a.txt", "d"})
                self.assertEqual((await box.files.get_info("d")).type, "dir")
                self.assertTrue(await box.files.exists("d") and not await box.files.exists("e"))
                await box.files.remove("d")
                with self.assertRaises(BadRequestError):
                    await box.files.list("a.txt")
                command = await box.commands.run("cat a.txt; exit 2", on_stdout=later)
                self.assertEqual((command.exit_code, told[-1]), (2, "text"))
                self.assertEqual((await box.commands.run(["echo", "a"], check=True)).stdout, "a\n")
                sleeper = await box.commands.run("sleep 1000", background=True)
                self.assertEqual(len(await box.commands.list()), 3)
                sleeper = await box.commands.run("sleep 1000", background=True)
                self.assertEqual((await box.commands.kill(sleeper.pid), await box.commands.kill(999)), (True, False))
                await sleeper.kill()
                self.assertEqual((await sleeper.wait()).status, "interrupted")
                await box.run_code("x = 1")
                await box.undo()
                self.assertNotIn("x", [variable.name for variable in await box.variables()])
                self.assertTrue((await box.receipt())["read_only_root"])
                self.assertIn(box.name, [info.name for info in await AsyncSandbox.list()])
                again = await AsyncSandbox.connect(box.name)
                self.assertEqual((await again.run_code("s")).text, "1")
            self.assertFalse(await box.is_running())
            with self.assertRaises(NotFoundError):
                await box.run_code("1")

        run(work())

    def test_many_at_once(self) -> None:
        async def work() -> None:
            async with await AsyncSandbox.create() as one, await AsyncSandbox.create() as other:
                both = [box.run_code(f"{n}") for n in range(8) for box in (one, other)]
                texts = [(await ran).text for ran in asyncio.as_completed(both)]
                self.assertEqual(sorted(texts, key=str), sorted([str(n) for n in range(8)] * 2))

        run(work())

    def test_a_cell_goes_on_over_a_restart_of_the_daemon(self) -> None:
        code = "import time\nfor i in range(20):\n    print(i)\n    time.sleep(0.1)\n'done'"

        async def work() -> None:
            async with await AsyncSandbox.create() as box:
                for streams in (True, False):
                    told: list[str] = []
                    cell = asyncio.create_task(box.run_code(code, on_stdout=told.append if streams else None))
                    while (await box.info()).state != "busy" or (streams and not told):
                        await asyncio.sleep(0.02)
                    await asyncio.to_thread(self.ground.kill)
                    ran = await cell
                    self.assertEqual((ran.text, ran.stdout), ("'done'", "".join(f"{i}\n" for i in range(20))))
                    self.assertEqual("".join(told), ran.stdout if streams else "")

        run(work())

    def test_a_cancelled_task_leaves_the_cell_and_a_good_connection(self) -> None:
        async def work() -> None:
            async with await AsyncSandbox.create() as box:
                await box.run_code("x = 0")
                for streams in (True, False):
                    began = time.monotonic()
                    with self.assertRaises(asyncio.TimeoutError):
                        slow = box.run_code("import time; time.sleep(20)", on_stdout=print if streams else None)
                        await asyncio.wait_for(slow, 0.5)
                    self.assertLess(time.monotonic() - began, 5)
                    self.assertIsNotNone(await box.interrupt())
                    self.assertEqual((await box.run_code("x")).text, "0")

        run(work())

    def test_one_sandbox_serves_several_loops(self) -> None:
        box = run(AsyncSandbox.create())
        for n in range(3):
            self.assertEqual(run(box.run_code(f"x = {n}\nx")).text, str(n))
        waiting = [in_thread(lambda: run(box.run_code("x")).text) for _ in range(3)]
        self.assertEqual([wait() for wait in waiting], ["2"] * 3)
        # Longer than a sandbox stays that nobody holds: no loop runs meanwhile.
        time.sleep(12)
        self.assertTrue(run(box.kill()))
        eventually("it is gone", lambda: box.name not in self.ground.sessions() or None)


class OnDocker(AsyncCases):
    backend = "docker"


class OnBubblewrap(AsyncCases):
    backend = "bubblewrap"


del AsyncCases
