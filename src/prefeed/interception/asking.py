"""Who is asked in this thread, for what, by which path, and what every replacement has in common."""

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
    """Return the name that an open file would have, or None for what is no path: a descriptor, a wrong type."""
    if type(file) is str:
        return file
    try:
        return os.fspath(file)  # type: ignore[no-any-return]
    except TypeError:
        return None


def absolute_path(name: str | bytes) -> str | None:
    """Return the path that a reader is asked for, or None: only the kernel can tell which file is meant.

    ``..`` after a named directory is not resolved: the directory may be a symbolic link. Leading ones are, since
    the working directory is a physical path.
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
    if not directory.startswith("/") or directory.startswith("//"):  # "(unreachable)/…": outside this root
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


class LentFile(Protocol):
    """Bytes of a file that stay where they are: what is read of them is copied then, and costs what it is long.

    **Threads and processes.** Any thread, and a forked child. Lives as long as somebody has it.
    """

    def __len__(self) -> int:
        """Return the size in bytes."""
        ...

    def read_into(self, start: int, target: memoryview) -> int | None:
        """Copy a part; return how many bytes, fewer at the end; None: they are there no more."""
        ...

    def read(self, start: int, size: int) -> bytes | None:
        """Return a part, shorter at the end; None: they are there no more."""
        ...

    def are_of(self, descriptor: int) -> bool:
        """Return True when an open file has the very bytes."""
        ...

    def close(self) -> None:
        """Whoever reads it now is done; it may be read again."""
        ...


Answer: TypeAlias = "Buffer | LentFile"
"""All bytes of a file, or where they are."""


class FileReader(Protocol):
    """Has the bytes of some files.

    **Threads and processes.** Called in the thread that entered ``reads_from`` with it, and in a fork of that
    thread. While it is being asked, files that it opens itself are not answered by it.
    """

    def may_have(self, path: str) -> bool:
        """Return False when ``read_file`` would return None: at once, for it is asked for every file that is opened.

        Args:
            path: As for ``read_file``.
        """
        ...

    def read_file(self, path: str) -> Answer | None:
        """Return all bytes of the file, or what lends them, or None: the caller opens it.

        Never raises on account of the file: None lets the caller meet the error in Python's own words.

        Args:
            path: Absolute and without ``.``, ``..`` or doubled slashes; symbolic links are as the caller named them.
        """
        ...


class Carried:
    """The reader of a sample, for threads and tasks that the sample starts.

    Attributes:
        reader: Asked until the sample is made; then None.
    """

    __slots__ = ("reader",)

    def __init__(self, reader: FileReader) -> None:
        self.reader: FileReader | None = reader


_carried: ContextVar[Carried | None] = ContextVar("prefeed_reader", default=None)
"""A context variable, because ``asyncio`` and ``anyio`` copy those into the tasks and threads that they start."""


def carried() -> Carried | None:
    """Return the reader of the sample that has started this thread; None if no sample did, or the sample is made."""
    found = _carried.get()
    return None if found is None or found.reader is None else found


def carry(found: Carried | None) -> Carried | None:
    """Set the reader that this thread has outside of scopes, and that ``asyncio`` and ``threads`` pass on; return the previous one."""
    before = _carried.get()
    _carried.set(found)
    return before


@contextmanager
def carrying(reader: FileReader) -> Iterator[None]:
    """Pass a reader on to the threads that this one starts, until the end of the block."""
    found = Carried(reader)
    before = carry(found)
    try:
        yield
    finally:
        found.reader = None
        carry(before)


class _OutsideOfScopes:
    """Finds the reader of a thread that is inside no scope: that of the sample that has started it, else the one of all threads.

    Attributes:
        everywhere: Reader of all threads; None if there is none.
        counting: Reader of last resort while a sample is made. It has no file, and counts those that it is requested for.
    """

    everywhere: FileReader | None = None
    counting: FileReader | None = None

    def __get__(self, asking: object, kind: object = None) -> FileReader | None:
        found = carried()
        if found is not None:
            return found.reader
        return self.counting if self.everywhere is None else self.everywhere


outside = _OutsideOfScopes()


class Asking(threading.local):
    """State of one thread.

    Attributes:
        reader: Who is asked; None: everything is opened as usual.
        depth: Scopes that this thread is inside.
        kept: Blocks that it is inside in which replacements stay in place, scope or no scope.
    """

    reader: FileReader | None = outside  # type: ignore[assignment]
    depth = 0
    kept = 0


asking = Asking()

NOBODY: Any = object()
"""Stands for the reader of a thread that is inside no scope."""


def set_reader(reader: FileReader | None) -> Any:
    """Set the reader of this thread; ``NOBODY`` removes it, as outside of scopes. Return the previous one."""
    own = vars(asking)
    before = own.get("reader", NOBODY)
    if reader is NOBODY:
        own.pop("reader", None)
    else:
        own["reader"] = reader
    return before


def whereabouts() -> str:
    """Describe this thread: it makes a sample, or a sample started it; it is another one in the meantime; or no sample is made."""
    if asking.depth > 0 or carried() is not None:
        return "in samples"
    return "outside of samples" if outside.counting is None else "in threads of its own"


def ask(path: str) -> Answer | None:
    """Return the bytes of a file, or what lends them, from this thread's reader.

    What the reader opens meanwhile is not answered.
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
    """Return all bytes of a file from this thread's reader, for who has no use for a part."""
    found = ask(path)
    if found is None or isinstance(found, bytes | bytearray | memoryview):
        return found
    try:
        return found.read(0, len(found))
    finally:
        found.close()


def call_unanswered(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call without asking anything: a function that opens files by itself would ask a second time."""
    before = set_reader(None)
    try:
        return function(*args, **kwargs)
    finally:
        set_reader(before)


class Replacement:
    """Stands in for one function; the bound method is what is put in its place.

    A bound method and no plain function: like the built-in that it replaces, it stays itself when a class has it
    as an attribute. It pickles as the function of that name, with or without prefeed on the other side.

    Attributes:
        original: What is called for all that is not answered; never changes, so that replacements of replacements
            cannot form a ring.
    """

    home = "io"  # module where a pickled reference is looked up

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __reduce__(self) -> tuple[Any, ...]:
        return (importlib.import_module, (self.home,))


def original_of(function: Any) -> Any:
    """Return the function beneath ours, or the function itself."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Replacement):
        return owner.original
    replacement, original = (getattr(function, "__dict__", None) or {}).get("_prefeed_original", (None, None))
    return original if replacement is function else function
