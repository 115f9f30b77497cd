"""Reads of a dataset's samples, answered from the cache: in workers, and in the main process without any.

``Served`` stands in for the dataset in torch's fetcher, and nowhere else. While it makes a sample, the loader's
reader is in charge of this thread: prefeed's datasets use it, and ``open`` of the sample's own file, which is how
torchvision's folder datasets read, is given the cached bytes.
"""

from __future__ import annotations

import builtins
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import util
from typing import Any

import torch.utils.data._utils.worker as torch_worker

from prefeed.client.access import AccessMap
from prefeed.client.active import serving
from prefeed.client.reader import ObjectReader
from prefeed.errors import SourceError


class Served:
    """A map-style dataset whose samples are read through a reader.

    Args:
        inner: The user's dataset.
        access: Its access map.
        consumer: Whose plan the reads belong to.
        opens_files: Its samples open their files by path, which is answered from the cache.

    **Threads and processes**: made in the main process, used in workers: forked, spawned or served.
    """

    def __init__(self, inner: Any, access: AccessMap, consumer: int, *, opens_files: bool) -> None:
        self.inner = inner
        self.reader = ObjectReader(access.dataset, consumer=consumer)
        self._access = access
        self._opens_files = opens_files

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> Any:
        with serving(self.reader):
            if not self._opens_files:
                return self.inner[index]
            with _open_served(self.reader, self._access, index):
                return self.inner[index]

    @property
    def __getitems__(self) -> Callable[[list[Any]], list[Any]] | None:
        """The user's batch method, if there is one: torch asks for it."""
        batch = getattr(self.inner, "__getitems__", None)
        if batch is None or self._opens_files:
            return None

        def get_items(indices: list[Any]) -> list[Any]:
            with serving(self.reader):
                samples: list[Any] = batch(indices)
                return samples

        return get_items


class WorkerStart:
    """The worker's first act: show the user's dataset to ``get_worker_info``, then run the user's own function."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        info: Any = torch_worker._worker_info
        served = info.dataset if info is not None else None
        if isinstance(served, Served):
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=served.inner
            )
            util.Finalize(served, served.reader.close, exitpriority=10)
        if self._then is not None:
            self._then(worker_id)


class _Expected(threading.local):
    """The one file whose opening is answered from the cache, in this thread, right now."""

    path: str | None = None
    object_id = 0
    reader: ObjectReader | None = None


_expected = _Expected()
_original_open = builtins.open
_users = 0
_users_lock = threading.Lock()


@contextmanager
def _open_served(reader: ObjectReader, access: AccessMap, index: int) -> Iterator[None]:
    """Inside it, ``open`` of the sample's file, for reading bytes, gives what the cache holds."""
    object_id = access.object_id(index)
    if object_id is None:
        yield
        return
    _expected.path = os.path.join("/", access.dataset.manifest.path(object_id))  # the manifest's root is "/"
    _expected.object_id, _expected.reader = object_id, reader
    try:
        with _open_replaced():
            yield
    finally:
        _expected.path = _expected.reader = None


@contextmanager
def _open_replaced() -> Iterator[None]:
    """Inside it, ``builtins.open`` looks first whether the file is the one expected in its thread."""
    global _users
    with _users_lock:
        _users += 1
        builtins.open = _open
    try:
        yield
    finally:
        with _users_lock:
            _users -= 1
            if _users == 0:
                builtins.open = _original_open


def _open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    if _expected.path is not None and mode == "rb" and not args and not kwargs and isinstance(file, str | os.PathLike):
        path = os.fspath(file)
        if isinstance(path, str) and os.path.abspath(path) == _expected.path:
            served = _served_file(path)
            if served is not None:
                return served
    return _original_open(file, mode, *args, **kwargs)


def _served_file(path: str) -> io.BytesIO | None:
    reader = _expected.reader
    assert reader is not None
    try:
        data = reader.try_read(_expected.object_id)
    except SourceError:
        return None  # the real open says it in the words that the user knows
    return None if data is None else _NamedBytes(data, path)


class _NamedBytes(io.BytesIO):
    """Bytes in memory that are used as the open file of this name; who wants a descriptor gets the real file's."""

    def __init__(self, data: Any, name: str) -> None:
        super().__init__(data)
        self.name = name
        self._file: io.FileIO | None = None

    @property
    def mode(self) -> str:
        """As an open file says."""
        return "rb"

    def fileno(self) -> int:
        """Return a descriptor of the file itself, for ``numpy.fromfile``, ``mmap`` and others that read past Python."""
        if self._file is None:
            self._file = io.FileIO(self.name)
            self._file.seek(self.tell())
        return self._file.fileno()

    def peek(self, size: int = 0, /) -> bytes:
        """Return what comes next without moving on, as a buffered file does."""
        start = self.tell()
        return bytes(self.getbuffer()[start : start + max(size, io.DEFAULT_BUFFER_SIZE)])

    def close(self) -> None:
        """Close both."""
        if self._file is not None:
            self._file.close()
        super().close()
