#!/usr/bin/env python3
"""An evaluation of Inspect whose tools run in sandboxes. Its model plays a script, so no key is needed."""

from __future__ import annotations

import sys
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, python

from belljar.inspect_ai import BelljarEnvironment  # noqa: F401  not needed where the package is installed

SAMPLE = Sample(input="How many bytes has the file?", target="12", files={"data/note.txt": "twelve bytes"})


def main() -> int:
    script = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "ls data && wc -c < data/note.txt"}),
        ModelOutput.for_tool_call("mockllm/model", "python", {"code": "import os\nprint(os.stat('data/note.txt').st_size)"}),
        ModelOutput.from_content("mockllm/model", "It has 12 bytes."),
    ]
    for output in script:
        # Otherwise the tokens are counted, with tables that are downloaded.
        output.usage = ModelUsage()
    task = Task(
        dataset=[SAMPLE],
        solver=[use_tools([bash(timeout=60), python(timeout=60)]), generate()],
        scorer=includes(),
        sandbox="belljar",
    )
    model = get_model("mockllm/model", custom_outputs=script)
    with tempfile.TemporaryDirectory() as folder:
        log = eval(task, model=model, log_dir=folder, display="none")[0]
        if log.status != "success" or not log.samples:
            print(log.error.message if log.error else log.status)
            return 1
        sample = log.samples[0]
    for message in sample.messages:
        if message.role == "tool":
            print(f"{message.function}: {message.text.strip()!r}")
    print("score:", (sample.scores or {})["includes"].value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
