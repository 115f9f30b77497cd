"""Who is asked in this thread, and what every replacement has in common."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

from prefeed.interception.protocol import Answer, FileReader
from prefeed.types import Buffer


class Asking(threading.local):
    """State of one thread.

    Attributes:
        reader: Who is asked; None: everything is opened as usual. That of the class is asked in threads that are inside
            no scope.
        depth: Scopes that this thread is inside.
    """

    reader: FileReader | None = None
    depth = 0


asking = Asking()


def set_reader(reader: FileReader | None) -> None:
    """Ask this one in this thread, from now on; whoever is asked in all threads, as long as that is so."""
    if reader is Asking.reader:
        vars(asking).pop("reader", None)
    else:
        asking.reader = reader


def ask(path: str) -> Answer | None:
    """Return the bytes of a file, or what lends them, from this thread's reader.

    What the reader opens meanwhile is not answered.
    """
    reader = asking.reader
    if reader is None:
        return None
    asking.reader = None
    try:
        return reader.read_file(path)
    finally:
        set_reader(reader)


def ask_whole(path: str) -> Buffer | None:
    """Return all bytes of a file from this thread's reader, for who has no use for a part."""
    found = ask(path)
    return found if found is None or isinstance(found, bytes | bytearray | memoryview) else found.read(0, len(found))


def call_unanswered(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call with nobody being asked: a function that opens files by itself would ask a second time."""
    reader = asking.reader
    asking.reader = None
    try:
        return function(*args, **kwargs)
    finally:
        set_reader(reader)


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
    return owner.original if isinstance(owner, Replacement) else function
