"""The lock of a directory: one process at a time makes, opens, grows or removes the store in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_held: Final[set[int]] = set()


@contextlib.contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Hold a directory; nobody else of those who ask is inside meanwhile.

    The lock is on the directory itself: nothing has to be made for it, and a removed directory cannot be held.
    It goes with the process, however that ends, and not to its children.

    Raises:
        FileNotFoundError: There is no such directory, or it was removed while this waited.
        OSError: It cannot be opened.
    """
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _held.add(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not os.path.samestat(os.fstat(file), os.stat(directory)):
            raise FileNotFoundError(f"{directory} was replaced")
        yield
    finally:
        _held.discard(file)
        with contextlib.suppress(OSError):  # closed already in a forked child
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _close_after_fork() -> None:
    # What a thread of the parent holds: the copy here would keep it locked when the parent is killed.
    for file in _held:
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_close_after_fork)
