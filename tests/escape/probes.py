"""Tries to get out of a sandbox, or to see more than it should, and reports what happened.

Runs inside the sandbox, with nothing but the standard library (Python 3.9 or newer). Prints one JSON object:

    {"probe name": {"contained": true, "detail": "EPERM"}, ...}

No probe does harm if it gets through: files are opened but not written, calls get arguments that have no effect, and
no address but 127.0.0.1 is ever contacted. The first argument, if given, is the name of the host, for `hostname`.
"""

import json

import files  # noqa: F401
import limits  # noqa: F401
import network  # noqa: F401
import syscalls  # noqa: F401
from probing import Escaped, probes


def run(function):
    try:
        return {"contained": True, "detail": function()}
    except Escaped as escaped:
        return {"contained": False, "detail": str(escaped)}
    except Exception as error:  # a probe that cannot tell has not shown that anything is contained
        return {"contained": False, "detail": f"the probe failed: {type(error).__name__}: {error}"}


def main():
    print(json.dumps({name: run(function) for name, function in probes.items()}, indent=1))


if __name__ == "__main__":
    main()
