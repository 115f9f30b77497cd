"""When samples that were found are recomputed and compared: seldom enough to cost a hundredth of the time, and at random.

Every process saves up a hundredth of the time that passes, and spends it on audits. What an audit will take is known: each
entry says how long its sample took. How much has to be there before the first is drawn at random, so that processes which
end early make their share as well. The first few of a run are made on credit: where somebody says when the process has
nothing to do, they wait for that.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from prefeed.stage_cache.cache_store import CacheStore
from prefeed.stage_cache.finding import Finder
from prefeed.stage_cache.making import Maker

_log = logging.getLogger("prefeed")

SHARE: Final = 0.01
"""Of the time between one batch and the next."""

ON_CREDIT: Final = 6
"""Audits that a run makes in its first epoch whatever they take, all forked workers together."""

MOST_FAILED: Final = 3
"""After this number of failures in one process, it does not use the cache any more."""

_LOOK_SECONDS: Final = 0.01
_LONGEST_GAP_SECONDS: Final = 1.0
_MOST_SAVED_SECONDS: Final = 1.0
_OVERHEAD_SECONDS: Final = 5e-4
"""What an audit takes besides making the sample: the entry is read and copied, generators are put back, bytes compared."""

_MOST_AT_END_SECONDS: Final = 0.25


class Audit(NamedTuple):
    """A sample that may be audited: where it is kept, which it is, and what it is made in."""

    store: CacheStore
    index: Any
    key: bytes
    scope: Callable[[], AbstractContextManager[None]]


class Run:
    """What the processes of one run know together: how many audits were made on credit.

    **Threads and processes.** Forked workers share it; one that was spawned has its own.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def try_take(self) -> bool:
        """Take one; False when there are no more. Two processes at once may take the same."""
        taken = self._shared[0]
        if taken < ON_CREDIT:
            self._shared[0] = taken + 1
        return taken < ON_CREDIT

    @property
    def has_credit(self) -> bool:
        """Whether there are any left."""
        return self._shared[0] < ON_CREDIT

    def end(self) -> None:
        """The first epoch is over: no more on credit."""
        self._shared[0] = ON_CREDIT

    def __reduce__(self) -> tuple[Any, ...]:
        return (Run, ())


class Waiting:
    """Audits that are put off until this process has nothing to do: a worker that has made all batches asked of it.

    **Threads and processes.** Any thread may add; who has said that he makes them does so. A forked child has none.

    Attributes:
        is_attended: Somebody makes them: now and then, and all of them at the end.
    """

    def __init__(self) -> None:
        self.is_attended = False
        self._audits: deque[Callable[[], None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._audits)

    def add(self, audit: Callable[[], None]) -> None:
        """Let one wait."""
        self._audits.append(audit)

    def make_one(self) -> None:
        """The process has nothing to do: make the one that has waited longest."""
        try:
            self._audits.popleft()()
        except Exception:  # noqa: BLE001 - no loop ends by what it did not ask for
            _log.debug("prefeed: an audit could not be made", exc_info=True)

    def make_rest(self) -> None:
        """The process is about to end: make those that are left, for a quarter of a second or one longer sample."""
        until = time.monotonic() + _MOST_AT_END_SECONDS
        while self._audits and time.monotonic() < until:
            self.make_one()
        self._audits.clear()


waiting: Final = Waiting()
"""Those of this process."""

os.register_at_fork(after_in_child=waiting.__init__)  # type: ignore[misc]


class Auditor:
    """Decides in one process when a sample of a stage is made again.

    **Threads and processes.** One thread at a time; others spend a little more. A forked child begins again.
    """

    def __init__(
        self,
        run: Run,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] | None = None,
    ) -> None:
        """Begin with nothing saved.

        Args:
            run: It belongs to.
            clock: Seconds.
            chance: 0 to 1; None: of its own, so that no generator moves that anybody else can see.
        """
        self._run = run
        self._clock = clock
        self._given_chance = chance
        self.num_failed: int = 0
        self._begin()

    def _begin(self) -> None:
        """This is another process: what its parent has saved, and drawn, is not its own."""
        self._process_id = os.getpid()
        self._chance = self._given_chance or random.Random().random
        self._last: float | None = None
        self._look_at = 0.0
        self._saved = 0.0
        self._wanted = self._chance()
        self._num_batches = 0
        self._is_on_credit = False

    def choose(self, num_samples: int) -> int | None:
        """A batch is asked for: return which of its samples may be audited; None: none of them. Under a microsecond."""
        if os.getpid() != self._process_id:
            self._begin()
        now = self._clock()
        if self._last is not None:
            self._saved += SHARE * min(now - self._last, _LONGEST_GAP_SECONDS)
        self._last = now
        self._num_batches += 1
        is_next = self._num_batches & (self._num_batches - 1) == 0  # the first, second, fourth, eighth, ...
        self._is_on_credit = is_next and self._run.has_credit
        if not self._is_on_credit:
            if now < self._look_at:
                return None
            self._look_at = now + _LOOK_SECONDS
            if self._saved <= 0.0:
                return None
        return int(self._chance() * num_samples) if num_samples else None

    @property
    def may_wait(self) -> bool:
        """Whether what was chosen is made on credit, and somebody says when this process has nothing to do."""
        return self._is_on_credit and waiting.is_attended

    def take_credit(self) -> bool:
        """Return whether a sample that has waited is still to be audited: others may have been meanwhile."""
        self._is_on_credit = self._run.has_credit
        return self._is_on_credit

    def is_due(self, cost_seconds: float) -> bool:
        """Return whether to make the sample, which took so long when it was kept."""
        if self._is_on_credit and self._run.try_take():
            return True
        cost_seconds += _OVERHEAD_SECONDS
        self._saved = min(self._saved, max(_MOST_SAVED_SECONDS, cost_seconds))
        return self._saved >= self._wanted * cost_seconds

    def audit(
        self,
        asked: Audit,
        finder: Finder,
        maker: Maker,
        *,
        looking: AbstractContextManager[bool],
        looking_seconds: float,
    ) -> str | None:
        """Make a sample again, if it was kept and it is time, and compare; return in what it differs, None if it does not.

        A stage whose samples differ each time is refused.

        Args:
            asked: The sample.
            finder: Reads its entry.
            maker: Makes it.
            looking: Looks at the dataset before and after the sample is made; gives False if it has changed: no audit then.
            looking_seconds: How long that takes.
        """
        if not maker.can_compare:
            return None
        note = finder.note(asked.store, asked.key)
        if note is None or not self.is_due(note.micros / 1e6 + looking_seconds):
            return None
        began = self._clock()
        try:
            with looking as is_unchanged:
                return self._compare(asked, finder, maker) if is_unchanged else None
        finally:
            self.spent(self._clock() - began)

    def _compare(self, asked: Audit, finder: Finder, maker: Maker) -> str | None:
        kept = finder.entry(asked.store, asked.key)
        if kept is None:
            return None
        fresh = maker.made_to_compare(asked.index, asked.scope, kept[1])
        if fresh is None:
            return None
        found = maker.differs(kept[0], fresh)
        if found is None:
            asked.store.count_audit(failed=False)
            return None
        again = maker.made_to_compare(asked.index, asked.scope, kept[1])
        if again is None or finder.entry(asked.store, asked.key) != kept:
            return None  # a file was changed meanwhile, say
        if maker.differs(fresh, again) is not None:
            maker.refuse(
                asked.store, f"sample {asked.index!r} differs each time that it is made: {found}", may_raise=False
            )
            if not maker.is_refused:
                return None
        self.num_failed += 1
        asked.store.count_audit(failed=True)
        return found

    def spent(self, seconds: float) -> None:
        """An audit took so long."""
        self._last = self._clock()  # that time earns nothing
        self._saved -= seconds
        self._wanted = self._chance()
