"""Stands before the `pip` of the image, which cannot install anything: a sandbox has no network.

What the image's own `pip` has beside `__main__` can still be imported.
"""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)


def main(arguments=None):
    """Do what `pip` with these arguments would do; gives its exit code."""
    return _programs().pip(arguments)


def uv(arguments=None):
    return _programs().uv(arguments)


def _programs():
    """The kernel's own module, from the folder that this file is in. Its folder is not left on `sys.path`."""
    import os
    import sys

    here = os.path.abspath(__file__)
    for _ in range(4):
        here = os.path.dirname(here)
    sys.path.insert(0, here)
    try:
        from belljar_kernel import installer_programs
    finally:
        sys.path.remove(here)
    return installer_programs


def __getattr__(name):
    if name == "__version__":  # parts of the image's `pip` ask for it
        return _programs().pip_version()
    raise AttributeError(f"module `pip` has no attribute `{name}`")
