"""Which files a sample opens while it is being made, what its entry's note says of them, and which serve later samples, too."""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from prefeed.errors import EntryFormatError
from prefeed.interception import FileReader
from prefeed.interception.asking import Answer
from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key
from prefeed.sources.posix import stat_paths
from prefeed.sources.steadiness import is_open_for_writing, is_young
from prefeed.stage_cache.distributions import is_below_packages
from prefeed.stage_cache.randomness import threads_now
from prefeed.system.machine import is_on_own_disk
from prefeed.types import ENTRY_KEY_BYTES

ABSENT: Final = bytes(ENTRY_KEY_BYTES)
"""Stands for a file that is not there, or is not a regular file."""

_QUICK_SECONDS: Final = 200e-6
"""Where asking a file takes longer, as on a network, many are asked side by side."""

_PROBES: Final = 4
_THREADS: Final = 64


class Note(msgspec.Struct, array_like=True, frozen=True):
    """What an entry was made of.

    Attributes:
        paths: Files that were opened to make it, absolute, as the system has them.
        keys: Their entry keys then, one after the other; ``ABSENT`` for a file that was not there.
        micros: How long it took to make it, in microseconds.
        threads: With how many threads torch computed; 0: it was not imported.
    """

    paths: list[bytes] = []
    keys: bytes = b""
    micros: int = 0
    threads: int = 0

    def files(self) -> Iterable[tuple[bytes, bytes]]:
        """Return each path and its key."""
        for index, path in enumerate(self.paths):
            yield path, self.keys[index * ENTRY_KEY_BYTES : (index + 1) * ENTRY_KEY_BYTES]

    def named_files(self) -> Iterable[tuple[str, bytes]]:
        """Return each path as text, and its key."""
        return ((os.fsdecode(path), key) for path, key in self.files())


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
    return _key_of(_status(path), path)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _key_of(status: os.stat_result | None, path: str) -> bytes:
    if status is None or not stat.S_ISREG(status.st_mode):
        return ABSENT
    return entry_key("/", path, version_of(status, path))


def _is_being_written(status: os.stat_result | None, path: str) -> bool:
    """Return whether a file was changed just now by somebody who still has it open: it may be read half old and half new.

    That cannot be told of a file that other machines may write; it is not opened to find out.
    """
    try:
        if status is None or not is_young(status, time.time_ns()) or not is_on_own_disk(Path(path)):
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


@runtime_checkable
class KnowsVersions(Protocol):
    """A file reader that can say which version it gave."""

    def served_key(self, path: str) -> bytes | None:
        """Return the entry key of the bytes that ``read_file`` gave last; None when that is not known."""
        ...


class FilesSeen:
    """Notes files; an ``interception.FileReader`` between the sample and the reader that is in charge, if any.

    A file that the reader gives has the version that the reader knows. Any other is asked for its version before it
    is opened: if it changes meanwhile, the note is out of date at once, and the entry is made again.

    Attributes:
        is_complete: False when a version was not to be had, a file was being written, or it is not known which file was
            opened: nothing may then be kept of the sample.
        ways: By which calls files were opened, and which.
        served: What the reader in charge gave.

    **Threads**: files that a sample opens in threads of its own are not seen.
    """

    def __init__(
        self,
        reader: FileReader | None,
        way: Callable[[], int | None] | None = None,
        again: Mapping[str, Answer] | None = None,
    ) -> None:
        """Note who is in charge.

        Args:
            reader: That one; None: none.
            way: Tells by which calls a file is opened now, None of one that is no part of the sample; without it that does
                not matter.
            again: Bytes that the reader gave before, for a sample that is made of the same once more.
        """
        self.is_complete: bool = True
        self.ways: dict[int, list[str]] = {}
        self.served: dict[str, Answer] = {}
        self._again = again or {}
        self._reader = reader
        self._way = way
        self._seen: dict[str, bytes] = {}

    def may_have(self, path: str) -> bool:
        """Return what the reader in charge says; note the file otherwise."""
        if path in self._again or (self._reader is not None and self._reader.may_have(path)):
            return True
        self._note(path)
        return False

    def read_file(self, path: str) -> Answer | None:
        """Return what the reader in charge has, and note which version it is."""
        if path in self._again:
            self._note(path)
            return self._again[path]
        data = None if self._reader is None else self._reader.read_file(path)
        if data is not None:
            self.served[path] = data
        if data is None:
            self._note(path)
        elif path not in self._seen:
            key = self.served_key(path)
            if key is None:
                self.is_complete = False
            else:
                self._keep(path, key)
        return data

    def served_key(self, path: str) -> bytes | None:
        """Return what the reader in charge says of its bytes."""
        reader: Any = self._reader
        return reader.served_key(path) if isinstance(reader, KnowsVersions) else None

    def saw(self, path: str) -> None:
        """A file is opened that was not asked for; see ``interception.Witness``."""
        if not is_below_packages(path):
            self._note(path)
            if isinstance(self._reader, FilesSeen):
                self._reader.saw(path)

    def saw_unknown(self) -> None:
        """Note that it cannot be told which file is opened."""
        self.is_complete = False
        if isinstance(self._reader, FilesSeen):
            self._reader.saw_unknown()

    def add(self, note: Note) -> None:
        """Something was used that was made of these files before: the entry of a stage below."""
        for path, key in note.named_files():
            self._seen.setdefault(path, key)
        above: Any = self._reader
        if isinstance(above, FilesSeen):
            above.add(note)

    def tie(self, files: Mapping[str, bytes]) -> None:
        """The sample depends on these, in these versions, whether it opened them or not."""
        for path, key in files.items():
            if self._seen.setdefault(path, key) != key:
                self.is_complete = False  # it has read two versions of it
        if isinstance(self._reader, FilesSeen):
            self._reader.tie(files)

    def has_seen(self, path: str) -> bool:
        """Return whether a file was opened."""
        return path in self._seen

    def key(self, path: str) -> bytes:
        """Return the version of a file that was opened."""
        return self._seen[path]

    def by_way(self) -> dict[str, tuple[int, bytes]]:
        """Return the way and the version of each file outside of installed packages."""
        return {path: (way, self._seen[path]) for way, paths in self.ways.items() for path in paths}

    def note(self, seconds: float = 0.0) -> Note:
        """Return what was seen, for a sample that took so long."""
        paths = sorted(self._seen)
        keys = b"".join(self._seen[path] for path in paths)
        assert len(keys) == len(paths) * ENTRY_KEY_BYTES
        return Note([os.fsencode(path) for path in paths], keys, int(seconds * 1e6), threads_now())

    def have_changed(self, later: FilesSeen) -> bool:
        """Return whether a file that was opened both times was another one, or of another version, the second time."""
        return any(later._seen.get(path, key) != key for path, key in self._seen.items())

    def _note(self, path: str) -> None:
        if path not in self._seen and not path.startswith(_NO_FILES):
            self._keep(path, None)

    def _keep(self, path: str, key: bytes | None) -> None:
        """Note a file, and by which calls it was opened; without a key it is asked for its version."""
        way = 0 if self._way is None else self._way()
        if way is not None:
            if key is None:
                status = _status(path)
                key = _key_of(status, path)
                if _is_being_written(status, path):
                    self.is_complete = False
            self._seen[path] = key
            if not is_below_packages(path):
                self.ways.setdefault(way, []).append(path)


_NO_FILES = ("/proc/", "/sys/")
"""What the kernel says, asked each time."""


_log = logging.getLogger("prefeed")

_MAX_FILES: Final = 1024
"""With more, each read would ask for too many: samples are then not kept."""

_ASK_SECONDS: Final = 1.0
_MAX_TRIED: Final = 64
"""Ways that are tried; files that are opened by others count as kept."""

_MANY_AUDITED: Final = 64
"""Number of files that audits opened; with more, the next audit tries its ways."""


class Standing:
    """Files that this process has kept something of. All samples that it computes depend on them.

    A file may be opened for one sample and serve later ones, from an attribute, a global or an ``lru_cache``. Therefore a sample
    is computed twice: a file that is opened only the first time was kept. The same holds for all files that this chain of calls
    opens, its *way*. A sample that opens a file by a new way is computed twice as well.

    **Threads and processes.** Any thread. A forked child keeps the files of its parent.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._keeps: dict[int, bool] = {}
        self._audited: dict[str, tuple[int, bytes]] = {}
        self._has_said = False
        self._has_changed = False
        self._ask_at = 0.0

    def is_new(self, files: FilesSeen) -> bool:
        """Return whether some were opened by a way that is to be tried."""
        return bool(files.ways.keys() - self._keeps.keys()) and len(self._keeps) < _MAX_TRIED

    def tried(self, first: FilesSeen, second: FilesSeen) -> None:
        """Note files after a sample was computed twice: those that were opened only the first time were kept."""
        for way, paths in first.ways.items():
            kept = {path: first.key(path) for path in paths if not second.has_seen(path)}
            self._keeps[way] = self._keeps.get(way, False) or bool(kept)
            self._files.update(kept)

    def taken(self, files: FilesSeen) -> None:
        """Note files after a sample was computed once: those of a way that keeps, or is unknown, were kept."""
        self._files.update((path, key) for path, (way, key) in files.by_way().items() if self._keeps.get(way, True))

    def audited(self, files: FilesSeen, kept: Note) -> bool:
        """Note files after a sample was computed to be compared: they count once samples are computed here.

        Returns:
            Whether the note has a file that was not seen to be opened, neither now nor before. It counts as kept.
        """
        self._audited.update(
            (path, (way, key)) for path, (way, key) in files.by_way().items() if self._keeps.get(way, True)
        )
        known = self._files.keys() | self._audited.keys()
        unseen = {path: key for path, key in kept.named_files() if not files.has_seen(path) and path not in known}
        self._files.update(unseen)
        return bool(unseen)

    def wants_trial(self, files: FilesSeen) -> bool:
        """Return whether a sample that was computed to be compared is to be computed once more, to try its ways."""
        return len(self._audited) >= _MANY_AUDITED and self.is_new(files)

    def tie(self, files: FilesSeen) -> None:
        """Make a sample that was computed now depend on all files that were kept so far."""
        while self._audited:
            path, (way, key) = self._audited.popitem()
            if self._keeps.get(way, True):
                self._files[path] = key
        if len(self._files) > _MAX_FILES:
            files.is_complete = False
            self._say_once(
                f"this process keeps data of more than {_MAX_FILES} files that it opened while it made samples, so its "
                "samples are no longer cached; read those files when the dataset is made, or for each sample"
            )
        elif self._files:
            files.tie(self._files)
            if self._changed():
                files.is_complete = False

    def _changed(self) -> bool:
        """Return whether a file has changed since it was read: asked once a second."""
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _ASK_SECONDS
            now = keys_now([os.fsencode(path) for path in self._files])
            changed = [path for path, key in self._files.items() if now[os.fsencode(path)] != key]
            self._has_changed = bool(changed)
            if changed:
                self._say_once(
                    f"{changed[0]} has changed since this process read it and kept data of it: samples that are made here "
                    "are no longer cached; restart the process"
                )
        return self._has_changed

    def _say_once(self, text: str) -> None:
        if not self._has_said:
            self._has_said = True
            _log.warning("prefeed: %s", text)


standing: Final = Standing()
"""This process's."""


def way_here(until: CodeType) -> int | None:
    """Return what stands for the calls that led here; None for files that prefeed or an import opens for itself.

    Args:
        until: The function that began it.
    """
    name = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN_MODULES):
        frame = frame.f_back  # of these it is known without ``f_code``: hooks are told of each look at that
    while frame is not None and (name := frame.f_code.co_filename).startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None or name.startswith(_OWN):
        return None
    found = 0
    while frame is not None and (code := frame.f_code) is not until:
        found = hash((found, code.co_filename, code.co_firstlineno, frame.f_lasti))
        frame = frame.f_back
    return found


_PREFEED: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_BETWEEN: Final = (
    *(f"{_PREFEED}{room}" for room in ("interception/", "stage_cache/files_seen.py", "stage_cache/making.py")),
    *(
        os.path.dirname(os.__file__) + os.sep + name
        for name in ("pathlib", "zipfile", "importlib" + os.sep + "metadata")
    ),
    os.__file__,
)
"""Files of code that passes a name on."""

_BETWEEN_MODULES: Final = ("prefeed.interception.", "prefeed.stage_cache.files_seen", "prefeed.stage_cache.making")
"""Those of prefeed among them, as modules."""

_OWN: Final = ("<frozen importlib", "<frozen zipimport", _PREFEED)
