"""One task for smolagents' CodeAgent: what is wanted comes as JSON on stdin, a report as the last line on stdout."""

import ast
import json
import os
import signal
import sys
import time

from smolagents import CodeAgent, LogLevel, OpenAIModel

# What the tasks need of the standard library beside the modules that CodeAgent allows by itself, and `open`, which it
# does not give: Belljar's model has all of it. This process is in a jail.
IMPORTS = ["base64", "bisect", "calendar", "csv", "decimal", "fractions", "functools", "glob", "hashlib", "heapq", "io",
           "json", "operator", "os", "pathlib", "string", "textwrap"]  # fmt: skip
# As many as an ask of Belljar may make.
STEPS = 30


class TimeOver(BaseException):
    """No `except Exception` on the way stops it."""


def over(*_):
    raise TimeOver


def main(wanted):
    model = OpenAIModel(
        wanted["model"], api_base=wanted["url"], api_key=wanted["key"], temperature=wanted["temperature"],
        max_tokens=wanted["max_tokens"], client_kwargs={"timeout": wanted["seconds"]},
    )  # fmt: skip
    agent = CodeAgent(
        [], model, additional_authorized_imports=IMPORTS, executor_kwargs={"additional_functions": {"open": open}},
        max_steps=STEPS, verbosity_level=LogLevel.OFF, return_full_result=True,
    )  # fmt: skip
    answer, why = None, None
    signal.signal(signal.SIGALRM, over)
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, wanted["seconds"])
    try:
        result = agent.run(wanted["text"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        ended = "answered" if result.state == "success" else "step_limit"
        answer = str(result.output) if ended == "answered" else None
    except TimeOver:
        ended = "time_limit"
    except Exception as problem:
        signal.setitimer(signal.ITIMER_REAL, 0)
        ended, why = "model_failed", f"{type(problem).__name__}: {problem}"[:400]
    took = time.monotonic() - began
    # Steps have replies; one that the time cut off has none.
    steps = [step for step in agent.memory.steps if getattr(step, "model_output", None)]
    usage = [step.token_usage for step in steps if step.token_usage]
    return {
        "answer": answer, "ended": ended, "why": why, "replies": len(steps), "valid": sum(map(is_valid, steps)),
        "tokens_in": sum(one.input_tokens for one in usage), "tokens_out": sum(one.output_tokens for one in usage),
        "seconds": took,
    }  # fmt: skip


def is_valid(step):
    """Whether the reply had code, and that is Python."""
    if not step.code_action:
        return False
    try:
        ast.parse(step.code_action)
    except (SyntaxError, ValueError):
        return False
    return True


if __name__ == "__main__":
    report = main(json.load(sys.stdin))
    print("\n" + json.dumps(report), flush=True)
    # Code of the model may still run in a thread, which a usual exit would wait for.
    os._exit(0)
