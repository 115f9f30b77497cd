"""The bound of the hit ratio that is printed next to every measured ratio.

For one job with a fresh shuffle per epoch and a cache of the fraction c of the dataset, never-evict reaches hit ratio
c, Belady's clairvoyant policy reaches no more, and LRU reaches c + (1 - c) ln(1 - c).
"""

from __future__ import annotations


def best_hit_ratio(*, cache_bytes: int, dataset_bytes: int) -> float:
    """Return the highest hit ratio of any policy on later epochs: c, or 1 if everything fits."""
    if dataset_bytes <= 0:
        return 1.0
    return min(1.0, cache_bytes / dataset_bytes)
