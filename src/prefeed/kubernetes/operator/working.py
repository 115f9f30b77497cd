"""Groups that have changed are worked at, one after the other, again and again until they are as they should be."""

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
"""More are not counted: the longest wait is reached."""

AGAIN_SECONDS: Final = 10.0
"""After which a group is looked at again that waits for something."""

ALL_SECONDS: Final = 300.0
"""After which everything is looked at again: whatever a watch has missed is found then."""

_log = logging.getLogger("prefeed.operator")


class Carries(Protocol):
    """What is done; ``carrying.Carrier`` does it."""

    async def see_all(self, namespaces: Iterable[str]) -> set[Key]: ...
    async def carry(self, key: Key) -> bool: ...


class Worker:
    """Works at groups.

    A group is worked at by one task at a time, and once more if it has changed meanwhile.

    Args:
        carrier: What is done.
        namespaces: Those to look at; one empty text: all.
        counts: Told each end of work at a group: ``ok``, ``waits`` or ``failed``.

    **Ownership**: ``run`` ends when it is cancelled; nothing is left then.
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
        """Groups that wait to be worked at."""
        return len(self._queue)

    def mark(self, keys: Iterable[Key]) -> None:
        """Groups have changed."""
        for key in keys:
            self._queue[key] = None
            if timer := self._timers.pop(key, None):
                timer.cancel()
        if self._queue:
            self._has_work.set()

    async def run(self) -> None:
        """Work until this is cancelled."""
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
        wait = AGAIN_SECONDS  # what goes between the first look and the beginning of the watches is told by neither
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
        except Exception:  # noqa: BLE001 - a defect that one document shows must not end the work at all others
            _log.exception("%s in %s: trying again in %g s", key.name, key.namespace, self._failed(key))
            return
        self._failures.pop(key, None)
        self._counts("waits" if waits else "ok")
        if waits:
            self._later(key, AGAIN_SECONDS)

    def _failed(self, key: Key) -> float:
        """Note that work at a group has failed; return the seconds after which it is tried again."""
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
