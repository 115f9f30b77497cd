"""The sink of a copy in a directory: every file whole under its name, or not there."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from pathlib import Path
from typing import Final, NoReturn

from prefeed.copying.engine import Body
from prefeed.copying.room import Ledger
from prefeed.copying.versions import COARSEST_STEP, TIME_STEPS, time_of
from prefeed.errors import BadTargetNameError, CopyError, PrefeedError, TargetFullError, TruncatedBodyError
from prefeed.system.machine import process_mark

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_BAD_NAME: Final = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EFBIG})
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_RESERVED_FROM_BYTES: Final = 1024**2
"""Larger files get their blocks before they are written: one that does not fit is found out at its begin."""

_PROBED_TIME: Final = 1_700_000_001_123_456_789


class DirectorySink:
    """Writes files under other names beside the directory, and renames them when they are whole.

    **Threads**: ``write`` and ``link`` from many at once, for different paths. **Ownership**: both directories exist,
    on one file system, and belong to one sink; what a killed one left in ``incoming`` is for its owner to remove.

    Args:
        data: Where files go.
        incoming: Where they are made.
        ledger: What may be written.
    """

    def __init__(self, data: Path, incoming: Path, ledger: Ledger) -> None:
        self._data, self._incoming = f"{data}/", f"{incoming}/"
        self._ledger = ledger
        self._names, self._mark = itertools.count(), process_mark()
        self._directories: set[str] = set()

    def write(self, path: str, body: Body) -> None:
        """Put a file there; see ``Sink.write``. Its time stands for the version that it is a copy of."""
        temporary = self._new_name()
        taken = self._ledger.take(body.size_bytes)
        try:
            _write_file(temporary, body)
            self._place(temporary, path)
        except BaseException as err:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            self._ledger.give_back(taken)
            if isinstance(err, OSError) and not isinstance(err, PrefeedError):  # the origin's are OSErrors too
                _raise_translated(err, self._data + path)
            raise

    def link(self, path: str, target: str) -> None:
        """Put a symbolic link there, in place of what is there."""
        temporary = self._new_name()
        try:
            os.symlink(target, temporary)
            self._place(temporary, path)
        except OSError as err:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            _raise_translated(err, self._data + path)

    def make_directory(self, path: str) -> None:
        """A directory is there, with all above it."""
        if path not in self._directories:
            try:
                os.makedirs(self._data + path, exist_ok=True)
            except OSError as err:
                _raise_translated(err, self._data + path)
            self._directories.add(path)

    def _new_name(self) -> str:
        return f"{self._incoming}{self._mark}-{next(self._names)}"

    def _place(self, temporary: str, path: str) -> None:
        directory, slash, _ = path.rpartition("/")
        if slash:
            self.make_directory(directory)
        os.rename(temporary, self._data + path)


def _write_file(name: str, body: Body) -> None:
    file = os.open(name, _FLAGS, 0o600)
    try:
        if body.size_bytes >= _RESERVED_FROM_BYTES:
            _reserve(file, body.size_bytes)
        written = 0
        for chunk in body.chunks():
            view = memoryview(chunk).cast("B")
            while len(view):
                count = os.write(file, view)
                written += count
                view = view[count:]
        if written != body.size_bytes:
            raise TruncatedBodyError(f"{written} bytes came, {body.size_bytes} were announced")
        modified = time_of(body.version)
        os.utime(file, ns=(modified, modified))
    finally:
        os.close(file)


def _reserve(file: int, size_bytes: int) -> None:
    try:
        os.posix_fallocate(file, 0, size_bytes)
    except OSError as err:
        if err.errno in _NO_ROOM:
            raise
        # Some file systems cannot: there it is found out when it is written.


def _raise_translated(err: OSError, where: str) -> NoReturn:
    reason = err.strerror or str(err)
    if err.errno in _NO_ROOM:
        raise TargetFullError(f"the file system is full: {where}: {reason}", path=where) from err
    if err.errno in _BAD_NAME:
        raise BadTargetNameError(f"{where}: {reason}", path=where) from err
    raise CopyError(f"{where} cannot be written: {reason}; what was copied stays", path=where) from err


# ---------------------------------------------------------------- what its file system can tell apart


def probe_time_step(incoming: Path) -> int:
    """Return the smallest difference in time, in nanoseconds, that files there keep."""
    file = incoming / "probe-time"
    file.touch(mode=0o600)
    os.utime(file, ns=(_PROBED_TIME, _PROBED_TIME))
    seen = file.stat().st_mtime_ns
    file.unlink()
    return next((step for step in TIME_STEPS if _PROBED_TIME // step * step == seen), COARSEST_STEP)


def probe_folds_case(incoming: Path) -> bool:
    """Return whether ``A`` and ``a`` are one name there."""
    file = incoming / "probe-case"
    file.touch(mode=0o600)
    folds = (incoming / "PROBE-CASE").exists()
    file.unlink()
    return folds
