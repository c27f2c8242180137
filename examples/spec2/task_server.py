#!/usr/bin/env python3
"""A task server on loopback: it gives out a secret, takes an answer, and keeps the score.

    task_server.py ADDRESS_FILE

It listens on a port of the system's choice and writes its address to the file. One task is current at a time.

    POST /start/NAME       make a task the current one
    POST /get_secret       {"value": …}
    POST /provide_answer   {"answer": …}, answered by {"accepted": …}; the first answer counts
    GET  /score            {"score": 0.0 to 1.0, "answers": {task: answer}}
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

# Name: the secret, and what has to be made of it.
TASKS = {
    "backwards": ("NcS9euQa", "aQue9ScN"),
    "second-item": ("apple,banana,cherry", "banana"),
    "digits": ("abc123", "321cba"),
}
MAX_BODY = 64 * 1024


class TaskServer(HTTPServer):
    current = None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = {}

    def start(self, name):
        if name not in TASKS:
            return 404, {"error": f"there is no task {name}"}
        self.current = name
        return 200, {"started": name}

    def get_secret(self):
        if self.current is None:
            return 409, {"error": "no task was started"}
        return 200, {"value": TASKS[self.current][0]}

    def provide_answer(self, body):
        if self.current is None:
            return 409, {"error": "no task was started"}
        if not isinstance(body, dict) or not isinstance(body.get("answer"), str):
            return 400, {"error": 'the body has to be {"answer": text}'}
        self.answers.setdefault(self.current, body["answer"])
        return 200, {"accepted": True}

    def score(self):
        right = sum(self.answers.get(name) == answer for name, (_, answer) in TASKS.items())
        return 200, {"score": right / len(TASKS), "answers": self.answers}


class Handler(BaseHTTPRequestHandler):
    timeout = 10

    def do_GET(self):
        self.reply(*(self.server.score() if self.path == "/score" else self.unknown()))

    def do_POST(self):
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return self.reply(413, {"error": "the body is too long"})
        try:
            body = json.loads(self.rfile.read(int(length)) or b"null")
        except ValueError:
            return self.reply(400, {"error": "the body is not JSON"})
        if self.path.startswith("/start/"):
            return self.reply(*self.server.start(self.path.removeprefix("/start/")))
        if self.path == "/get_secret":
            return self.reply(*self.server.get_secret())
        if self.path == "/provide_answer":
            return self.reply(*self.server.provide_answer(body))
        return self.reply(*self.unknown())

    def unknown(self):
        return 404, {"error": f"there is no {self.command} {self.path}"}

    def reply(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """The example shows what the model does; the server's lines would only be in between."""


def main():
    server = TaskServer()
    address_file = sys.argv[1]
    # Renamed into place, so that nobody reads half an address.
    with open(address_file + ".new", "w", encoding="utf-8") as file:
        file.write(f"http://127.0.0.1:{server.server_port}")
    os.rename(address_file + ".new", address_file)
    server.serve_forever()


if __name__ == "__main__":
    main()
