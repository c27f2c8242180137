"""Sandboxes of Deep Agents."""

from __future__ import annotations

import csv
import io
from typing import Any

from .frameworks import WithFramework, call, script

#: What the model of an example writes, to draw what it is asked for.
_PLOT = """
import csv
rows = [(row["month"], int(row["units"])) for row in csv.DictReader(open("data/sales.csv"))]
best = max(rows, key=lambda row: row[1])
bars = "".join(f'<rect x="{20 * n}" width="18" height="{units}"/>' for n, (_, units) in enumerate(rows))
open("plot.svg", "w").write(f'<svg xmlns="http://www.w3.org/2000/svg">{bars}</svg>')
print(*best)
"""


class DeepAgentsCases(WithFramework):
    framework = "deepagents"

    def test_the_integration_tests_pass_that_fit_its_version(self) -> None:
        outcomes = self.outcomes("deepagents_suite")
        self.assertEqual(set(outcomes), {"passed", "xfail"}, outcomes)
        self.assertEqual(outcomes["xfail"], 7)
        self.assertGreaterEqual(outcomes["passed"], 79)

    def test_the_example_runs(self) -> None:
        told = self.example("deepagents_sandbox")
        self.assertIn("execute: 15 47\n", told)
        self.assertTrue(told.endswith("There are 15 primes below 50.\n"), told)

    def test_the_data_analysis_of_its_documentation_works_in_a_box(self) -> None:
        # That example, with another sandbox and a model that plays what was written before: an agent on a table that was
        # uploaded, with a tool of the program that sends a picture on, in a thread that is kept.
        from deepagents import create_deep_agent
        from langchain_core.messages import AIMessage, ToolMessage
        from langchain_core.tools import tool
        from langgraph.checkpoint.memory import InMemorySaver

        from belljar.deepagents import BelljarSandbox

        table = io.StringIO(newline="")
        csv.writer(table).writerows([["month", "units"], ["May", 30], ["June", 55], ["July", 41]])
        sent: list[tuple[str, bytes | None]] = []

        @tool
        def send_message(text: str, file_path: str) -> str:
            """Sends a message with a file."""
            [file] = backend.download_files([file_path])
            sent.append((text, file.content))
            return "It was sent."

        model = script(
            call("ls", path="/workspace/data"),
            call("read_file", file_path="/workspace/data/sales.csv"),
            call("write_file", file_path="/workspace/plot.py", content=_PLOT),
            call("execute", command="python3 plot.py"),
            call("send_message", text="June was best.", file_path="/workspace/plot.svg"),
            "June sold most; the plot was sent.",
            call("execute", command="sort -t, -k2 -n data/sales.csv | sed -n 2p"),
            "May sold least.",
        )
        with BelljarSandbox() as backend:
            [uploaded] = backend.upload_files([("/workspace/data/sales.csv", table.getvalue().encode())])
            self.assertIsNone(uploaded.error)
            agent: Any = create_deep_agent(
                model=model, tools=[send_message], backend=backend, checkpointer=InMemorySaver()
            )
            thread = {"configurable": {"thread_id": "sales"}}
            told: list[str] = []
            for question in ("Plot what was sold, and send it.", "Which month sold least?"):
                asked = {"messages": [{"role": "user", "content": question}]}
                for update in agent.stream(asked, thread, stream_mode="updates"):
                    messages = [one for step in update.values() if step for one in step.get("messages", ())]
                    told += [one.text.splitlines()[0] for one in messages if isinstance(one, ToolMessage)]
            kept = agent.get_state(thread).values["messages"]
        answers = [one.text for one in kept if isinstance(one, AIMessage) and not one.tool_calls]
        self.assertEqual(answers, ["June sold most; the plot was sent.", "May sold least."])
        self.assertEqual((told[3], told[4], told[5]), ("June 55", "It was sent.", "May,30"), told)
        [(text, plot)] = sent
        self.assertEqual((text, (plot or b"").count(b"<rect")), ("June was best.", 3))
        self.assertEqual(self.ground.sessions(), [])

    def test_a_command_ends_with_its_time_and_tells_what_it_wrote(self) -> None:
        from belljar import BadRequestError, Sandbox
        from belljar.deepagents import BelljarSandbox

        with Sandbox.create() as box:
            backend = BelljarSandbox(box, timeout=1)
            late = backend.execute("echo begun; sleep 100")
            self.assertEqual((late.exit_code, late.output.split()[0]), (124, "begun"))
            both = backend.execute("echo 1; echo 2 >&2; echo 3; kill $$")
            self.assertEqual((both.exit_code, both.output), (143, "1\n2\n3\n"))
            self.assertEqual(backend.execute("sleep 1.5; echo done", timeout=0).output, "done\n")
            backend.close()
            self.assertTrue(box.is_running())
            with self.assertRaises(BadRequestError):
                BelljarSandbox(box, memory="1GiB")


class OnDocker(DeepAgentsCases):
    backend = "docker"


class OnBubblewrap(DeepAgentsCases):
    backend = "bubblewrap"


del DeepAgentsCases
