"""The order of a plan is the order in which workers ask, were they equally fast."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prefeed.loaders.order import interleave
from profiles import examples


def asked_in_turns(order: list[int], *, batch_size: int, num_workers: int) -> list[int]:
    """Let every worker take its batches in turns, and ask for one sample whenever the others have asked for one."""
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    asked: list[int] = []
    for start in range(0, len(batches), num_workers):
        at_work = [list(batch) for batch in batches[start : start + num_workers]]
        while any(at_work):
            asked += [batch.pop(0) for batch in at_work if batch]
    return asked


@settings(max_examples=examples(300))
@given(
    order=st.lists(st.integers(0, 10**6), max_size=200),
    batch_size=st.integers(1, 20),
    num_workers=st.integers(0, 9),
)
def test_it_is_the_order_of_workers_that_take_turns(order: list[int], batch_size: int, num_workers: int) -> None:
    planned = interleave(np.array(order, dtype=np.int64), batch_size=batch_size, num_workers=num_workers).tolist()
    assert sorted(planned) == sorted(order)
    if num_workers < 2:
        assert planned == order
    else:
        assert planned == asked_in_turns(order, batch_size=batch_size, num_workers=num_workers)
