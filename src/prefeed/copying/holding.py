"""One process at a time works at a copy: the directory is made private, and held while its files are."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from prefeed.copying.records import read_record
from prefeed.errors import CopyError, CopyInUseError
from prefeed.store.directory import require_private
from prefeed.system.locks import directory_lock

_LOOK_AGAIN_SECONDS: Final = 0.1


@contextlib.contextmanager
def made_and_held(directory: Path, *, on_wait: Callable[[int], None]) -> Iterator[None]:
    """The directory exists, is this user's alone, and no other process works at it.

    **Blocking**: as long as another one does. The lock goes with the process, however that ends.

    Args:
        directory: Of a copy; made if it is not there.
        on_wait: Told the process id of who holds it, once, when this has to wait.

    Raises:
        CopyError: It cannot be made.
        StoreError: Somebody else owns it.
    """
    with contextlib.ExitStack() as stack:
        is_waiting = False
        while True:
            try:
                _make(directory)
                stack.enter_context(directory_lock(directory, within_seconds=0))
                break
            except FileNotFoundError:  # another process removes it at this moment
                continue
            except BlockingIOError:
                if not is_waiting:
                    on_wait(holder_of(directory))
                is_waiting = True
            threading.Event().wait(_LOOK_AGAIN_SECONDS)
        yield


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """No other process works at a copy that is there.

    Raises:
        CopyInUseError: One does.
        FileNotFoundError: It is not there any more.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(directory_lock(directory))
        except BlockingIOError as err:
            pid = holder_of(directory)
            raise CopyInUseError(
                f"process {pid} works at {directory}; wait until it is done, or stop it", path=str(directory), pid=pid
            ) from err
        yield


def is_held(directory: Path) -> bool:
    """Return whether a process works at a copy now."""
    try:
        with directory_lock(directory, within_seconds=0):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def holder_of(directory: Path) -> int:
    """Return the process that works at a copy, as its record says; 0 when that does not."""
    record = read_record(directory)
    return 0 if record is None else record.pid


def _make(directory: Path) -> None:
    own = directory.parent
    if not own.parent.is_dir():
        raise CopyError(f"{own.parent} is no directory; make it, or mount the disk that it stands for")
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        require_private(own)
        directory.mkdir(mode=0o700, exist_ok=True)
        require_private(directory)
    except FileNotFoundError:
        raise
    except OSError as err:
        raise CopyError(
            f"{own} cannot be made by user {os.geteuid()}: {err.strerror}; name another place with --to",
            path=str(directory),
        ) from err
