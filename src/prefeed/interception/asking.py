"""Reader of the current thread, path resolution, and the base class of replacements.

Each thread has at most one ``FileReader``: that of its innermost scope, else that of the sample that has started the thread, else
the reader of all threads. ``ask`` requests a file from it. Start with ``FileReader`` and ``ThreadReader``.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from prefeed.system.machine import PROCESS_PATHS

if TYPE_CHECKING:
    from prefeed.types import Buffer


def path_name(file: Any) -> str | bytes | None:
    """Return the path as ``open`` would report it, or None if the argument is not a path."""
    if type(file) is str:
        return file
    try:
        return os.fspath(file)  # type: ignore[no-any-return]
    except TypeError:
        return None


def absolute_path(name: str | bytes) -> str | None:
    """Resolve a path to an absolute one, without looking at the file system.

    Resolves leading ``..``, because the working directory is a physical path.

    Returns:
        None if only the kernel can resolve the path, for example if ``..`` follows a directory that may be a symbolic link.
    """
    text = name if isinstance(name, str) else os.fsdecode(name)
    if "\0" in text or not text or text[-1] == "/":
        return None
    if text[0] != "/":
        return _below_working_directory(text)
    if text.startswith(PROCESS_PATHS):
        return None
    if "/." in text or "//" in text:
        return _normal(text)
    return text


def _normal(text: str) -> str | None:
    parts = text.split("/")
    if ".." in parts or parts[-1] == "." or text.startswith("//"):
        return None
    return "/" + "/".join(part for part in parts if part not in ("", "."))


def _below_working_directory(text: str) -> str | None:
    try:
        directory = os.getcwd()
    except OSError:
        return None
    if not directory.startswith("/") or directory.startswith("//"):  # "(unreachable)/…" is outside of this root.
        return None
    if text[0] != "." and "/." not in text and "//" not in text and directory != "/":
        return f"{directory}/{text}"
    if text.endswith("/."):
        return None
    parts = [part for part in text.split("/") if part not in ("", ".")]
    num_up = 0
    while num_up < len(parts) and parts[num_up] == "..":
        num_up += 1
    named = parts[num_up:]
    if not named or ".." in named:
        return None
    above = directory.split("/")[1:] if directory != "/" else []
    return "/" + "/".join(above[: max(0, len(above) - num_up)] + named)


class CachedFileView(Protocol):
    """View of the cached bytes of a file. Each read copies only the part that it returns.

    **Threads and processes.** Any thread, and a forked child. **Ownership**: valid as long as it is referenced.
    """

    def __len__(self) -> int:
        """Return the size in bytes."""
        ...

    def read_into(self, start: int, target: memoryview) -> int | None:
        """Copy a part, shorter at the end, and return its size; None if the bytes were freed."""
        ...

    def read(self, start: int, size: int) -> bytes | None:
        """Return a part, shorter at the end; None if the bytes were freed."""
        ...

    def are_of(self, descriptor: int) -> bool:
        """Return True if an open file is the version that was cached."""
        ...

    def close(self) -> None:
        """Release the resources of the current reader. The view may be read again."""
        ...


Answer: TypeAlias = "Buffer | CachedFileView"
"""All bytes of a file, or a view of them."""


class FileReader(Protocol):
    """Source of the bytes of some files.

    **Threads and processes.** Called in the thread that has entered ``reads_from`` with the reader, and in forks of that thread.
    Files that the reader opens during a call are opened as usual.
    """

    def may_have(self, path: str) -> bool:
        """Return False if ``read_file`` would return None. Must be fast, because it is called for each opened file.

        Args:
            path: As for ``read_file``.
        """
        ...

    def read_file(self, path: str) -> Answer | None:
        """Return all bytes of the file or a view of them.

        Never raises because of the file.

        Args:
            path: Absolute path without ``.``, ``..`` or doubled slashes. Symbolic links are not resolved.

        Returns:
            None if the caller is to open the file, which also raises Python's own error for a file that cannot be read.
        """
        ...


class InheritedReader:
    """Reader of a sample, inherited by threads and tasks that the sample starts.

    Attributes:
        reader: Reader of the sample; None after the sample was computed.
    """

    __slots__ = ("reader",)

    def __init__(self, reader: FileReader) -> None:
        self.reader: FileReader | None = reader


_carried: ContextVar[InheritedReader | None] = ContextVar("prefeed_reader", default=None)
"""A context variable, because ``asyncio`` and ``anyio`` copy those into the tasks and threads that they start."""


def carried() -> InheritedReader | None:
    """Return the inherited reader of this thread; None if there is no such reader, or its sample was computed."""
    found = _carried.get()
    return None if found is None or found.reader is None else found


def carry(found: InheritedReader | None) -> InheritedReader | None:
    """Set the inherited reader of this thread, which new threads and tasks inherit in turn, and return the previous one."""
    before = _carried.get()
    _carried.set(found)
    return before


@contextmanager
def carrying(reader: FileReader) -> Iterator[None]:
    """Let threads that start in this block inherit a reader."""
    found = InheritedReader(reader)
    before = carry(found)
    try:
        yield
    finally:
        found.reader = None
        carry(before)


class _OutsideOfScopes:
    """Descriptor that finds the reader of a thread outside of scopes: the inherited one, else the one of all threads.

    Attributes:
        everywhere: Reader of all threads, or None.
        counting: Fallback during samples, which has no files and only counts requests; or None.
    """

    everywhere: FileReader | None = None
    counting: FileReader | None = None

    def __get__(self, asking: object, kind: object = None) -> FileReader | None:
        found = carried()
        if found is not None:
            return found.reader
        return self.counting if self.everywhere is None else self.everywhere


outside = _OutsideOfScopes()


class ThreadReader(threading.local):
    """Reader and scopes of one thread.

    Attributes:
        reader: Reader that serves this thread; None to open all files as usual.
        depth: Number of scopes that this thread has entered and not left.
        kept: Number of ``kept_in_place`` blocks that this thread has entered and not left.
    """

    reader: FileReader | None = outside  # type: ignore[assignment]
    depth = 0
    kept = 0


asking = ThreadReader()

NO_READER: Any = object()
"""Marks a thread without a reader of its own, outside of scopes."""


def set_reader(reader: FileReader | None) -> Any:
    """Set the reader of this thread and return the previous one. ``NO_READER`` removes the reader, as outside of scopes."""
    own = vars(asking)
    before = own.get("reader", NO_READER)
    if reader is NO_READER:
        own.pop("reader", None)
    else:
        own["reader"] = reader
    return before


def whereabouts() -> str:
    """Describe this thread for reports: whether it computes a sample, runs next to one, or no sample is computed."""
    if asking.depth > 0 or carried() is not None:
        return "in samples"
    return "outside of samples" if outside.counting is None else "in threads of its own"


def ask(path: str) -> Answer | None:
    """Request a file from the reader of this thread.

    Files that the reader itself opens in the meantime are opened as usual.
    """
    reader: FileReader | None = asking.reader
    if reader is None:
        return None
    before = set_reader(None)
    try:
        return reader.read_file(path)
    finally:
        set_reader(before)


def ask_whole(path: str) -> Buffer | None:
    """Request all bytes of a file from the reader of this thread."""
    found = ask(path)
    if found is None or isinstance(found, bytes | bytearray | memoryview):
        return found
    try:
        return found.read(0, len(found))
    finally:
        found.close()


def call_unanswered(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function without a reader, so that it does not request the same file a second time."""
    before = set_reader(None)
    try:
        return function(*args, **kwargs)
    finally:
        set_reader(before)


class Replacement:
    """Base class of replacements. A bound method of an instance replaces the original function.

    A bound method is used because, unlike a plain function, it does not bind again as an attribute of a class, just like the
    built-in that it replaces. It is pickled as the original function, so that the receiver does not need prefeed.

    Attributes:
        original: Function that is called if the reader does not have the file. It never changes, so that replacements of
            replacements cannot form a cycle.
    """

    home = "io"  # Module in which unpickling looks up the function.

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __reduce__(self) -> tuple[Any, ...]:
        return (importlib.import_module, (self.home,))


def original_of(function: Any) -> Any:
    """Return the original of a replacement, or the function itself."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Replacement):
        return owner.original
    replacement, original = (getattr(function, "__dict__", None) or {}).get("_prefeed_original", (None, None))
    return original if replacement is function else function
