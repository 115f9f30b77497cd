from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prefeed.core.shares import MIN_LIMIT_BYTES, OVERHEAD_BYTES, Shares
from profiles import examples

MIB = 1024**2


def test_the_objects_have_all_that_no_cache_was_given() -> None:
    shares = Shares(800 * MIB)
    assert shares.objects_limit_bytes == 800 * MIB
    assert shares.grant("a", 300 * MIB, objects_bytes=0) == 300 * MIB
    assert shares.objects_limit_bytes == 500 * MIB - OVERHEAD_BYTES
    shares.forget("a")
    assert shares.objects_limit_bytes == 800 * MIB


def test_an_eighth_or_16_mib_stay_with_the_objects() -> None:
    assert Shares(800 * MIB).objects_share_bytes == 100 * MIB
    assert Shares(32 * MIB).objects_share_bytes == 16 * MIB
    assert Shares(8 * MIB).objects_share_bytes == 8 * MIB
    assert Shares(8 * MIB).grant("a", MIB, objects_bytes=0) == 0


def test_a_limit_is_raised_as_far_as_there_is_room_and_never_lowered() -> None:
    shares = Shares(80 * MIB)
    first = shares.grant("a", 1 << 50, objects_bytes=40 * MIB)
    assert first == 40 * MIB - OVERHEAD_BYTES
    assert shares.grant("a", 1, objects_bytes=40 * MIB) == first
    assert shares.grant("b", 1 << 50, objects_bytes=40 * MIB) == 0
    shares.set("a", 10 * MIB)
    assert shares.grant("b", 20 * MIB, objects_bytes=40 * MIB) == 20 * MIB


def test_a_limit_that_is_too_small_for_a_store_is_none() -> None:
    assert Shares(80 * MIB).grant("a", MIN_LIMIT_BYTES - 1, objects_bytes=0) == 0
    assert Shares(80 * MIB).grant("a", MIN_LIMIT_BYTES, objects_bytes=0) == MIN_LIMIT_BYTES


STEPS = st.lists(
    st.tuples(st.sampled_from(["grant", "lower", "forget", "objects"]), st.integers(0, 4), st.integers(0, 200 * MIB)),
    max_size=40,
)


@settings(max_examples=examples(300))
@given(budget=st.integers(4 * MIB, 200 * MIB), steps=STEPS)
def test_whatever_is_asked_the_budget_holds(budget: int, steps: list[tuple[str, int, int]]) -> None:
    shares, objects = Shares(budget), 0
    for verb, store, size in steps:
        if verb == "grant":
            before = shares.limit_of(store)
            after = shares.grant(store, size, objects_bytes=objects)
            assert before <= after <= max(before, size)
            assert after % 4096 == 0 or after == before
        elif verb == "lower":
            shares.set(store, min(shares.limit_of(store), size)) if shares.limit_of(store) else None
        elif verb == "forget":
            shares.forget(store)
        else:
            objects = max(objects, min(size, shares.objects_limit_bytes))
        assert shares.objects_limit_bytes >= max(objects, shares.objects_share_bytes)
