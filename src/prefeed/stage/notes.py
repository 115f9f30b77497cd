"""What an entry says of itself: the version of its sample, and the files that were read to make it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from prefeed.errors import EntryFormatError
from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key
from prefeed.sources.posix import stat_paths
from prefeed.sources.steadiness import is_open_for_writing, is_young
from prefeed.system.machine import is_on_own_disk
from prefeed.types import ENTRY_KEY_BYTES

ABSENT: Final = bytes(ENTRY_KEY_BYTES)
"""Stands for a file that is not there, or is no regular file."""

_QUICK_SECONDS: Final = 200e-6
"""Where asking a file takes longer, as on a network, many are asked side by side."""

_PROBES: Final = 4
_THREADS: Final = 64


class Note(msgspec.Struct, array_like=True, frozen=True):
    """What an entry was made of.

    Attributes:
        version: Version of the sample, as its dataset knows it; empty when only the files tell.
        paths: Files that were opened to make it, absolute, as the system has them.
        keys: Their entry keys then, one after the other; ``ABSENT`` for a file that was not there.
        micros: How long it took to make it, in microseconds.
        threads: With how many threads torch computed; 0: it was not imported.
    """

    version: bytes = b""
    paths: list[bytes] = []
    keys: bytes = b""
    micros: int = 0
    threads: int = 0

    def files(self) -> Iterable[tuple[bytes, bytes]]:
        """Return each path and its key."""
        for index, path in enumerate(self.paths):
            yield path, self.keys[index * ENTRY_KEY_BYTES : (index + 1) * ENTRY_KEY_BYTES]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Note)


def encode_note(note: Note) -> bytes:
    """Return the bytes of a note."""
    return _encoder.encode(note)


def decode_note(data: bytes) -> Note:
    """Return the note.

    Raises:
        EntryFormatError: These are not the bytes of one.
    """
    try:
        note = _decoder.decode(data)
    except msgspec.DecodeError as err:
        raise EntryFormatError(f"the note of an entry is damaged: {err}") from err
    if len(note.keys) != len(note.paths) * ENTRY_KEY_BYTES:
        raise EntryFormatError(f"the note of an entry has {len(note.keys)} bytes of keys for {len(note.paths)} files")
    return note


def key_now(path: str) -> bytes:
    """Return the key that a file has now."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ABSENT
    return entry_key("/", path, version_of(status, path)) if stat.S_ISREG(status.st_mode) else ABSENT


def is_being_written(path: str) -> bool:
    """Return whether a file was changed just now by somebody who still has it open: it may be read half old and half new.

    Nobody can tell that of a file that other machines may write; it is not opened to find out.
    """
    try:
        if not is_young(os.stat(path), time.time_ns()) or not is_on_own_disk(Path(path)):
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        return is_open_for_writing(descriptor)
    finally:
        os.close(descriptor)


def keys_now(paths: list[bytes]) -> dict[bytes, bytes]:
    """Return the key that each file has now; on slow storage they are asked side by side."""
    found: dict[bytes, bytes] = {}
    began = time.perf_counter()
    for path in paths[:_PROBES]:
        found[path] = key_now(os.fsdecode(path))
    rest = paths[_PROBES:]
    if not rest:
        return found
    if (time.perf_counter() - began) / _PROBES < _QUICK_SECONDS:
        found.update((path, key_now(os.fsdecode(path))) for path in rest)
        return found
    names = [os.fsdecode(path) for path in rest]
    _, versions = stat_paths(names, threads=_THREADS, batch=-(-len(names) // _THREADS))
    for path, name, version in zip(rest, names, versions, strict=True):
        found[path] = entry_key("/", name, version) if version else ABSENT
    return found
