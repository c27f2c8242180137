"""Belljar works on tasks: each is one ask in a session of its own, in one dialect."""

import itertools
import json
import time

import daemon
from asks import replies, tasks
from contestants.belljar import events

DIALECTS = ("tool_calls", "next_step", "json_action", "xml_tags")
# The name of the model in the daemon's configuration.
MODEL = "bench"


def config(server):
    """The configuration of a daemon that asks this server."""
    model = {"provider": server.provider, "base_url": server.url, "model": server.model}
    model |= {"temperature": server.temperature, "max_tokens": server.reply_tokens}
    if server.key_variable:
        model["key_variable"] = server.key_variable
    if server.context_tokens:
        model["context_tokens"] = server.context_tokens
    tables = {"agent": {"model": MODEL, "language": "en"}, f"model.{MODEL}": model}
    if server.backend != "auto":
        tables["sandbox"] = {"backend": server.backend}
    return daemon.toml(tables)


class BelljarAsks:
    def __init__(self, served):
        self.client, self.names = served.client(), map("task{}".format, itertools.count())

    def work(self, task, dialect, seconds):
        """What came of the task; the session's sandbox is there before its time begins."""
        session = next(self.names)
        self.client.new(session)
        try:
            for name, content in task.files.items():
                path = f"/v1/sessions/{session}/files/{name}"
                self.client.request("PUT", path, content.encode(), "application/octet-stream")
            wanted = {"text": task.text, "dialect": dialect, "limits": {"seconds": seconds}}
            began = time.monotonic()
            seen = self.ask(session, wanted)
            took = time.monotonic() - began
        finally:
            self.client.remove(session)
        return outcome(task, seen, took)

    def ask(self, session, wanted):
        """All events of the ask, to its end."""
        client = daemon.Client(self.client.path)
        try:
            client.send("POST", f"/v1/sessions/{session}/asks?stream=true", json.dumps(wanted).encode())
            with client.socket.makefile("rb", 1 << 16) as answer:
                return [event for event in map(parsed, events(answer)) if event]
        finally:
            client.close()


def parsed(event):
    """The event as the journal has it, with its type; none for a comment."""
    lines = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and not line.startswith(b":"))
    return {"type": lines[b"event"].decode(), **json.loads(lines[b"data"])} if b"data" in lines else None


def outcome(task, seen, took):
    end = next((event["end"] for event in seen if event["type"] == "ask_finished"), None)
    if end is None:
        problems = [event for event in seen if event["type"] == "problem"]
        raise RuntimeError(f"{task.name}: the stream of the ask has no end: {problems or seen[-1:]}")
    answer = end["answer"] if end["outcome"] == "answered" else None
    counted = replies.of_events(seen)
    return {
        "solved": answer is not None and tasks.is_right(task, answer), "answer": answer, "ended": end["outcome"],
        "why": end["message"], "replies": counted.count, "valid": counted.valid,
        "tokens_in": end["usage"]["prompt_tokens"], "tokens_out": end["usage"]["completion_tokens"], "seconds": took,
    }  # fmt: skip
