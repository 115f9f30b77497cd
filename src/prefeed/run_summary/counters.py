"""Counters of the processes of one program, each in a mapped file, so that counts survive the process.

Only processes below ``prefeed run`` count; elsewhere ``add`` does nothing. A process claims a file of the program's directory by ``flock``,
and continues in the file of a process that has ended, so there are as many files as processes that count at the same time.

    counts-0: | key, 504 bytes | int64 | key, 504 bytes | int64 | ... | zeros |
"""

from __future__ import annotations

import fcntl
import importlib
import mmap
import os
import struct
import threading
import time
from itertools import count

_NUM_ENTRIES, _KEY_BYTES, _ENTRY = 128, 504, struct.Struct("=504sq")

NUMBERS = (
    "hits", "late_or_missed", "direct_reads", "reads_in_own_threads", "cache_bytes", "origin_bytes", "loop_ns", "waited_ns",
    "start_ns", "start_waits",
)  # fmt: skip
HITS, LATE, DIRECT, OWN_THREADS, CACHE_BYTES, ORIGIN_BYTES, LOOP_NS, WAITED_NS, START_NS, START_WAITS = NUMBERS
"""Reads by outcome, and direct reads in threads that no sample started. Time of epochs, and the waiting time in it.
Time before the first epoch, and context switches in it."""

SERVED, REFUSED, OPENED = "served", "not_served", "bypassed"
"""First part of a key: a loader; a loader and the reason; a call that bypassed the cache and its place."""

_lock = threading.RLock()
_directory = ""
_began_ns = 0  # 0 after the first epoch, and in forked children
_map: mmap.mmap | None = None
_kept: list[mmap.mmap | None] = []  # maps of parents, because closing one would close a descriptor that may be reused
_slots: dict[str, int] = {}
_numbers = memoryview(b"")


def begin(directory: str) -> None:
    """Count in this process and in its later forks. An empty directory stops counting."""
    global _directory, _began_ns, _map, _numbers, _slots
    _directory, _began_ns, _map, _numbers, _slots = directory, time.monotonic_ns(), None, memoryview(b""), {}


def is_counting() -> bool:
    """Return whether this process counts."""
    return bool(_directory)


def add(key: str, amount: int = 1) -> None:
    """Add to a counter, from any thread. New keys are ignored if the file is full."""
    if _directory and amount:
        slot = _slots.get(key)
        if slot is None:
            slot = _add_slot(key)
        if slot is not None:
            _numbers[slot] += amount


def note(*parts: str) -> None:
    """Record a fact, as a key of these parts, joined by tabs."""
    if (key := "\t".join(parts)) not in _slots:
        add(key)


def begin_epoch() -> None:
    """Count the time before the first epoch of this process."""
    global _began_ns
    if _began_ns and START_NS not in _slots:
        add(START_NS, time.monotonic_ns() - _began_ns)
        add(START_WAITS, importlib.import_module("resource").getrusage(0).ru_nvcsw)
    _began_ns = 0


def sums(directory: str) -> tuple[dict[str, int], int]:
    """Return the sums of a program's counters by key, and the number of files that have times of epochs."""
    found: dict[str, int] = {}
    num_loops = 0
    for name in os.listdir(directory):
        with open(f"{directory}/{name}", "rb") as file:
            entries = _entries(file.read())
        found |= {key: found.get(key, 0) + number for key, number in entries.items()}
        num_loops += LOOP_NS in entries
    return found, num_loops


def _entries(data: bytes | mmap.mmap) -> dict[str, int]:
    return {key.rstrip(b"\0").decode("utf-8", "replace"): number for key, number in _ENTRY.iter_unpack(data) if key[0]}


def _add_slot(key: str) -> int | None:
    """Return the index of a new counter among the 64-bit numbers of the file; None if the file is full or missing."""
    global _directory
    with _lock:
        try:
            if _map is None:
                _claim()
        except OSError:
            _directory = ""  # the program has ended, or the file system is full
        if _map is not None and key not in _slots and len(_slots) < _NUM_ENTRIES:
            start, name = len(_slots) * _ENTRY.size, key.encode("utf-8", "replace")[:_KEY_BYTES]
            _map[start : start + len(name)] = name
            _slots[key] = (start + _KEY_BYTES) // 8
        return _slots.get(key)


def _claim() -> None:
    """Map the first file of the directory that no living process has locked."""
    global _map, _numbers, _slots
    for number in count():
        file = os.open(f"{_directory}/counts-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(file, 0, _NUM_ENTRIES * _ENTRY.size)  # a full file system would be a SIGBUS later
            _map = mmap.mmap(file, 0)  # duplicates the descriptor, which keeps the lock
            _numbers = memoryview(_map).cast("q")
            _slots = {key: (place * _ENTRY.size + _KEY_BYTES) // 8 for place, key in enumerate(_entries(_map))}
            return
        except BlockingIOError:
            continue
        finally:
            os.close(file)


def _begin_forked() -> None:
    global _began_ns, _map, _slots, _lock
    _kept.append(_map)
    _began_ns, _map, _slots, _lock = 0, None, {}, threading.RLock()


os.register_at_fork(after_in_child=_begin_forked)
