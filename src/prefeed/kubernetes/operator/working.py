"""Queue of changed groups, which are reconciled one after the other and retried after failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from prefeed.errors import PrefeedError
from prefeed.kubernetes.operator.groups import Key

FIRST_WAIT_SECONDS: Final = 1.0
MOST_WAIT_SECONDS: Final = 60.0
_MOST_FAILURES: Final = 7
"""Maximum failures that are counted. The delay has reached its maximum by then."""

AGAIN_SECONDS: Final = 10.0
"""Delay before a waiting group is reconciled again."""

ALL_SECONDS: Final = 300.0
"""Interval of complete listings, which find changes that a watch has missed."""

_log = logging.getLogger("prefeed.operator")


class Carries(Protocol):
    """Interface of the reconciler, implemented by ``carrying.Carrier``."""

    async def see_all(self, namespaces: Iterable[str]) -> set[Key]: ...
    async def carry(self, key: Key) -> bool: ...


class Worker:
    """Queue of groups and the task that reconciles them.

    Groups are reconciled one at a time. A group that changes during its reconciliation is queued again.

    Args:
        carrier: Reconciles a group.
        namespaces: Namespaces to list. A single empty text selects all.
        counts: Called with each result: ``ok``, ``waits`` or ``failed``.

    **Ownership**: ``run`` ends when it is cancelled, and cancels its tasks and timers.
    """

    def __init__(
        self, carrier: Carries, namespaces: Iterable[str], counts: Callable[[str], None] = lambda _: None
    ) -> None:
        self._carrier = carrier
        self._namespaces = tuple(namespaces)
        self._counts = counts
        self._queue: dict[Key, None] = {}
        self._has_work = asyncio.Event()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    @property
    def num_waiting(self) -> int:
        """Number of groups in the queue."""
        return len(self._queue)

    def mark(self, keys: Iterable[Key]) -> None:
        """Queue groups that have changed."""
        for key in keys:
            self._queue[key] = None
            if timer := self._timers.pop(key, None):
                timer.cancel()
        if self._queue:
            self._has_work.set()

    async def run(self) -> None:
        """List all objects, then reconcile groups until cancelled."""
        try:
            await self._see_all()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._see_all_again())
                tasks.create_task(self._work())
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def _see_all(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                self.mark(await self._carrier.see_all(self._namespaces))
                return
            except PrefeedError as err:
                _log.warning("%s; trying again in %g s", err, wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, MOST_WAIT_SECONDS)

    async def _see_all_again(self) -> None:
        wait = AGAIN_SECONDS  # soon, for deletions between the first list and the start of the watches
        while True:
            await asyncio.sleep(wait)
            await self._see_all()
            wait = ALL_SECONDS

    async def _work(self) -> None:
        while True:
            await self._has_work.wait()
            key = next(iter(self._queue))
            del self._queue[key]
            if not self._queue:
                self._has_work.clear()
            await self._work_at(key)

    async def _work_at(self, key: Key) -> None:
        try:
            waits = await self._carrier.carry(key)
        except PrefeedError as err:
            _log.warning("%s in %s: %s; trying again in %g s", key.name, key.namespace, err, self._failed(key))
            return
        except Exception:  # noqa: BLE001 - a defect that one document shows must not stop the work on all others
            _log.exception("%s in %s: trying again in %g s", key.name, key.namespace, self._failed(key))
            return
        self._failures.pop(key, None)
        self._counts("waits" if waits else "ok")
        if waits:
            self._later(key, AGAIN_SECONDS)

    def _failed(self, key: Key) -> float:
        """Record the failure of a group and schedule a retry. Return its delay in seconds."""
        self._failures[key] = failures = min(self._failures.get(key, 0) + 1, _MOST_FAILURES)
        wait: float = min(FIRST_WAIT_SECONDS * 2 ** (failures - 1), MOST_WAIT_SECONDS)
        self._counts("failed")
        self._later(key, wait)
        return wait

    def _later(self, key: Key, seconds: float) -> None:
        if key not in self._queue:
            with contextlib.suppress(KeyError):
                self._timers.pop(key).cancel()
            self._timers[key] = asyncio.get_running_loop().call_later(seconds, self.mark, [key])
