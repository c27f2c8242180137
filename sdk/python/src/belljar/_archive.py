"""Folders as tar archives, which is how the daemon takes them."""

from __future__ import annotations

import io
import tarfile


def empty_folder(name: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
    return packed.getvalue()
