"""Counting in this process, if it belongs to a program that ``prefeed run`` has started; else all this does nothing."""

from __future__ import annotations

import os

from prefeed.tally.shared import Counts, claim

VARIABLE = "PREFEED_RUN"
"""Names the directory of the program in the environment of all its processes."""

READS = b"reads"
"""Objects that readers of prefeed's gave: number and bytes from the cache, number and bytes from the origin."""

TORCH = b"torch"
"""Processes in which torch was imported."""

LOADER = b"loader"
"""By name: iterators that were served, iterators that were not, times that it was let go, epochs that ended, batches,
nanoseconds of epochs, those of them in which the loop waited, processes."""

WHY = b"why"
"""By name of a loader and reason why it was not served: times."""

UNSEEN = b"unseen"
"""By its class: loaders that are gone, and of which no iterator of torch's was made."""

PAST = b"past"
"""By call, and ``s`` for one in a sample: files that were opened past the cache."""

_SEPARATOR = b"\0"

_BEGAN_FIELD = 19
"""Of what ``/proc/<pid>/stat`` says behind the name."""


class _Process:
    """What counts in this process.

    Attributes:
        directory: Of the program; empty: nobody counts.
        counts: Made when something is counted first.
    """

    def __init__(self) -> None:
        self.directory = ""
        self.counts: Counts | None = None

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


_process = _Process()
os.register_at_fork(after_in_child=_process.begin_forked)


def begin(directory: str) -> None:
    """This process counts from now on, and so do its forks."""
    _process.directory = directory


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


def key_of(kind: bytes, *names: str) -> bytes:
    """Return the key of something that has a name."""
    return _SEPARATOR.join((kind, *(name.replace("\0", " ").encode("utf-8", "backslashreplace") for name in names)))


def parts_of(key: bytes) -> tuple[bytes, list[str]]:
    """Return kind and names of a key."""
    kind, *names = key.split(_SEPARATOR)
    return kind, [name.decode("utf-8", "replace") for name in names]
