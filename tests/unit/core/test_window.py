"""The part of an order that is still needed."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from prefeed.core.plan import MOST_BYTES, Window
from profiles import examples
from ring import as_ids


@settings(max_examples=examples(100))
@given(
    first=st.integers(0, 20),
    steps=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 3000)), max_size=12),
    dtype=st.sampled_from([np.uint32, np.int64]),
)
def test_indices_are_those_of_the_whole_order(
    first: int, steps: list[tuple[int, int]], dtype: type[np.unsignedinteger]
) -> None:
    """Whatever is dropped and appended, what is needed is there, under its index in the order; and little else."""
    order = list(range(first))
    window, needed = Window(np.array(order, dtype=dtype)), 0
    for more, passed in steps:
        needed = min(needed + passed, len(order))
        new = list(range(len(order), len(order) + more))
        order += new
        window.extend(as_ids(new), needed_from=needed)
        assert window.end == len(order)
        assert window.start <= needed
        assert window.part(needed, window.end).tolist() == order[needed:]
        assert window.part(needed, needed + 3).tolist() == order[needed : needed + 3]
        assert window.ids.dtype == dtype
        assert window.nbytes <= window.ids.itemsize * max(1024, 2 * (3000 + len(order) - needed))


def test_what_is_dropped_takes_no_memory() -> None:
    window = Window(np.empty(0, dtype=np.uint32))
    for start in range(0, 10**7, 10**5):
        window.extend(np.arange(start, start + 10**5), needed_from=start - 10**5)
    assert (window.end, window.part(10**7 - 1, 10**7).tolist()) == (10**7, [10**7 - 1])
    assert window.nbytes < 2 * 10**6


@pytest.mark.parametrize("at_once", [True, False])
def test_more_than_may_be_kept_is_cut_where_it_ends(at_once: bool) -> None:
    """Later indices would be wrong: nothing that comes behind the cut is kept."""
    given_ids = np.arange(MOST_BYTES // 8 + 3)
    window = Window(given_ids if at_once else given_ids[:10])
    if not at_once:
        window.extend(given_ids[10:], needed_from=0)
    assert window.is_cut
    assert window.nbytes == MOST_BYTES
    assert window.end == MOST_BYTES // 8
    window.extend(as_ids([1, 2]), needed_from=window.end)
    assert window.end == MOST_BYTES // 8
