"""Runs once for every image, before any session of it: compiles the kernel with the image's own Python, and
lists the packages that the image has, for models to know.

`python3 -I <this file>`, with the kernel's directory writable.
"""

import compileall
import json
import os
import py_compile
import re
import sys
from importlib import metadata

PACKAGES = 1_000
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def packages():
    names = {distribution.metadata["Name"] for distribution in metadata.distributions()}
    return sorted((name for name in names if name and NAME.fullmatch(name)), key=str.lower)[:PACKAGES]


def main():
    directory = os.path.dirname(os.path.abspath(__file__))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compiled = compileall.compile_dir(directory, quiet=1, invalidation_mode=mode)
    with open(os.path.join(directory, "packages.json"), "w", encoding="utf-8") as file:
        json.dump(packages(), file)
    return 0 if compiled else 1


sys.exit(main())
