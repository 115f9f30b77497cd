"""Hit ratios of cache policies, in closed form and by brute force; tests compare prefeed with them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def lru_hit_ratio(cached_fraction: float) -> float:
    """Return what least-recently-used reaches on a fresh shuffle an epoch, for 0 <= c <= 1."""
    if cached_fraction >= 1.0:
        return 1.0
    return cached_fraction + (1.0 - cached_fraction) * math.log1p(-cached_fraction)


def belady_misses(accesses: Sequence[int], *, capacity: int) -> int:
    """Return the fewest misses possible with room for ``capacity`` objects of one size, bypassing allowed.

    Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.

    Complexity: O(n * capacity), n = number of accesses: for tests and small plans.
    """
    next_use = _next_uses(accesses)
    cache: dict[int, int] = {}
    misses = 0
    for index, object_id in enumerate(accesses):
        if object_id not in cache:
            misses += 1
        cache[object_id] = next_use[index]
        if len(cache) > capacity:
            del cache[max(cache, key=lambda cached: cache[cached])]
    return misses


def _next_uses(accesses: Sequence[int]) -> list[int]:
    never = len(accesses)
    upcoming: dict[int, int] = {}
    next_use = [never] * len(accesses)
    for index in range(len(accesses) - 1, -1, -1):
        next_use[index] = upcoming.get(accesses[index], never)
        upcoming[accesses[index]] = index
    return next_use
