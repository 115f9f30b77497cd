"""Threads of a listing: as many as its storage keeps waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

LISTING_THREADS: Final = 32
_PATIENCE_SECONDS: Final = 0.005
"""A listing in which nothing is found for so long waits for its storage: twice as many threads ask."""

Task = TypeVar("Task")


def work_off(
    todo: deque[Task], step: Callable[[Task], None], *, found: Callable[[], int], report: Callable[[], None]
) -> None:
    """Do every task; a step may add others.

    While the storage answers at once one thread does all: more would only wait for each other. Where questions wait for a
    server, as on network storage, there are soon 32.

    Args:
        todo: Tasks; the last one is done first.
        step: Does one.
        found: Grows while a step goes on.
        report: Called from time to time, and at the end.

    Raises:
        Exception: What a step raised; the others are dropped.
    """

    def work() -> None:
        while True:
            try:
                task = todo.pop()
            except IndexError:
                return
            step(task)

    with ThreadPoolExecutor(LISTING_THREADS, thread_name_prefix="prefeed-list") as pool:
        pending: set[Future[None]] = set()
        threads, before = 1, found()
        try:
            while todo or pending:
                for _ in range(min(len(todo), threads - len(pending))):
                    pending.add(pool.submit(work))
                done, pending = wait(pending, _PATIENCE_SECONDS, FIRST_COMPLETED)
                for future in done:
                    future.result()
                if not done and found() == before:
                    threads = min(2 * threads, LISTING_THREADS)
                before = found()
                report()
        finally:
            todo.clear()
