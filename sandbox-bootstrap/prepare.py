"""Runs once for every image, before any session of it: compiles the kernel with the image's own Python, and
lists the packages that the image has, for models to know.

`python3 -I <this file> OUTPUT`: this file's directory cannot be written. `a/b.py` in it becomes `OUTPUT/a:b.pyc`;
what is known of the image is in `OUTPUT/prepared.json`. The daemon copies the files that it expects and no
others, under names of its own.
"""

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
    output = sys.argv[1]
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for folder, _, files in os.walk(directory):
        for source in (os.path.join(folder, file) for file in files if file.endswith(".py")):
            target = os.path.join(output, os.path.relpath(source, directory).replace(os.sep, ":") + "c")
            py_compile.compile(source, target, doraise=True, invalidation_mode=mode)
    prepared = {"cache_tag": sys.implementation.cache_tag, "packages": packages()}
    with open(os.path.join(output, "prepared.json"), "w", encoding="utf-8") as file:
        json.dump(prepared, file)


main()
