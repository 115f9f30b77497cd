"""In which order the workers of a loader ask for samples."""

from __future__ import annotations

import numpy as np

from prefeed.loaders.kinds import Order


def interleave(order: Order, *, batch_size: int, num_workers: int) -> Order:
    """Return the order in which workers ask for samples, when each makes every ``num_workers``-th batch.

    Args:
        order: Sample indices in batch order, shape (n,); the last batch may be short.
        batch_size: Samples a batch.
        num_workers: Workers that take batches in turns; below 2 nothing changes.

    Returns:
        The same indices, shape (n,), in groups of ``num_workers`` batches; what is left of the last group last.
    """
    if num_workers < 2 or batch_size < 2:
        return order
    group = batch_size * num_workers
    whole = len(order) - len(order) % group
    # (groups, workers, batch_size) → (groups, batch_size, workers)
    turned = order[:whole].reshape(-1, num_workers, batch_size).transpose(0, 2, 1).reshape(-1)
    rest = [order[start : start + batch_size] for start in range(whole, len(order), batch_size)]
    longest = max(map(len, rest), default=0)
    last = [batch[i] for i in range(longest) for batch in rest if i < len(batch)]
    return np.concatenate((turned, np.array(last, dtype=order.dtype)))
