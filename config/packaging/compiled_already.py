#!/usr/bin/env python3
"""Stands in for `cargo` when maturin packs a binary that is compiled already: it answers `cargo rustc` as cargo does when
there is nothing to compile. So maturin alone decides how the wheel looks, whoever has compiled what is in it.

    CARGO=compiled_already.py BELLJAR_BINARY=PATH maturin build
"""

import json
import os
import subprocess
import sys


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] != ["rustc"]:
        os.execvp("cargo", ["cargo", *arguments])
    binary = os.path.abspath(os.environ["BELLJAR_BINARY"])
    manifest = arguments[arguments.index("--manifest-path") + 1]
    command = ["cargo", "pkgid", "--offline", "--manifest-path", manifest]
    package = subprocess.run(command, check=True, text=True, capture_output=True).stdout.strip()
    target = {
        "kind": ["bin"],
        "crate_types": ["bin"],
        "name": "belljar",
        "src_path": os.path.join(os.path.dirname(manifest), "src", "main.rs"),
        "edition": "2024",
        "doc": True,
        "doctest": False,
        "test": True,
    }
    profile = {
        "opt_level": "3",
        "debuginfo": 0,
        "debug_assertions": False,
        "overflow_checks": True,
        "test": False,
    }
    artifact = {
        "reason": "compiler-artifact",
        "package_id": package,
        "manifest_path": manifest,
        "target": target,
        "profile": profile,
        "features": [],
        "filenames": [binary],
        "executable": binary,
        "fresh": True,
    }
    print(json.dumps(artifact))
    print(json.dumps({"reason": "build-finished", "success": True}))


if __name__ == "__main__":
    main()
