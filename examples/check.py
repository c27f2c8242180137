#!/usr/bin/env python3
"""A quick check of the examples without Belljar: what their scripts say must be what their code does.

    check.py [NAME...]

Plays each script.toml: cells run in one bare container for each script, other tools are real where they are programs, and
each `expect` is looked for in what came out. Also, each generate.py has to give the data that is here.
"""

import contextlib
import filecmp
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
IMAGE = "belljar/science"
CELLS = EXAMPLES / "check_cells.py"
SERVER_START_S = 10


class Wrong(Exception):
    """An example does not hold what it says."""


class Container:
    """Cells in one namespace."""

    def __init__(self, workspace, uid, gid):
        self.process = subprocess.Popen(
            ["docker", "run", "--rm", "--interactive", "--network=none", "--memory=1g", f"--user={uid}:{gid}",
             f"--volume={workspace}:/workspace", f"--volume={CELLS}:/check_cells.py:ro", "--workdir=/workspace",
             IMAGE, "python3", "/check_cells.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        )  # fmt: skip

    def request(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Wrong("the container has ended")
        return json.loads(answer)

    def close(self):
        # It ends when its input does.
        self.process.stdin.close()
        self.process.wait(timeout=30)


class Play:
    """One script, from its request to its last reply."""

    def __init__(self, example, script, workspace, container):
        self.example, self.script, self.workspace, self.container = example, script, workspace, container
        with open(example / "belljar.toml", "rb") as file:
            self.commands = tomllib.load(file).get("tool", {})
        self.plans = 0

    def run(self):
        with open(self.script, "rb") as file:
            replies = tomllib.load(file)["reply"]
        newest = self.script.with_name("request.txt").read_text(encoding="utf-8")
        for number, reply in enumerate(replies, start=1):
            if reply.get("expect", "") not in newest:
                raise Wrong(f"reply {number} expects {reply['expect']!r}, but was told:\n{newest}")
            calls = list(calls_of(reply))
            if bool(calls) == (number == len(replies)):
                raise Wrong(f"reply {number} of {len(replies)} has {len(calls)} calls")
            for name, arguments in calls:
                newest = self.call(name, arguments)
                if "Glyph" in newest:
                    raise Wrong(f"a figure's font lacks a character:\n{newest}")
        return len(replies)

    def call(self, name, arguments):
        if name == "execute_python_code":
            return self.container.request(code=arguments["python_code_snippet"])
        if name == "compute_with_python":
            return self.container.request(expression=arguments["code"])
        if name == "file_reader":
            return (self.workspace / arguments["file_path"]).read_text(encoding="utf-8")
        if name == "recursive_plan_tree_todo":
            self.plans += 1
            return plan_text(arguments["recursive_plan_tree"])
        if name in self.commands:
            argv = self.commands[name]["argv"]
            done = subprocess.run(argv, cwd=self.example, input=json.dumps(arguments), capture_output=True, text=True)
            return done.stdout + done.stderr
        raise Wrong(f"there is no tool {name}")


def calls_of(reply):
    """The tool calls of a reply in any dialect."""
    for call in reply.get("call", []):
        yield call["name"], call["arguments"]
    document = reply.get("json", {})
    if "code" in document:
        yield "execute_python_code", {"python_code_snippet": document["code"]}
    function = dict(document.get("function", {}))
    if function and (tool := function.pop("tool")) != "report_task_completion":
        yield tool, function
    for code in re.findall(r"<execution-code>(.*?)</execution-code>", reply.get("content", ""), re.DOTALL):
        yield "execute_python_code", {"python_code_snippet": code}


def plan_text(tree):
    """The tasks of a plan; names have to be unique, and dependencies known."""
    nodes = []

    def collect(level):
        for node in level:
            nodes.append(node)
            collect(node.get("children", []))

    collect(tree["tree_nodes"])
    names = [node["task_name"] for node in nodes]
    if len(set(names)) < len(names):
        raise Wrong(f"a task's name is not unique: {names}")
    for node in nodes:
        if unknown := set(node.get("dependencies", [])) - set(names):
            raise Wrong(f"{node['task_name']} depends on unknown tasks: {unknown}")
    return "\n".join(f"{node['task_id']} {node['task_name']} {node.get('status', 'pending')}" for node in nodes)


@contextlib.contextmanager
def task_server(example, task):
    """The server of an example that has one, with a task started."""
    if not (example / "task_server.py").exists():
        yield
        return
    address = example / "address"
    server = subprocess.Popen([sys.executable, example / "task_server.py", address])
    try:
        deadline = time.monotonic() + SERVER_START_S
        while not address.exists():
            if time.monotonic() > deadline:
                raise Wrong("the task server did not start")
            time.sleep(0.02)
        subprocess.run([sys.executable, example / "task_tool.py", "start", task], check=True, stdout=subprocess.DEVNULL)
        yield
        score = subprocess.run([sys.executable, example / "task_tool.py", "score"], check=True, capture_output=True)
        if json.loads(score.stdout)["score"] == 0:
            raise Wrong(f"the answer to {task} was not right: {score.stdout.decode()}")
    finally:
        server.terminate()
        server.wait()
        address.unlink(missing_ok=True)


def check_script(source, script, scratch):
    example = scratch / "example"
    shutil.copytree(source, example)
    workspace = scratch / "workspace"
    workspace.mkdir()
    if (example / "data").exists():
        shutil.copytree(example / "data", workspace, dirs_exist_ok=True)
    owner = workspace.stat()
    container = Container(workspace, owner.st_uid, owner.st_gid)
    try:
        if (context := script.with_name("context.json")).exists():
            container.request(variables=json.loads(context.read_text(encoding="utf-8")))
        play = Play(example, script, workspace, container)
        with task_server(example, script.parent.name):
            replies = play.run()
    finally:
        container.close()
    for figure in workspace.glob("*.png"):
        if not figure.read_bytes().startswith(b"\x89PNG"):
            raise Wrong(f"{figure.name} is no PNG file")
    return f"{replies} replies, {play.plans} plans, {len(list(workspace.glob('*.png')))} figures"


def check_data(example, scratch):
    subprocess.run([sys.executable, example / "generate.py", scratch], check=True)
    made, kept = ({path.name for path in folder.iterdir()} for folder in (scratch, example / "data"))
    _, different, failed = filecmp.cmpfiles(scratch, example / "data", made & kept, shallow=False)
    if wrong := (made ^ kept) | set(different) | set(failed):
        raise Wrong(f"generate.py gives other data: {sorted(wrong)}")


def main(names):
    failed = False
    for example in sorted(path.parent for path in EXAMPLES.glob("*/belljar.toml")):
        if names and example.name not in names:
            continue
        checks = [(script, check_script) for script in sorted(example.glob("**/script.toml"))]
        if (example / "generate.py").exists():
            checks.append((example / "generate.py", None))
        for path, check in checks:
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    result = check(example, path, Path(scratch)) if check else check_data(example, Path(scratch))
                    print(f"ok    {path.relative_to(EXAMPLES)}: {result or 'gives the same data'}")
                except Wrong as wrong:
                    failed = True
                    print(f"WRONG {path.relative_to(EXAMPLES)}: {wrong}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
