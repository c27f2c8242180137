"""What a forked process has copies of, and leaves to its parent."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class OfParent(Protocol):
    def leave_to_parent(self) -> None:
        """In a forked process: lets go of the copy, and ends nothing of the parent's."""


_of_parent: weakref.WeakSet[OfParent] = weakref.WeakSet()


def leave_at_fork(one: OfParent) -> None:
    _of_parent.add(one)


def _leave_to_parent() -> None:
    for one in list(_of_parent):
        one.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
