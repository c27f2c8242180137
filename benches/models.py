#!/usr/bin/env python3
"""Lets a model of any server that speaks OpenAI's chat completions work on tasks with exact answers, and counts.

    benches/models.py BELLJAR --url http://127.0.0.1:8080/v1 [--model NAME]
    benches/models.py BELLJAR --url … --harder
    benches/models.py BELLJAR --scripted [--harder]

Eight tasks in every dialect of Belljar; all twenty in the dialect that did best, and in smolagents' CodeAgent on the
same server (its environment is made below target/peers). `--harder` gives the twelve harder tasks to every dialect
instead. The tables say who solved how many, how many replies were syntactically valid, tokens and time. `--scripted`
takes a server that plays a model, to try all of it without one.

BELLJAR_MODEL_URL stands for `--url`. Each result is written down at once (--out); a run that is begun again with the
same server and model goes on where it was. A task has 90 s. One task at a time, so that none waits for another.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import daemon
from asks import belljar_asks, code_agent, scripted, table, tasks

ROOT = pathlib.Path(__file__).resolve().parent.parent
TASK_SECONDS = 90
INSTALL_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Server:
    """Where the model is, and how both sides ask it."""

    url: str
    model: str
    provider: str
    temperature: float
    reply_tokens: int
    context_tokens: int
    key_variable: str
    backend: str


class Results:
    """Outcomes by who worked and task, in a file."""

    def __init__(self, path, about, afresh):
        """`about` is all that outcomes depend on; with `afresh`, what the file has is forgotten."""
        self.path, self.about, self.who = path, about, {}
        if path.exists() and not afresh:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["about"] != about:
                sys.exit(f"{path} is of another server, or of other settings: move it away, or name another with --out")
            self.who = kept["results"]

    def settle(self, who, task, work):
        """Has the task worked on, unless its outcome is known."""
        outcomes = self.who.setdefault(who, {})
        if task.name in outcomes:
            return
        outcomes[task.name] = outcome = work()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"about": self.about, "results": self.who}, ensure_ascii=False, indent=1)
        self.path.with_suffix(".new").write_text(text + "\n", encoding="utf-8")
        self.path.with_suffix(".new").replace(self.path)
        how = "solved" if outcome["solved"] else f"{outcome['ended']}, {outcome['answer'] or outcome['why']!s:.60}"
        print(f"{who}, {task.name}: {how}, {outcome['seconds']:.1f} s", file=sys.stderr, flush=True)

    def of(self, whos, wanted):
        names = {task.name for task in wanted}
        return {
            who: {name: outcome for name, outcome in self.who.get(who, {}).items() if name in names} for who in whos
        }


def run(binary, server, results, given):
    """Gives the texts of the report, in their order."""
    everything = tasks.load("harder" if given.harder else "tasks")
    first = [task for task in everything if given.harder or task.every_dialect]
    with daemon.Daemon(binary, belljar_asks.config(server)) as served:
        asks = belljar_asks.BelljarAsks(served)

        def in_dialect(dialect, wanted):
            for task in wanted:
                results.settle(dialect, task, lambda task=task: asks.work(task, dialect, given.seconds))

        for dialect in given.dialects:
            in_dialect(dialect, first)
        compared = results.of(given.dialects, first)
        yield f"## {len(first)} tasks in every dialect\n\n{table.summary(compared)}\n\n{table.by_task(first, compared)}"
        if given.harder:
            return
        best = table.best(compared)
        in_dialect(best, everything)
    whos = [best]
    if not given.no_code_agent:
        agent = code_agent.CodeAgent(given.code_agent_python or environment(), server)
        for task in everything:
            results.settle(code_agent.NAME, task, lambda task=task: agent.work(task, given.seconds))
        whos.append(code_agent.NAME)
    compared = results.of(whos, everything)
    yield f"## All {len(everything)} tasks\n\n{table.summary(compared)}\n\n{table.by_task(everything, compared)}"


def environment():
    """The interpreter of an environment with smolagents, which is made if it is not there."""
    folder = ROOT / "target/peers/code-agent"
    command = [ROOT / "tests/python-env.sh", folder, code_agent.REQUIREMENTS]
    subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
    return folder / "bin/python"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--url", default=os.environ.get("BELLJAR_MODEL_URL"))
    parser.add_argument("--scripted", action="store_true")
    parser.add_argument("--harder", action="store_true")
    parser.add_argument("--model", default="default", help="the server's name of the model")
    parser.add_argument("--provider", default="compatible", help="as in [model.NAME]; llama.cpp takes JSON Schemas")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--reply-tokens", type=int, default=1024, help="of one reply")
    parser.add_argument("--context-tokens", type=int, default=0, help="that fit into the model")
    parser.add_argument("--key-variable", default="", help="the environment variable that holds the server's key")
    parser.add_argument("--backend", default="auto", choices=("auto", "docker", "bubblewrap"))
    parser.add_argument("--seconds", type=float, default=TASK_SECONDS, help="for each task")
    parser.add_argument("--dialects", default=",".join(belljar_asks.DIALECTS), type=lambda text: text.split(","))
    parser.add_argument("--no-code-agent", action="store_true")
    parser.add_argument("--code-agent-python", type=pathlib.Path, help="a Python that has smolagents[openai]")
    parser.add_argument("--out", type=pathlib.Path, help="default: models.json or harder.json below target/bench")
    given = parser.parse_args()
    if not given.binary.is_file():
        parser.error(f"there is no program {given.binary}")
    if not given.url and not given.scripted:
        parser.error("name the model server with --url or BELLJAR_MODEL_URL, or take --scripted")
    if unknown := set(given.dialects) - set(belljar_asks.DIALECTS):
        parser.error(f"no dialect is called {', '.join(sorted(unknown))}")
    name = ("scripted-" if given.scripted else "") + ("harder" if given.harder else "models")
    given.out = given.out or ROOT / f"target/bench/{name}.json"
    return given


def main():
    given = arguments()
    with contextlib.ExitStack() as stack:
        if given.scripted:
            script = scripted.Script(tasks.load("tasks") + tasks.load("harder"))
            given.url = stack.enter_context(scripted.serving(script)).url
        server = Server(
            given.url, given.model, given.provider, given.temperature, given.reply_tokens, given.context_tokens,
            given.key_variable, given.backend,
        )  # fmt: skip
        about = dataclasses.asdict(server) | {"seconds": given.seconds}
        results = Results(given.out, about, afresh=given.scripted)
        report = []
        for part in run(given.binary.resolve(), server, results, given):
            print(part + "\n", flush=True)
            report.append(part)
    given.out.with_suffix(".md").write_text("\n\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
