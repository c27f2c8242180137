"""A model server on loopback that needs no model: it knows the tasks, and plays a model that solves them by code.

It speaks OpenAI's chat completions, streamed or not, and replies in whatever form it was asked to: each dialect of
Belljar, or CodeAgent's. It sees from the conversation alone how far a task is. Its answers are what the code printed,
so a task is solved only if its code has really run.
"""

import contextlib
import http.server
import json
import re
import threading

# A reply is one of these words: what is wrong first, if a test wants that, then code, then the answer.
GARBLED, BAD_SYNTAX, CODE, ANSWER, WRONG_ANSWER = "garbled", "bad syntax", "code", "answer", "wrong answer"
USUAL = (CODE, ANSWER)
PRINTED = re.compile(r"ANSWER\[(.*?)\]")
BODY_BYTES = 4 << 20


class Unknown(Exception):
    """A request that no scripted reply fits."""


class Script:
    """What is replied. `plans` maps names of tasks to their replies, where those are not the usual ones."""

    def __init__(self, tasks, plans=None):
        self.tasks, self.plans = tasks, plans or {}

    def message(self, request):
        messages = [(message["role"], text_of(message)) for message in request["messages"]]
        asked = "\n".join(text for role, text in messages if role == "user")
        task = next((task for task in self.tasks if task.request in asked), None)
        if task is None:
            raise Unknown("none of the tasks is asked for")
        plan = self.plans.get(task.name, USUAL)
        place = sum(role == "assistant" for role, _ in messages)
        if place >= len(plan):
            raise Unknown(f"the script of {task.name} ends after {len(plan)} replies")
        form = FORMS[form_of(request, messages)]
        if plan[place] in (ANSWER, WRONG_ANSWER):
            printed = PRINTED.findall("\n".join(text for role, text in messages if role != "assistant"))
            if not printed:
                raise Unknown(f"nothing was printed by the code of {task.name}")
            return form(ANSWER, printed[-1] if plan[place] == ANSWER else "no idea")
        code = f"{task.solution.strip()}\nprint(f'ANSWER[{{answer}}]')"
        return form(plan[place], "answer = = 1" if plan[place] == BAD_SYNTAX else code)


def text_of(message):
    """The text of a message, whose content may be a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def form_of(request, messages):
    if request.get("tools"):
        return "tool_calls"
    system = "\n".join(text for role, text in messages if role == "system")
    marks = {"current_state": "next_step", "provide_answer": "json_action", "<execution-code>": "xml_tags",
             "</code>": "code_agent"}  # fmt: skip
    found = [form for mark, form in marks.items() if mark in system]
    if not found:
        raise Unknown("the system prompt is of no dialect that is known here")
    return found[0]


def tool_calls(word, text):
    if word == ANSWER:
        return {"content": text}
    arguments = json.dumps({"tool_call_purpose": "Compute it", "python_code_snippet": text})
    function = {"name": "execute_python_code", "arguments": "{oops" if word == GARBLED else arguments}
    return {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}


def next_step(word, text):
    if word == ANSWER:
        function = {"tool": "report_task_completion", "answer": text}
    else:
        function = {"tool": "execute_python_code", "python_code_snippet": text}
    return in_json(word, {"current_state": "I compute it.", "function": function})


def json_action(word, text):
    if word == ANSWER:
        return in_json(word, {"thought": "Done.", "action": "provide_answer", "code": None, "final_answer": text})
    return in_json(word, {"thought": "By code.", "action": "execute_code", "code": text, "final_answer": None})


def in_json(word, value):
    return {"content": "Let me think about it." if word == GARBLED else json.dumps(value)}


def xml_tags(word, text):
    if word == ANSWER:
        return {"content": text}
    end = "" if word == GARBLED else "\n</execution-code>"
    return {"content": f"I compute it.\n<execution-code>\n{text}{end}"}


def code_agent(word, text):
    if word == GARBLED:
        return {"content": "Thought: let me think about it."}
    code = f"final_answer({text!r})" if word == ANSWER else text
    return {"content": f"Thought: by code.\n<code>\n{code}\n</code>"}


FORMS = {form.__name__: form for form in (tool_calls, next_step, json_action, xml_tags, code_agent)}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):  # noqa: N802
        length = int(self.headers.get("Content-Length", 0))
        if length > BODY_BYTES:
            self.close_connection = True
            return self.send(413, {"error": {"message": "the body is too large"}})
        request = json.loads(self.rfile.read(length))
        self.server.requests.append(request)
        try:
            message = {"role": "assistant", **self.server.script.message(request)}
        except Unknown as problem:
            return self.send(400, {"error": {"message": str(problem), "type": "invalid_request_error"}})
        sizes = [len(json.dumps(part)) // 4 + 1 for part in (request["messages"], message)]
        usage = {"prompt_tokens": sizes[0], "completion_tokens": sizes[1], "total_tokens": sum(sizes)}
        finish = "tool_calls" if "tool_calls" in message else "stop"
        about = {"id": "chatcmpl-1", "created": 1, "model": request["model"]}
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return self.send(200, {**about, "object": "chat.completion", "choices": [choice], "usage": usage})
        for place, call in enumerate(message.get("tool_calls", [])):
            call["index"] = place
        about["object"] = "chat.completion.chunk"
        chunks = [
            {**about, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**about, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {**about, "choices": [], "usage": usage},
        ]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return self.write(200, "text/event-stream", body.encode())

    def send(self, status, value):
        self.write(status, "application/json", json.dumps(value).encode())

    def write(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing is logged: `requests` has what came."""


@contextlib.contextmanager
def serving(script):
    """The server while it runs; `url` is its address, `requests` are the bodies that it got."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.script, server.requests = script, []
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
