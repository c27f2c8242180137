#!/usr/bin/env python3
"""The command tools of this example: they run on the host and speak HTTP to the task server.

    task_tool.py get_secret          arguments as JSON on stdin, prints the answer's JSON
    task_tool.py provide_answer      likewise
    task_tool.py start NAME          for run.sh
    task_tool.py score               for run.sh

The server's address is in the file `address` beside this one.
"""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_S = 5


def call(method, path, body=None):
    address = Path(__file__).with_name("address").read_text(encoding="utf-8")
    request = urllib.request.Request(address + path, method=method)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    # The server is on loopback: a proxy of the environment has no part in this.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def main(action, *names):
    if action == "start":
        return call("POST", f"/start/{names[0]}", {})
    if action == "score":
        return call("GET", "/score")
    arguments = json.load(sys.stdin)
    if action == "get_secret":
        return call("POST", "/get_secret", {})
    if action == "provide_answer":
        return call("POST", "/provide_answer", {"answer": arguments["answer"]})
    sys.exit(f"there is no action {action}")


if __name__ == "__main__":
    try:
        print(json.dumps(main(*sys.argv[1:])))
    except urllib.error.HTTPError as error:
        sys.exit(f"the task server refused: {error.read().decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"the task server cannot be reached: {error}")
