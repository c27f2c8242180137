"""Read by every Python that code of a sandbox starts, at its start, as `PYTHONPATH` names this folder.

Installed packages are put where a cell has them: behind the standard library, of which none of them takes the place,
and before what the image has of the same name. The script of a job has the hints that cells have.
"""

import os
import sys

PACKAGES = "/belljar/packages/site"
# Of the image, and of the environment of a `venv`.
PACKAGE_FOLDERS = ("/site-packages", "/dist-packages")
# Set for the script of a job (`cell.py`), and for no program that the script starts.
IN_JOB = "BELLJAR_IN_JOB"
NO_PACKAGES = "BELLJAR_NO_PACKAGES"  # why `--with` is refused, if it is
HERE = os.path.dirname(os.path.abspath(__file__))


def run_that_of_image():
    """The `sitecustomize` of the image, which this one stands before."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec(__name__, [entry for entry in sys.path if entry != HERE])
    if spec is not None and spec.loader is not None:
        sys.modules[__name__] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[__name__])


def add_packages():
    place = next((at for at, entry in enumerate(sys.path) if entry.endswith(PACKAGE_FOLDERS)), len(sys.path))
    sys.path.insert(place, PACKAGES)


def hint_at_the_end(no_packages):
    """Below the traceback of an error that ends the script, say what to do about it."""
    show = sys.excepthook

    def show_with_hint(kind, error, frames):
        show(kind, error, frames)
        sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
        try:
            from belljar_kernel import hints

            hint = hints.about(error, no_packages, hints.FOR_JOBS)
            if hint:
                sys.stderr.write(f"\nhint: {hint}\n")
        except Exception:
            pass  # the error is an object of the script, which may refuse everything

    sys.excepthook = show_with_hint


if PACKAGES not in sys.path:
    add_packages()
if os.environ.pop(IN_JOB, None):
    hint_at_the_end(os.environ.pop(NO_PACKAGES, ""))
run_that_of_image()
