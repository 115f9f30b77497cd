"""Counting in this process, if it belongs to a program that ``prefeed run`` has started; else all this does nothing.

Counters lie in files that processes map: what was counted is there, however the process ends. A file is one process's at a
time, held by ``flock``. When that has ended, the next process that counts uses it: there are as many files as processes
that count at once, and the numbers in them only grow.

    counts-0: | length, key ... | 8 counters | length, key ... | 8 counters | 0
"""

from __future__ import annotations

import fcntl
import importlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator

NUM_COUNTERS = 8
"""Of each key; signed, of 64 bits."""

_PREFIX = "counts-"
_MOST_PROCESSES = 4096
_ENTRY_BYTES = 1024
_MOST_ENTRIES = 1024
_FILE_BYTES = _ENTRY_BYTES * _MOST_ENTRIES
_LENGTH = struct.Struct("=Q")
_COUNTERS = struct.Struct(f"={NUM_COUNTERS}q")
_COUNTERS_AT = _ENTRY_BYTES - _COUNTERS.size
_MOST_KEY_BYTES = _COUNTERS_AT - _LENGTH.size


class Counts:
    """The counters of one process.

    **Ownership.** Made by ``claim``; given back when the process ends, or nothing refers to it any more. A forked child lets go
    of its copy.
    **Threads.** Any; a handler of signals too. What is added is added whole, thanks to the interpreter's lock.
    """

    _file = -1

    def __init__(self, file: int) -> None:
        """Continue in a file of this process alone; its descriptor may be closed afterwards."""
        self._file = os.dup(file)
        os.ftruncate(file, _FILE_BYTES)  # a hole: it takes no memory
        self._map = mmap.mmap(file, _FILE_BYTES)
        self._numbers = memoryview(self._map).cast("q")
        self._places = {key: _place_of(entry) for entry, (key, _) in enumerate(_entries(self._map))}
        self._num_entries = len(self._places)
        self._lock = threading.RLock()

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def add(self, key: bytes, *amounts: int) -> None:
        """Add to the first counters of a key; nothing where there is no room for another key.

        Args:
            key: Not empty; only its first 952 bytes count.
            amounts: At most ``NUM_COUNTERS``.
        """
        place = self._places.get(key)
        if place is None:
            place = self._place(key)
            if place is None:
                return
        numbers = self._numbers
        for amount in amounts:
            if amount:
                numbers[place] += amount
            place += 1

    def add_one(self, key: bytes) -> bool:
        """Add one to the first counter of a key that was added to before; return False for another one."""
        place = self._places.get(key)
        if place is None:
            return False
        self._numbers[place] += 1
        return True

    def _place(self, key: bytes) -> int | None:
        name = key[:_MOST_KEY_BYTES]
        with self._lock:
            place = self._places.get(name)
            if place is None and self._num_entries < _MOST_ENTRIES:
                entry, self._num_entries = self._num_entries, self._num_entries + 1
                start = entry * _ENTRY_BYTES
                try:
                    os.posix_fallocate(self._file, start, _ENTRY_BYTES)  # else a full file system is a SIGBUS
                except OSError:
                    self._num_entries = _MOST_ENTRIES
                    return None
                self._map[start + _LENGTH.size : start + _LENGTH.size + len(name)] = name
                _LENGTH.pack_into(self._map, start, len(name))  # from now on it is there
                place = self._places[name] = _place_of(entry)
            if place is not None:
                self._places[key] = place
            return place


def claim(directory: str) -> Counts | None:
    """Return counters for this process; None when there are none to be had: the directory is gone, or full."""
    for number in range(_MOST_PROCESSES):
        try:
            file = os.open(
                f"{directory}/{_PREFIX}{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Counts(file)
        except BlockingIOError:
            continue
        except OSError:
            return None
        finally:
            os.close(file)
    return None


def sums(directory: str) -> dict[bytes, list[int]]:
    """Return each key with the sums of its counters, over all processes that counted.

    Raises:
        OSError: The directory cannot be read.
    """
    found: dict[bytes, list[int]] = {}
    for name in sorted(os.listdir(directory)):
        if not name.startswith(_PREFIX):
            continue
        with open(f"{directory}/{name}", "rb") as file:
            if os.fstat(file.fileno()).st_size != _FILE_BYTES:
                continue  # a process is about to begin
            with mmap.mmap(file.fileno(), _FILE_BYTES, access=mmap.ACCESS_READ) as data:
                for key, counters in _entries(data):
                    before = found.setdefault(key, [0] * NUM_COUNTERS)
                    found[key] = [one + other for one, other in zip(before, counters, strict=True)]
    return found


def _place_of(entry: int) -> int:
    """Return which number of the file is the first counter of an entry."""
    return (entry * _ENTRY_BYTES + _COUNTERS_AT) // 8


def _entries(data: mmap.mmap) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    for start in range(0, _FILE_BYTES, _ENTRY_BYTES):
        (length,) = _LENGTH.unpack_from(data, start)
        if not 0 < length <= _MOST_KEY_BYTES:
            return
        key = data[start + _LENGTH.size : start + _LENGTH.size + length]
        yield key, _COUNTERS.unpack_from(data, start + _COUNTERS_AT)


VARIABLE = "PREFEED_RUN"
"""Names the directory of the program in the environment of all its processes."""

READS = b"reads"
"""Objects that readers of prefeed's gave: number and bytes from the cache, number and bytes from the origin."""

TORCH = b"torch"
"""Processes in which torch was imported."""

FRAMEWORK = b"framework"
"""By name: processes in which another framework than torch was imported."""

LOADER = b"loader"
"""By name: iterators that were served, iterators that were not, times that it was let go, epochs that ended, batches,
nanoseconds of epochs, those of them in which the loop waited, processes."""

START = b"start"
"""Processes whose first epoch has begun, nanoseconds that passed before, and how often they waited in them."""

WHY = b"why"
"""By name of a loader and reason why it was not served: times."""

UNSEEN = b"unseen"
"""By its class: loaders that are gone without an iterator of torch's."""

PAST = b"past"
"""By call, and where: files that were opened past the cache."""

IN_SAMPLE, IN_OWN_THREAD = "s", "t"
"""Where: by a sample; while one was made, by a thread that it had not started; elsewhere the text is empty."""

TOUCHED = b"touched"
"""By root: directories below it in which files were opened past the cache."""

ESTIMATED = b"estimated"
"""Opens past the cache that were reckoned from those of other samples; they are counted under ``PAST`` as well."""

NATIVE = b"native"
"""By call and root: readers that were made, and that open files below it in C++; the root is empty where it is not known."""

_SEPARATOR = b"\0"

_BEGAN_FIELD = 19
"""Of what ``/proc/<pid>/stat`` says behind the name."""


class _Process:
    """What counts in this process.

    Attributes:
        directory: Of the program; empty: nothing is counted.
        counts: Made when something is counted first.
        noted: Keys that were asked for by ``is_new``, and who asked first.
        began: When the process began to count, in nanoseconds; 0 once its first epoch has begun, and in a forked child.
    """

    def __init__(self) -> None:
        self.directory = ""
        self.counts: Counts | None = None
        self.noted: dict[bytes, object] = {}
        self.began = 0

    def add(self, key: bytes, amounts: tuple[int, ...]) -> None:
        counts = self.counts
        if counts is None:
            counts = self.counts = claim(self.directory)
        if counts is None:  # the program's last line is said
            self.directory = ""
        else:
            counts.add(key, *amounts)

    def begin_forked(self) -> None:
        """In a forked child: what was mapped is the parent's."""
        self.counts = None
        self.noted = {}
        self.began = 0


_process = _Process()
os.register_at_fork(after_in_child=_process.begin_forked)


def begin(directory: str) -> None:
    """This process counts from now on, and so do its forks."""
    _process.directory = directory
    _process.began = time.monotonic_ns()


def own_prefix() -> str:
    """Return how the name begins of the directory of a program whose first process is this one.

    With when it began: another one may have its number, in another namespace.
    """
    with open("/proc/self/stat", "rb") as file:
        began = file.read().rpartition(b")")[2].split()[_BEGAN_FIELD]
    return f"run-{os.getpid()}-{began.decode()}-"


def is_first(directory: str) -> bool:
    """Return whether this process is the one that ``prefeed run`` was."""
    return os.path.basename(directory).startswith(own_prefix()) and os.path.isdir(directory)


def epoch_begins() -> None:
    """Count the time that has passed, if this is the first epoch of the process."""
    began, _process.began = _process.began, 0
    if began and is_counting():
        usage = importlib.import_module("resource").getrusage(0)
        add(START, 1, time.monotonic_ns() - began, usage.ru_nvcsw)


def end() -> None:
    """This process counts no more."""
    _process.directory, _process.counts = "", None


def is_counting() -> bool:
    """Return whether this process counts."""
    return bool(_process.directory)


def add_one(key: bytes) -> None:
    """Add one to the first counter of a key; as ``add``, for what comes with each open."""
    counts = _process.counts
    if counts is None or not counts.add_one(key):
        add(key, 1)


def add(key: bytes, *amounts: int) -> None:
    """Add to the counters of a key; see ``key_of``. Never raises."""
    if _process.directory:
        _process.add(key, amounts)


def is_new(key: bytes) -> bool:
    """Return whether this process asks for a key for the first time; a forked child is another process. Any thread."""
    asked = object()
    return _process.noted.setdefault(key, asked) is asked


def key_of(kind: bytes, *names: str) -> bytes:
    """Return the key of something that has a name."""
    return _SEPARATOR.join((kind, *(name.replace("\0", " ").encode("utf-8", "backslashreplace") for name in names)))


def parts_of(key: bytes) -> tuple[bytes, list[str]]:
    """Return kind and names of a key."""
    kind, *names = key.split(_SEPARATOR)
    return kind, [name.decode("utf-8", "replace") for name in names]
