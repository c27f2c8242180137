"""The files that sandboxes are exported to."""

from __future__ import annotations

import os
import tempfile


def read(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Makes a file that only its owner can read, complete or not at all."""
    whole = os.path.abspath(path)
    descriptor, beside = tempfile.mkstemp(prefix=".belljar-", dir=os.path.dirname(whole))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, whole)
    except BaseException:
        os.unlink(beside)
        raise
