"""Epochs that are read in place: what a loader's processes share about it, and reads that are measured.

The loader begins an epoch without the server, and its samples open their files as without prefeed. Each process measures some
of these reads and leaves the outcome in shared memory. Once the loader has joined the server, it leaves a note there, and
each process looks before each sample whether there is one: no message is sent.

    words   int64 each    0: number of the note that is in force, 0: read in place   1: number of the last note   2: epoch
                          3: number of the last epoch that stays in place, though its reads were slow
    rows    of a process  epoch, reads measured in it, outcomes of the last ones, how many these are, nanoseconds that all
                          waited, their bytes; samples made in place, those of them that were watched, files that these opened
    note    length, checksum, bytes
"""

from __future__ import annotations

import os
import stat
import threading
import time
from array import array
from functools import partial
from typing import Any, Final, Protocol

from xxhash import xxh3_64_intdigest

from prefeed.core.in_place import MOST_MEASURED, QUICK_NS, Storage, judge
from prefeed.core.plan import Ids
from prefeed.sources.mounts import Roots

_WORD_BYTES: Final = 8
_NUM_ROWS: Final = 64
_LEAST_ROWS: Final = 8
_NUM_COLUMNS: Final = 9
_NUM_HEADS: Final = 4
_NOTE_AT: Final = _NUM_HEADS + _NUM_ROWS * _NUM_COLUMNS
_NOTE_BYTES: Final = 64 * 1024

STATE_BYTES: Final = (_NOTE_AT + 2) * _WORD_BYTES + _NOTE_BYTES
"""Of the memory that ``PlaceState`` needs; most of it is never touched."""

NOTE_IN_FORCE, _LAST_NOTE, _EPOCH, _STAYS = range(_NUM_HEADS)
_OF_EPOCH, _READS, _OUTCOMES, _KEPT, _WAITED, _BYTES, _SAMPLES, _WATCHED, _FILES = range(_NUM_COLUMNS)

_WHOLE_BYTES: Final = 1 << 20
"""A larger file is measured by its first bytes, and opened by the sample itself."""

_FIRST_BYTES: Final = 1 << 16
_PAUSE_NS: Final = 25_000_000
_ZEROS: Final = memoryview(array("q", bytes(8 * (_NUM_COLUMNS - 1))))
_MOST_TRIES: Final = 4
"""Samples per batch that may open no file before measuring ends until the next batch."""


class SharedBytes(Protocol):
    """Memory of several processes, such as a tensor of bytes; it pickles as the same memory."""

    def numpy(self) -> Any:
        """Return it as an array of uint8, shape (``STATE_BYTES``,)."""
        ...


class PlaceState:
    """What the processes of a loader tell each other about an epoch that is read in place.

    **Threads and processes.** The loader's process writes the words and the note, each process a row of its own; with more than
    64 workers some share a row, and an outcome may be lost. Pickles as its memory.

    Attributes:
        num_measured_here: Reads that this process has added to a row, in all epochs.
    """

    def __init__(self, memory: SharedBytes, *, num_rows: int = _NUM_ROWS) -> None:
        """Use this memory, which begins as zeros.

        Args:
            memory: Of ``STATE_BYTES``.
            num_rows: Rows that are looked at, for that number of processes; at least 8, at most 64.
        """
        self._memory = memory
        self._num_rows = min(_NUM_ROWS, max(_LEAST_ROWS, num_rows))
        self._rows_at = range(_NUM_HEADS, _NUM_HEADS + self._num_rows * _NUM_COLUMNS, _NUM_COLUMNS)
        self._words: memoryview | None = None
        self.num_measured_here: int = 0

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(PlaceState, num_rows=self._num_rows), (self._memory,))

    @property
    def words(self) -> memoryview:
        """The memory as words; the view is made once per process."""
        if self._words is None:
            self._words = memoryview(self._memory.numpy()).cast("B").cast("q")
        return self._words

    @property
    def note_number(self) -> int:
        """Number of the note in force; 0 while samples are read in place."""
        return int(self.words[NOTE_IN_FORCE])

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return int(self.words[_EPOCH])

    def epoch_begins(self, *, in_place: bool) -> None:
        """Another epoch begins; what was measured before counts no more."""
        words = self.words
        if in_place:
            words[NOTE_IN_FORCE] = 0
        words[_EPOCH] += 1

    @property
    def stays(self) -> bool:
        """True when this epoch is read in place to its end, though storage is slow."""
        return bool(self.words[_STAYS] == self.words[_EPOCH])

    def stay(self) -> None:
        """Read this epoch in place to its end: nothing is measured any more, and what samples open is only noted."""
        self.words[_STAYS] = self.words[_EPOCH]

    def stay_no_more(self) -> None:
        """Reads are measured again; those before, which were slow, count."""
        self.words[_STAYS] = 0

    def measured(self, row: int, *, is_slow: bool, waited_ns: int = 0, size_bytes: int = 0) -> None:
        """Add a read to the row of this process."""
        words, at = self.words, self._row(row)
        words[at + _OUTCOMES] = (words[at + _OUTCOMES] << 1 | is_slow) & ((1 << MOST_MEASURED) - 1)
        words[at + _KEPT] = min(MOST_MEASURED, words[at + _KEPT] + 1)
        words[at + _WAITED] += max(0, waited_ns)
        words[at + _BYTES] += size_bytes
        words[at + _READS] += 1
        self.num_measured_here += 1

    def made(self, row: int, num_samples: int, *, num_watched: int = 0, num_files: int = 0) -> int:
        """Add samples that were made in place to the row of this process; return which word has their number.

        Args:
            row: Of this process.
            num_samples: Made.
            num_watched: Of these, the ones whose opens were seen.
            num_files: That these opened.
        """
        words, at = self.words, self._row(row)
        words[at + _SAMPLES] += num_samples
        if num_watched:
            words[at + _WATCHED] += num_watched
            words[at + _FILES] += num_files
        return at + _SAMPLES

    def _row(self, row: int) -> int:
        """Return where a row of this process begins; what it has of another epoch counts no more."""
        words, at = self.words, _NUM_HEADS + row % self._num_rows * _NUM_COLUMNS
        if words[at] != words[_EPOCH]:
            words[at + 1 : at + _NUM_COLUMNS] = _ZEROS
            words[at] = words[_EPOCH]
        return at

    def waited(self) -> tuple[float, int]:
        """Return how many seconds the reads of this epoch that were measured waited, together, and how many these are."""
        return self._sum(_WAITED) / 1e9, self._sum(_READS)

    def in_place(self) -> tuple[int, int, int]:
        """Return how many samples of this epoch were made in place, and about how many files these opened, of how many bytes."""
        num_samples, num_watched, num_reads = self._sum(_SAMPLES), self._sum(_WATCHED), self._sum(_READS)
        num_files = round(self._sum(_FILES) * num_samples / num_watched) if num_watched else 0
        return num_samples, num_files, round(self._sum(_BYTES) * num_files / num_reads) if num_reads else 0

    def _sum(self, column: int) -> int:
        words = self.words
        return sum(int(words[at + column]) for at in self._rows())

    def num_measured(self) -> int:
        """Return how many reads of this epoch were measured by all processes."""
        return self._sum(_READS)

    def storage(self) -> Storage:
        """Return what the last reads of this epoch show of storage."""
        words, num_reads, num_slow = self.words, 0, 0
        for at in self._rows():
            num_reads += words[at + _KEPT]
            num_slow += words[at + _OUTCOMES].bit_count()
        return judge(num_reads=num_reads, num_slow=num_slow)

    def put_note(self, note: bytes) -> int:
        """Leave a note, which is in force after ``join``; return its number, that of the last one if it is the same.

        Raises:
            ValueError: It is too long.
        """
        words = self.words
        if len(note) > _NOTE_BYTES:
            raise ValueError(f"a note of {len(note)} bytes is too long; there is room for {_NOTE_BYTES}")
        if note != self.note():
            data, start = words.cast("B"), (_NOTE_AT + 2) * _WORD_BYTES
            data[start : start + len(note)] = note
            words[_NOTE_AT + 1] = _checksum(note)
            words[_NOTE_AT] = len(note)
            words[_LAST_NOTE] += 1
        return int(words[_LAST_NOTE])

    def join(self, number: int) -> None:
        """Let all processes read as the note with this number, the last one, says."""
        self.words[NOTE_IN_FORCE] = number

    def note(self) -> bytes | None:
        """Return the last note; None when there is none, or not all of it is seen here yet."""
        words = self.words
        length, start = words[_NOTE_AT], (_NOTE_AT + 2) * _WORD_BYTES
        if not 0 < length <= _NOTE_BYTES:
            return None
        note = bytes(words.cast("B")[start : start + length])
        return note if _checksum(note) == words[_NOTE_AT + 1] else None

    def _rows(self) -> list[int]:
        """Return where the rows begin of processes that have read in this epoch."""
        words, epoch = self.words, self.words[_EPOCH]
        return [at for at in self._rows_at if words[at] == epoch]


def _checksum(note: bytes) -> int:
    return xxh3_64_intdigest(note) >> 1  # signed words


class ReadMeter:
    """Measures how long storage lets reads of a process wait: an ``interception.FileReader``.

    A read that is measured is made here, and its bytes are given to who opens the file: they are what it would have read. In an
    epoch the first sixteen reads of all processes are measured, then one in 25 ms per process, and each while the last one was
    slow.

    **Threads and processes.** The thread of the samples, and threads that these start; each process has its own.

    Attributes:
        opened: Paths that were asked for; who reads them here empties it.
        epoch: Number of the epoch that is measured.
    """

    def __init__(self, state: PlaceState, roots: Roots | None, *, row: int) -> None:
        """Measure reads below these roots, of all files if there are none, into a row of the state."""
        self._state = state
        self._roots = roots
        self._row = row
        self.epoch: int = -1
        self._is_known = False  # enough is measured in this epoch, and the last read was quick
        self._num_left = 0  # samples that may still be made until a read is measured
        self._next_ns = 0
        self._num_large = 0  # files that were opened to be measured, and again by who wants them
        self._num_asked = 0  # files that watched samples opened, since samples were counted last
        self._samples_at = 0  # where the row has its samples
        self._words = state.words
        self._measuring = threading.Lock()
        self.opened: list[str] = []

    def batch_begins(self) -> bool:
        """Return whether the first reads of another batch are to be measured."""
        now = time.monotonic_ns()
        if self.epoch != self._state.epoch:
            self.epoch, self._is_known, self._num_large = self._state.epoch, False, 0
        elif self._is_known and now < self._next_ns:
            return False
        self._num_left, self._next_ns = _MOST_TRIES, now + _PAUSE_NS
        return True

    def is_free(self) -> bool:
        """Return whether the next batch is read in place, and no read of it is measured: for 25 ms after one was that was quick."""
        words = self._words
        return (
            self._is_known
            and time.monotonic_ns() < self._next_ns
            and not words[NOTE_IN_FORCE]
            and words[_EPOCH] == self.epoch
        )

    def made_freely(self, num_samples: int) -> None:
        """Count samples that were made while ``is_free``: there is a row of this epoch."""
        self._words[self._samples_at] += num_samples

    @property
    def is_quick(self) -> bool:
        """True when enough was measured in this epoch, and the last read was quick."""
        return self._is_known

    def goes_on(self) -> bool:
        """Return whether the next sample is to be measured as well; asked after each that was."""
        self._num_left -= 1
        return self._num_left > 0

    def made(self, num_samples: int, *, num_watched: int = 0) -> None:
        """Count samples that were made in place.

        Args:
            num_samples: Made.
            num_watched: Of these, the ones during which this was asked for files.
        """
        num_files, self._num_asked = self._num_asked, 0
        self._samples_at = self._state.made(self._row, num_samples, num_watched=num_watched, num_files=num_files)

    def may_have(self, path: str) -> bool:
        """Return False for a file that is not measured."""
        if self._roots is not None and not self._roots.covers(path):
            return False
        if self._num_left > 0:
            return True
        self._num_asked += 1  # the caller opens it
        return False

    def read_file(self, path: str) -> bytes | None:
        """Return the bytes of a file, and note how long they took; None when the caller should open it."""
        if not self.may_have(path):
            return None
        self._num_asked += 1
        self.opened.append(path)
        if not self._measuring.acquire(blocking=False):
            return None  # another thread of the sample measures, and this one does not wait for it
        try:
            return self._measured(path)
        finally:
            self._measuring.release()

    def _measured(self, path: str) -> bytes | None:
        if self._state.stays:
            self._num_left = _MOST_TRIES + 1
            return None  # a question to storage less: the caller opens it
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        try:
            found = _read(path, may_be_large=self._num_large < MOST_MEASURED)
        except (OSError, ValueError):
            return None  # the caller opens it, and gets Python's own error
        if found is None:
            return None
        data, size = found
        # What the processor did is no waiting: a large file of the page cache is read at once.
        waited = (time.perf_counter_ns() - began) - (time.thread_time_ns() - began_cpu)
        is_slow = waited > QUICK_NS
        self._state.measured(self._row, is_slow=is_slow, waited_ns=waited, size_bytes=size)
        self._is_known = not is_slow and self._state.num_measured() >= MOST_MEASURED
        self._num_left = 0 if self._is_known else _MOST_TRIES + 1
        self._num_large += data is None
        return data


def _read(path: str, *, may_be_large: bool) -> tuple[bytes | None, int] | None:
    """Return the bytes of a file, None of a large one, and its size; None of what is no regular file."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or (status.st_size > _WHOLE_BYTES and not may_be_large):
        return None  # to open a pipe would wait
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        if size > _WHOLE_BYTES:
            os.read(file, _FIRST_BYTES)
            return None, size
        parts = []
        while part := os.read(file, size + 1):
            parts.append(part)
            if len(part) > size:
                return None  # it grows
        data = b"".join(parts)
        return data, len(data)
    finally:
        os.close(file)


class Unheard:
    """In the place of a ``Consumer`` while an epoch is read in place: nothing is told, and nothing foreseen."""

    reads_once = True  # no order of a later epoch is of use

    def begin(self, ids: Ids, *, is_partial: bool = False) -> None:
        """Do nothing, as all methods; see ``Consumer``."""

    begin_announced = begin

    def announce(self, ids: Ids, *, begins: bool = False, is_partial: bool = False) -> None:
        """The next order."""

    def foresee(self, ids: Ids) -> None:
        """The order after that."""

    def keep(self, *, resident: bool) -> None:
        """What becomes of objects once they were read."""

    def extend(self, ids: Ids, *, are_read_soon: bool = True) -> None:
        """What the sampler drew."""

    def advance(self, position: int) -> None:
        """How far the loop is."""


class Samples:
    """In the place of an ``AccessMap`` meanwhile: the order is kept as indices of samples, which have no objects yet."""

    cached = None
    learned = None

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def refresh(self) -> None:
        """Nothing is learned."""

    def object_ids(self, samples: Ids) -> tuple[Ids, None]:
        """Return the samples themselves, one each."""
        return samples, None
