"""Looks at the memory that is left while jobs grow, and has the tier give back what they need."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from prefeed.errors import StoreError
from prefeed.server.node import Node
from prefeed.server.sessions import Sessions
from prefeed.store.capacity import MemoryLimits, plan_budget
from prefeed.store.log import MIN_BUDGET_BYTES
from prefeed.system.memory import Memory, read_memory, reserve_bytes

_log = logging.getLogger("prefeed")

CALM_SECONDS: Final = 1.0
"""Between two looks; one takes a few tenths of a millisecond."""

TIGHT_SECONDS: Final = 0.05
"""The same where less than twice the reserve is left."""

BUSY_SECONDS: Final = 0.002
"""The same while pages are on their way back: others are served in between."""

GIVEN_BACK: Final = "memory-given-back"
"""Counted each time the tier is granted less."""


class MemoryWatch:
    """Grants the memory tier and the stage caches what programs leave, again and again.

    Attributes:
        notice: Why less is granted than was asked for; None: it is all granted.

    **Threads**: the loop's.
    """

    def __init__(
        self, *, asked_bytes: int, granted_bytes: int, notice: str | None, node: Node, sessions: Sessions,
        read: Callable[[], Memory] = read_memory,
    ) -> None:  # fmt: skip
        """Watch for a server.

        Args:
            asked_bytes: What the settings ask for.
            granted_bytes: What was granted when the server started.
            notice: And why it was not more.
            node: Has the tier.
            sessions: Have the caches.
            read: Returns the memory that there is.
        """
        self.notice = notice
        self._asked_bytes = asked_bytes
        self._granted_bytes = granted_bytes
        self._node = node
        self._sessions = sessions
        self._read = read

    def look(self) -> float:
        """Grant less or more, if that is needed; returns after how many seconds to look again."""
        try:
            return self._look()
        except (OSError, StoreError) as err:  # for example, the directory of the stage caches was removed
            self._node.count_error(err.code if isinstance(err, StoreError) else StoreError.code)
            return CALM_SECONDS

    def _look(self) -> float:
        memory = self._read()
        taken = self._node.tier_bytes + self._sessions.memory_bytes
        limits = MemoryLimits(memory=memory, taken_bytes=taken)
        budget, self.notice = plan_budget(self._granted_bytes, self._asked_bytes, limits)
        budget = max(budget, MIN_BUDGET_BYTES)
        if budget < self._granted_bytes and taken > budget:
            self._node.count_error(GIVEN_BACK)
            _log.info("prefeed: %s", self.notice)
        if budget != self._granted_bytes or taken > budget + MIN_BUDGET_BYTES:
            self._granted_bytes = budget
            objects = max(self._sessions.press_memory(budget), MIN_BUDGET_BYTES)
            before = self._node.tier_bytes
            if objects < self._node.press_tier(objects) < before:
                return BUSY_SECONDS
        spare, _ = memory.spare_bytes(before_a_kill=True)
        return TIGHT_SECONDS if spare < reserve_bytes(memory.limit_bytes) else CALM_SECONDS
