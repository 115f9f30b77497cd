"""Learned maps: which objects of a catalogue each sample opens, as its workers saw it, kept for the next run.

One file of int64 words, mapped by readers while the server writes it::

    <directory>/learned
        header     MAGIC, num_samples, end: the first word after the records, garbage: words of records left behind
        heads      (num_samples,)       word at which the sample's record begins; 0: unknown
        records    num_objects, check, ids …    one after the other, in the order of writing

``check`` tells whether a record is whole and this sample's: one that is being written, or that a power failure left
half written, reads as unknown. What is unknown is learned again, so nothing here is worth more than that.

A record may also be *guessed*: the sample was not seen to open these objects, and ``check`` says so. It serves as a plan
until the sample is made.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import TierFullError
from prefeed.sources.listing import allocate
from prefeed.system.trust import open_in_protected

Words = NDArray[np.int64]

FILE: Final = "learned"
MAGIC: Final = 0x0001_7061_6D66_7270  # "prfmap", layout 1

_SAMPLES, _END, _GARBAGE = 1, 2, 3
_HEADER_WORDS: Final = 4
_RECORD_WORDS: Final = 2
_SMALLEST_WORDS: Final = 1 << 13
_CHUNK: Final = 1 << 16
_MASK: Final = 2**63 - 1
_SALT_SAMPLE: Final = 0x9E37_79B9_7F4A_7C15
_SALT_COUNT: Final = 0xC2B2_AE3D_27D4_EB4F
_GUESSED: Final = 0x1656_67B1_9E37_79F9
"""Bits that are turned in the check of a record that was guessed."""
_NOTHING: Final[Words] = np.zeros(0, np.int64)


class LearnedMap:
    """Which objects each sample opens, mapped to be read while the server learns more.

    Whatever is missing, torn, damaged or of another shape reads as unknown; nothing here raises for it.

    **Threads and processes.** Read-only; inherited by forked children. A pickled map is its directory's name.
    **Blocking.** Never.

    Attributes:
        directory: Where the map lies, or will.
        num_samples: Samples of the dataset: 0 <= sample < num_samples.
    """

    __slots__ = ("_file", "_scalars", "_words", "directory", "num_samples")

    _WRITABLE = False

    def __init__(self, directory: Path, num_samples: int) -> None:
        """Map what is there; use ``open``."""
        self.directory: Path = directory
        self.num_samples: int = num_samples
        self._words: Words = _NOTHING
        self._scalars = memoryview(b"").cast("q")
        self._file = (0, 0, 0)
        self.refresh()

    @classmethod
    def open(cls, directory: str | os.PathLike[str], num_samples: int) -> LearnedMap:
        """Return the map in ``directory``; without one, all samples are unknown until ``refresh`` finds it."""
        return cls(Path(directory), num_samples)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as the directory's name."""
        return (LearnedMap.open, (str(self.directory), self.num_samples))

    def __repr__(self) -> str:
        """Return directory and counts, for logs."""
        return f"<{type(self).__name__} {self.directory.name}: {self.num_known} of {self.num_samples} samples>"

    def refresh(self) -> bool:
        """Map the file if it is new, was replaced or has grown; return whether it was."""
        try:
            descriptor = open_in_protected(self.directory / FILE, os.O_RDWR if self._WRITABLE else os.O_RDONLY)
        except OSError:
            return False
        try:
            status = os.fstat(descriptor)
            file = (status.st_dev, status.st_ino, status.st_size)
            if file == self._file or status.st_size % 8 or status.st_size < 8 * (_HEADER_WORDS + self.num_samples):
                return False
            access = mmap.ACCESS_WRITE if self._WRITABLE else mmap.ACCESS_READ
            view = memoryview(mmap.mmap(descriptor, status.st_size, access=access)).cast("q")
        except OSError:
            return False
        finally:
            os.close(descriptor)
        if (view[0], view[_SAMPLES]) != (MAGIC, self.num_samples):
            return False
        self._words, self._scalars, self._file = np.frombuffer(view, np.int64), view, file
        return True

    @property
    def num_known(self) -> int:
        """Number of samples that have a record, guessed ones included."""
        return int(np.count_nonzero(self._heads()))

    def is_known(self, sample: int) -> bool:
        """Return whether it was seen what the sample opens, be it nothing."""
        return self.seen(sample) is not None

    def seen(self, sample: int) -> tuple[int, ...] | None:
        """Return the ids of the objects that a sample was seen to open; None when it was not seen."""
        record = self._record(sample)
        return None if record is None or record[1] else record[0]

    def objects_of(self, sample: int) -> tuple[int, ...]:
        """Return the ids of the objects that a sample opens, as it was seen or guessed; none when that is not known."""
        record = self._record(sample)
        return () if record is None else record[0]

    def have_records(self, samples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each sample whether it has a record, guessed or not, whole or not; about 10 ns a sample."""
        heads = self._heads()
        if not len(heads):
            return np.zeros(len(samples), np.bool_)
        inside = (samples >= 0) & (samples < len(heads))
        found: NDArray[np.bool_] = inside & (heads[np.where(inside, samples, 0)] != 0)
        return found

    def are_seen(self, samples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each of some samples whether it was seen what it opens, as ``is_known``; about 0.2 µs a sample."""
        found = [_gather(self._words, self._heads(), part) for part in _parts(samples)]
        seen = [part.known & ~part.guessed for part in found]
        return np.concatenate(seen) if seen else np.zeros(0, np.bool_)

    def opens_nothing(self) -> bool:
        """Return True when samples were seen, and none of them opened anything."""
        some = False
        for part in _parts(np.flatnonzero(self._heads())):
            records = _gather(self._words, self._heads(), part)
            seen = records.known & ~records.guessed
            if records.counts[seen].any():
                return False
            some = some or bool(seen.any())
        return some

    def object_ids(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of the objects that these samples open.

        Returns:
            ids: Of all samples, one after the other, shape (counts.sum(),).
            counts: Ids of each sample, shape (num_samples_asked,); 0 for one that is unknown.

        Complexity: about 0.2 µs a sample, and no Python object for any.
        """
        samples = np.asarray(samples, np.int64)
        found = [_gather(self._words, self._heads(), part) for part in _parts(samples)]
        return _joined([part.ids for part in found]), _joined([part.counts for part in found])

    def _heads(self) -> Words:
        return self._words[_HEADER_WORDS : _HEADER_WORDS + self.num_samples]

    def _record(self, sample: int) -> tuple[tuple[int, ...], bool] | None:
        """Return the ids of a sample's record, and whether it was guessed; None without a whole one."""
        words = self._scalars
        if not (0 <= sample < self.num_samples and len(words)):
            return None
        head = words[_HEADER_WORDS + sample]
        if not _HEADER_WORDS + self.num_samples <= head <= len(words) - _RECORD_WORDS:
            return None
        count, check = words[head], words[head + 1]
        first = head + _RECORD_WORDS
        if not 0 <= count <= len(words) - first:
            return None
        ids = tuple(words[first : first + count].tolist())
        whole = _check_of(sample, ids)
        return (ids, check != whole) if check in (whole, whole ^ _GUESSED) else None


class LearnedMapWriter(LearnedMap):
    """A learned map in the hands of its server.

    Crash-only: killed at any step, the sample being recorded is unknown or as before, and all others are as they were.

    **Threads and processes.** One process has it open for writing, and uses it from one thread.
    """

    __slots__ = ()

    _WRITABLE = True

    @classmethod
    def open_or_create(cls, directory: str | os.PathLike[str], num_samples: int) -> LearnedMapWriter:
        """Return the map in ``directory``; an empty one when there is none, or one of another shape.

        A map that is garbage for more than half is rewritten, without; readers of the old one keep it.

        Raises:
            TierFullError: The file system has no room.
        """
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        (path / f".{FILE}").unlink(missing_ok=True)
        found = cls(path, num_samples)
        if not found._is_sound():
            _create(path, num_samples)
            found.refresh()
        elif 2 * found._scalars[_GARBAGE] > found._scalars[_END] - _HEADER_WORDS - num_samples:
            with contextlib.suppress(TierFullError):  # The one with the garbage is as good.
                _create(path, num_samples, found)
                found.refresh()
        return found

    def record(self, sample: int, ids: Sequence[int]) -> None:
        """Take note of what a sample opened; it takes the place of what was known before.

        Raises:
            TierFullError: The file system has no room; what was known stays.
            ValueError: There is no such sample, or an id is negative.
        """
        self._write(sample, tuple(ids), is_guessed=False)

    def suppose(self, sample: int, ids: Sequence[int]) -> None:
        """Take note of what a sample probably opens, unless there is a record of it; errors as of ``record``."""
        self._write(sample, tuple(ids), is_guessed=True)

    def _write(self, sample: int, ids: tuple[int, ...], *, is_guessed: bool) -> None:
        if not 0 <= sample < self.num_samples or (ids and min(ids) < 0):
            raise ValueError(f"sample {sample} of {self.num_samples} cannot open objects {ids[:8]}")
        record = self._record(sample)
        if record is not None and (is_guessed or record == (ids, False)):
            return
        known = None if record is None else record[0]
        check = _check_of(sample, ids) ^ (_GUESSED if is_guessed else 0)
        if known is not None and len(ids) <= len(known):
            self._scalars[_GARBAGE] += len(known) - len(ids)
            self._put(self._scalars[_HEADER_WORDS + sample], ids, check)
            return
        start = self._scalars[_END]
        end = start + _RECORD_WORDS + len(ids)
        self._make_room(end)
        if known is not None:
            self._scalars[_GARBAGE] += _RECORD_WORDS + len(known)
        self._scalars[_END] = end
        self._put(start, ids, check)
        self._scalars[_HEADER_WORDS + sample] = start

    def close(self) -> None:
        """Let go of the file; nothing is known afterwards."""
        self._words, self._scalars, self._file = _NOTHING, memoryview(b"").cast("q"), (0, 0, 0)

    def _put(self, start: int, ids: tuple[int, ...], check: int) -> None:
        words = self._words
        words[start + 1] = 0  # Fits no record: a reader finds it unknown now.
        words[start] = len(ids)
        words[start + _RECORD_WORDS : start + _RECORD_WORDS + len(ids)] = ids
        words[start + 1] = check

    def _make_room(self, num_words: int) -> None:
        if num_words <= len(self._words):
            return
        allocate(self.directory / FILE, 8 * max(num_words, 2 * len(self._words)))
        if not self.refresh():
            raise OSError(errno.EIO, "a learned map was removed while its server had it open", str(self.directory))

    def _is_sound(self) -> bool:
        if not len(self._scalars):
            return False
        first, end, garbage = _HEADER_WORDS + self.num_samples, self._scalars[_END], self._scalars[_GARBAGE]
        return first <= end <= len(self._scalars) and garbage >= 0


class _Records(NamedTuple):
    """Records of some samples: whether each is whole, and guessed, its number of ids, and all of them in one array."""

    known: NDArray[np.bool_]
    guessed: NDArray[np.bool_]
    counts: Words
    ids: Words


def _gather(words: Words, heads: Words, samples: Words) -> _Records:
    """Read the records of at most ``_CHUNK`` samples; those out of range, torn or damaged are unknown."""
    if not len(heads):
        none = np.zeros(len(samples), np.bool_)
        return _Records(none, none, np.zeros(len(samples), np.int64), np.zeros(0, np.int64))
    inside = (samples >= 0) & (samples < len(heads))
    starts = np.where(inside, heads[np.where(inside, samples, 0)], 0)
    known = (starts >= _HEADER_WORDS + len(heads)) & (starts <= len(words) - _RECORD_WORDS)
    starts = np.where(known, starts, 0)
    counts = words[starts]
    known &= (counts >= 0) & (counts <= len(words) - starts - _RECORD_WORDS)
    known &= _fits(samples, np.where(known, counts, 0), len(words))
    counts = np.where(known, counts, 0)
    checks = words[starts + 1]
    begins = np.cumsum(counts) - counts
    within = np.arange(counts.sum()) - np.repeat(begins, counts)  # within: place in its record, shape (num_ids,)
    ids = words[np.repeat(starts + _RECORD_WORDS, counts) + within]
    whole = _checks_of(samples, counts, ids, within, begins)
    guessed = checks == whole ^ _GUESSED
    known &= (checks == whole) | guessed
    return _Records(known, guessed, np.where(known, counts, 0), ids[np.repeat(known, counts)])


def _fits(samples: Words, counts: Words, num_words: int) -> NDArray[np.bool_]:
    """Return False for all if records overlap: then counts are damaged, and their sum may be beyond all memory."""
    if float(counts.sum(dtype=np.float64)) <= num_words:
        return np.ones(len(samples), np.bool_)
    _, first = np.unique(samples, return_index=True)
    return np.full(len(samples), float(counts[first].sum(dtype=np.float64)) <= num_words)


def _check_of(sample: int, ids: Sequence[int]) -> int:
    total = sum(place * object_id for place, object_id in enumerate(ids, 1))
    return (total + len(ids) * _SALT_COUNT + (sample + 1) * _SALT_SAMPLE) & _MASK


def _checks_of(samples: Words, counts: Words, ids: Words, within: Words, begins: Words) -> Words:
    """Return ``_check_of`` for each record; uint64 wraps where Python's integers are cut at the end."""
    sums = np.concatenate(([np.uint64(0)], np.cumsum(ids.astype(np.uint64) * (within + 1).astype(np.uint64))))
    totals = sums[begins + counts] - sums[begins]
    totals += counts.astype(np.uint64) * np.uint64(_SALT_COUNT)
    totals += (samples + 1).astype(np.uint64) * np.uint64(_SALT_SAMPLE)
    checks: Words = (totals & np.uint64(_MASK)).astype(np.int64)
    return checks


def _parts(samples: Words) -> Iterator[Words]:
    for start in range(0, len(samples), _CHUNK):
        yield samples[start : start + _CHUNK]


def _joined(parts: list[Words]) -> Words:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _create(directory: Path, num_samples: int, source: LearnedMap | None = None) -> None:
    """Write a map with what ``source`` knows, and give it its name in one step."""
    first = _HEADER_WORDS + num_samples
    used = first + (_live_words(source) if source is not None else 0)
    size_bytes = 8 * max(_SMALLEST_WORDS, 2 * first, used)
    building = directory / f".{FILE}"
    try:
        allocate(building, size_bytes)
        with building.open("r+b") as file:
            words = np.frombuffer(mmap.mmap(file.fileno(), size_bytes), np.int64)
        words[:_HEADER_WORDS] = MAGIC, num_samples, first, 0
        if source is not None:
            _copy(source, words)
        building.replace(directory / FILE)
    except BaseException:
        building.unlink(missing_ok=True)
        raise


def _live_words(source: LearnedMap) -> int:
    found = (_gather(source._words, source._heads(), part) for part in _parts(np.arange(source.num_samples)))
    return sum(len(part.ids) + _RECORD_WORDS * int(np.count_nonzero(part.known)) for part in found)


def _copy(source: LearnedMap, words: Words) -> None:
    end = int(words[_END])
    for samples in _parts(np.arange(source.num_samples)):
        known, guessed, counts, ids = _gather(source._words, source._heads(), samples)
        samples, counts, turned = samples[known], counts[known], np.where(guessed[known], _GUESSED, 0)
        begins = np.cumsum(counts) - counts
        within = np.arange(len(ids)) - np.repeat(begins, counts)
        starts = end + begins + _RECORD_WORDS * np.arange(len(samples))
        words[starts] = counts
        words[starts + 1] = _checks_of(samples, counts, ids, within, begins) ^ turned
        words[np.repeat(starts + _RECORD_WORDS, counts) + within] = ids
        words[_HEADER_WORDS + samples] = starts
        end += len(ids) + _RECORD_WORDS * len(samples)
    words[_END] = end
