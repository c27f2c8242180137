#!/usr/bin/env python3
"""Keeps variables with dill, which is what Python programs without Belljar use for that.

    dill_peer.py dump FILE CODE   runs the code, writes its variables to the file, and prints the seconds of the writing
    dill_peer.py load FILE        loads them; whoever started it takes its time, because a new process is part of it
"""

import os
import sys
import time

import dill

PROTOCOL = 5


def dump(path, code):
    names = {}
    exec(code, names)
    kept = {"data": names["data"], "marks": names["marks"]}
    began = time.perf_counter()
    with open(path, "wb") as file:
        dill.dump(kept, file, protocol=PROTOCOL)
        file.flush()
        os.fsync(file.fileno())
    print(time.perf_counter() - began)


def load(path):
    with open(path, "rb") as file:
        print(len(dill.load(file)["data"]))


if __name__ == "__main__":
    {"dump": dump, "load": load}[sys.argv[1]](*sys.argv[2:])
