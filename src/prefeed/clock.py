"""Time as an argument: production code is given ``time.monotonic``, tests a clock of their own."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds from an arbitrary start; never runs backwards."""
