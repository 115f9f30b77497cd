"""Files that this process changes: all readers of the node are told, before they change."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from prefeed.client.dataset import NodeDataset
from prefeed.errors import PrefeedError
from prefeed.interception import end_observing, observe_writes
from prefeed.interception.asking import absolute_path
from prefeed.sources.mounts import Roots
from prefeed.sources.posix import identity_of
from prefeed.sources.written import WrittenFiles, open_for_writing
from prefeed.system.paths import is_in
from prefeed.wire.endpoint import ensure_private_dir

_PROBES = 16


def written_files(dataset: NodeDataset) -> WrittenFiles | None:
    """Return which files of a dataset count as written; None where its objects are no files of this node."""
    if not dataset.manifest.url.startswith("/"):
        return None
    directory = Path(dataset.runtime_dir or dataset.config.runtime_dir)
    with suppress(PrefeedError, OSError):  # else all files count as written
        ensure_private_dir(directory)
    return WrittenFiles(directory / "written")


class Writes:
    """Tells of the files of one dataset that this process changes: an ``interception.WriteObserver``.

    **Threads and processes.** ``begin`` is in force in forked children as well; a spawned one calls it again.
    """

    def __init__(self, dataset: NodeDataset, written: WrittenFiles) -> None:
        """Tell in ``written``, which files of the dataset, or beside them, have changed."""
        self._dataset = dataset
        self._written = written
        self._runtime_dir = os.fspath(dataset.runtime_dir or dataset.config.runtime_dir)

    def begin(self) -> None:
        """Tell from now on; what is open for writing already counts as changing. Idempotent."""
        if not observe_writes(self):
            return
        self._written.any()  # opened here, it is the same one in all forks
        with suppress(OSError):
            for path in open_for_writing():
                self.changing(path, below=False)

    def end(self) -> None:
        """Tell no more, and let go of the records' file. Idempotent."""
        end_observing(self)
        self._written.close()

    def changing(self, path: str, *, below: bool) -> Any:
        """Let the file count as written, if it is one that may be cached."""
        try:
            named = absolute_path(path) or os.path.realpath(path)
            if is_in(named, self._runtime_dir):
                return None  # prefeed's own, which this very call may be about to open
            if not self._files.concerns(named, below=below):
                if not os.path.islink(named):
                    return None
                if not self._files.concerns(os.path.realpath(named), below=below):
                    return None
            real = os.path.realpath(named)
            identity = _identity(named)
            return named, real, identity, below, self._written.add(named, real, identity, below=below)
        except (OSError, ValueError):
            return None  # there is no such file, and there will be none

    def changed(self, told: Any) -> None:
        """Tell again what was dropped before the file had changed, and what it is now that was not there."""
        named, real, before, below, begin = told
        identity = before or _identity(named)
        if identity != before or not self._written.has_kept(begin):
            self._written.add(named, real, identity, below=below)

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset, "_written": self._written, "_runtime_dir": self._runtime_dir}

    @cached_property
    def _files(self) -> _Files:
        return _Files(self._dataset)


class _Files:
    """Which files may be cached: below the roots, or in the directories of what the dataset declares."""

    def __init__(self, dataset: NodeDataset) -> None:
        self._manifest, url = dataset.manifest, dataset.manifest.url
        if self._manifest.grows:
            self._roots = Roots.of(dataset.config)
        else:
            self._roots = Roots((), named=(url, os.path.realpath(url)))

    @cached_property
    def _beside(self) -> set[str]:
        """Where declared files lie, if not all are below the roots: as named, and where that leads to."""
        catalogue = self._manifest
        if not catalogue.grows:
            return set()
        probes = range(0, catalogue.num_declared, max(1, catalogue.num_declared // _PROBES))
        if all(self._roots.covers(catalogue.path(index)) for index in probes):
            return set()
        found = catalogue.directories()
        return found | {os.path.realpath(directory).rstrip("/") + "/" for directory in found}

    def concerns(self, path: str, *, below: bool) -> bool:
        """Return whether a change there is to be told."""
        if self._roots.covers(path) or path[: path.rfind("/") + 1] in self._beside:
            return True
        if not below:
            return False
        start = path.rstrip("/") + "/"
        return self._roots.reaches(path) or any(directory.startswith(start) for directory in self._beside)


def _identity(path: str) -> int:
    with suppress(OSError, ValueError):
        return identity_of(os.stat(path))
    return 0
