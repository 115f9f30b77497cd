"""Functions that start threads, or give work to running ones, replaced so that the threads read for the sample that called.

``asyncio`` and ``anyio`` need no replacement, because they copy context variables, and so the reader, into what they start. A thread
has the reader until its work is done or the sample is made.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any, Final

from prefeed.interception.asking import Carried, carried, carry


def _run(found: Carried, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    before = carry(found)
    try:
        return function(*args, **kwargs)
    finally:
        carry(before)


def _start_in_place_of(original: Any) -> Any:
    """Make a ``Thread.start`` that passes the reader of the current sample to the new thread."""

    @functools.wraps(original)
    def start(self: Any) -> None:
        found = carried()
        if found is None:
            original(self)
            return
        own, run = vars(self).get("run"), self.run

        def run_for_sample(_self: Any) -> None:
            put_back()
            carry(found)  # for good: the thread ends with this
            run()

        def put_back() -> None:
            if own is None:
                vars(self).pop("run", None)
            else:
                self.run = own

        self.run = types.MethodType(run_for_sample, self)  # libraries call ``__func__`` of it
        try:
            original(self)
        except BaseException:
            put_back()
            raise

    return _marked(start, original)


def _giving_in_place_of(original: Any) -> Any:
    """Make a method of a pool that passes the reader of the current sample to its first argument, which a thread of the pool calls."""

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
    function._prefeed_original = function, original  # with itself, because ``functools.wraps`` passes attributes on
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
"""Places of the replacements, as in ``scope``."""
