"""Files that a process opened while it made one sample, and keeps what they said: later samples depend on them, too.

Nobody can see whether a dataset kept what it read: in an attribute, a global, an ``lru_cache``. So it is tried: a sample is
made twice, and a file that is opened only the first time was kept. By which way of calls each file was opened is noted:
a sample that opens one by a way that was not tried yet is made twice as well.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Final

from prefeed.stage.files_seen import FilesSeen
from prefeed.stage.notes import Note, keys_now

_log = logging.getLogger("prefeed")

_MAX_FILES: Final = 1024
"""With more, each read would ask for too many: samples are then not kept."""

_ASK_SECONDS: Final = 1.0
_MAX_TRIED: Final = 64
"""Ways that are tried; files that are opened by others count as kept."""

_MANY_UNTRIED: Final = 64
"""Files that audits opened by ways that were not tried; with more, the next audit tries its own."""


class Standing:
    """Which files this process has kept something of, and by which ways of calls such files are opened.

    **Threads and processes.** Any thread; a fork inherits what its parent has read, and so does this.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._keeping: set[int] = set()
        self._reading: set[int] = set()
        self._untried: dict[int, dict[str, bytes]] = {}
        self._has_said = False
        self._has_changed = False
        self._ask_at = 0.0

    def is_new(self, files: FilesSeen) -> bool:
        """Return whether some were opened by a way that is to be tried."""
        unknown = files.ways.keys() - self._keeping - self._reading
        return bool(unknown) and len(self._keeping) + len(self._reading) < _MAX_TRIED

    def tried(self, first: FilesSeen, second: FilesSeen) -> None:
        """A sample was made twice: what was opened the first time only was kept."""
        for way, paths in first.ways.items():
            kept = [path for path in paths if not second.has_seen(path)]
            (self._keeping if kept else self._reading).add(way)
            if not kept and way not in self._keeping:
                self._untried.pop(way, None)
            self._keep(first, kept)

    def taken(self, files: FilesSeen) -> None:
        """A sample was made once: what was opened by a way of which nothing is known, or that keeps, was kept."""
        for way, paths in files.ways.items():
            self._keep(files, paths if way not in self._reading or way in self._keeping else ())

    def audited(self, files: FilesSeen, kept: Note) -> bool:
        """A sample was made only to be compared with the one that is kept: what it opened counts once samples are made here.

        Returns:
            Whether the note has a file that was not seen to be opened, neither now nor before: it counts as kept.
        """
        for way, paths in files.ways.items():
            if way not in self._reading or way in self._keeping:
                self._untried.setdefault(way, {}).update((path, files.key(path)) for path in paths)
        noted = ((os.fsdecode(path), key) for path, key in kept.files())
        unseen = {path: key for path, key in noted if not files.has_seen(path) and not self._knows(path)}
        self._files.update(unseen)
        return bool(unseen)

    def wants_trial(self, files: FilesSeen) -> bool:
        """Return whether a sample that was made only to be compared is to be made once more, since too many ways are untried."""
        return sum(map(len, self._untried.values())) >= _MANY_UNTRIED and self.is_new(files)

    def _knows(self, path: str) -> bool:
        return path in self._files or any(path in paths for paths in self._untried.values())

    def tie(self, files: FilesSeen) -> None:
        """What was made now depends on all files that were kept so far."""
        while self._untried:
            way, paths = self._untried.popitem()
            if way not in self._reading or way in self._keeping:
                self._files.update(paths)
        if len(self._files) > _MAX_FILES:
            files.is_complete = False
            self._say_once(
                f"this process has kept something of more than {_MAX_FILES} files that it opened while it made samples: its "
                "samples are not cached any more; read them when the dataset is made, or each time"
            )
        elif self._files:
            files.tie(self._files)
            if self._changed():
                files.is_complete = False

    def _keep(self, files: FilesSeen, paths: Iterable[str]) -> None:
        self._files.update((path, files.key(path)) for path in paths)  # one that is read again: as it is now

    def _changed(self) -> bool:
        """Return whether a file has changed since it was read: asked once a second."""
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _ASK_SECONDS
            now = keys_now([os.fsencode(path) for path in self._files])
            changed = [path for path, key in self._files.items() if now[os.fsencode(path)] != key]
            self._has_changed = bool(changed)
            if changed:
                self._say_once(
                    f"{changed[0]} has changed since this process read it and kept something of it: samples that are made here "
                    "are not cached any more, start the process anew"
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
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_OWN):
        return None
    found = 0
    while frame is not None and frame.f_code is not until:
        code = frame.f_code
        found = hash((found, code.co_filename, code.co_firstlineno, frame.f_lasti))
        frame = frame.f_back
    return found


_PREFEED: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_BETWEEN: Final = (
    *(f"{_PREFEED}{room}" for room in ("interception/", "stage/files_seen.py", "stage/making.py", "stage/standing.py")),
    os.path.dirname(os.__file__) + os.sep + "pathlib",
    os.__file__,
)
"""Files of code that passes a name on."""

_OWN: Final = ("<frozen importlib", "<frozen zipimport", _PREFEED)
