#!/usr/bin/env python3
"""Does the common work with one contestant and prints a line of JSON for each figure.

    contestant.py NAME [VARIANT] [--only WORK,WORK]

It is a process of its own because each peer has an environment of its own, and so that one that hangs can be ended.
"""

import argparse
import importlib
import json
import platform

import work


def emit(**line):
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("variant", nargs="?", default="")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    module = importlib.import_module(f"contestants.{given.name}")
    contestant = module.make(given.variant)
    try:
        emit(version=contestant.version, python=platform.python_version())
        only = set(given.only.split(",")) - {""}
        work.Contest(contestant, lambda name, figure: emit(work=name, figure=figure), only).all()
    finally:
        contestant.end()


if __name__ == "__main__":
    main()
