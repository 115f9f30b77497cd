"""Replacements of functions that start threads or submit work to them. The work inherits the reader of the current sample.

``asyncio`` and ``anyio`` need no replacement, because they copy context variables, including the reader. A thread has the reader
until its work is done or the sample was computed.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any, Final

from prefeed.interception.asking import InheritedReader, carried, carry


def _run(found: InheritedReader, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    before = carry(found)
    try:
        return function(*args, **kwargs)
    finally:
        carry(before)


def _start_in_place_of(original: Any) -> Any:
    """Create a ``Thread.start`` whose threads inherit the reader of the current sample."""

    @functools.wraps(original)
    def start(self: Any) -> None:
        found = carried()
        if found is None:
            original(self)
            return
        own, run = vars(self).get("run"), self.run

        def run_for_sample(_self: Any) -> None:
            put_back()
            carry(found)  # Not reset, because the thread ends after this call.
            run()

        def put_back() -> None:
            if own is None:
                vars(self).pop("run", None)
            else:
                self.run = own

        self.run = types.MethodType(run_for_sample, self)  # A method, because libraries access its ``__func__``.
        try:
            original(self)
        except BaseException:
            put_back()
            raise

    return _marked(start, original)


def _giving_in_place_of(original: Any) -> Any:
    """Create a method of a pool whose first argument, a function, inherits the reader of the current sample."""

    @functools.wraps(original)
    def give(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = carried()
        if found is not None and _has_threads(self):
            if args:
                args = (functools.partial(_run, found, args[0]), *args[1:])
            elif "func" in kwargs:
                kwargs["func"] = functools.partial(_run, found, kwargs["func"])
        return original(self, *args, **kwargs)

    return _marked(give, original)


def _has_threads(pool: Any) -> bool:
    processes = getattr(sys.modules.get("multiprocessing.pool"), "Pool", ())
    return not isinstance(pool, processes) or isinstance(pool, sys.modules["multiprocessing.pool"].ThreadPool)


def _marked(function: Any, original: Any) -> Any:
    function._prefeed_original = (
        function,
        original,
    )  # Includes the function, because ``functools.wraps`` copies attributes.
    return function


def _class(name: str) -> Callable[[Any], Any]:
    return lambda module: getattr(module, name, None)


THREADS: Final = (
    ("threading", _class("Thread"), "start", _start_in_place_of),
    ("concurrent.futures.thread", _class("ThreadPoolExecutor"), "submit", _giving_in_place_of),
    *(
        ("multiprocessing.pool", _class("Pool"), name, _giving_in_place_of)
        for name in ("apply_async", "_map_async", "imap", "imap_unordered")
    ),
)
"""Functions to replace, in the format of ``scope._PLACES``."""
