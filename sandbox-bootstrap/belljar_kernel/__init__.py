"""The Python half of the kernel, as Belljar calls what runs in a sandbox; `src/sandbox/kernel` puts it there.

The *guardian* (pid 1, a program of its own in `guardian/`) owns the bridge to the daemon and never runs user code.
*Runners* are the processes that do: the main worker, which keeps the session's variables, and copies of it, which wait
as checkpoints or serve single cells. They come from the *zygote* (`zygote.py`), Python's first process. Guardian and
runners talk over socket pairs and pipes (`wire.py`).
"""

import builtins
import sys

# The kernel shares its interpreter with user code, which may replace `builtins.len` or worse. Its
# modules keep the built-in functions as they were at the start.
_BUILTINS = dict(builtins.__dict__)


class _KernelImporter:
    """Loads the modules of this package with the built-in functions of `_BUILTINS`."""

    @staticmethod
    def find_spec(name, path, target=None):
        if not name.startswith(__name__ + "."):
            return None
        others = (finder for finder in sys.meta_path if finder is not _KernelImporter)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_with_builtins(module):
                module.__dict__["__builtins__"] = _BUILTINS
                execute(module)

            spec.loader.exec_module = execute_with_builtins
        return spec


sys.meta_path.insert(0, _KernelImporter)
