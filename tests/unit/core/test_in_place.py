"""Whether a loader's epochs begin in place."""

from __future__ import annotations

import pytest

from prefeed.core.in_place import MOST_MEASURED, SHORT_SECONDS, Course, PlacePolicy, Storage, is_short, judge


@pytest.mark.parametrize(
    ("num_reads", "num_slow", "expected"),
    [
        (0, 0, Storage.UNKNOWN),
        (3, 3, Storage.UNKNOWN),  # too few to tell
        (4, 3, Storage.SLOW),
        (4, 2, Storage.UNKNOWN),
        (15, 0, Storage.UNKNOWN),
        (16, 8, Storage.QUICK),
        (16, 9, Storage.SLOW),
        (1024, 512, Storage.QUICK),
        (1024, 513, Storage.SLOW),
    ],
)
def test_most_reads_decide(num_reads: int, num_slow: int, expected: Storage) -> None:
    assert judge(num_reads=num_reads, num_slow=num_slow) is expected


def test_one_slow_read_of_sixteen_is_an_accident() -> None:
    assert judge(num_reads=MOST_MEASURED, num_slow=1) is Storage.QUICK


def courses(policy: PlacePolicy, first_reads: list[Course]) -> list[bool]:
    """Return which epochs begin in place, when those that do go as the list says, one after the other."""
    began = []
    while first_reads:
        began.append(policy.begins_in_place)
        policy.ended(first_reads.pop(0) if policy.begins_in_place else Course.JOINED)
    return began


def test_quick_storage_is_always_read_in_place() -> None:
    assert courses(PlacePolicy(), [Course.IN_PLACE] * 5) == [True] * 5


def test_slow_storage_is_measured_again_after_longer_and_longer_pauses() -> None:
    began = courses(PlacePolicy(), [Course.SLOW] * 8)
    pauses = [len(pause) for pause in "".join("MJ"[not one] for one in began).strip("M").split("M")]
    assert pauses == [1, 2, 4, 8, 16, 32, 32]


def test_storage_that_slowed_down_is_measured_in_the_next_epoch() -> None:
    assert courses(PlacePolicy(), [Course.IN_PLACE, Course.SLOWED_DOWN, Course.IN_PLACE]) == [True, True, True]


def test_storage_that_became_quick_ends_the_pauses() -> None:
    policy = PlacePolicy()
    assert courses(policy, [Course.SLOW, Course.SLOW, Course.IN_PLACE, Course.SLOW]) == [
        True, False, True, False, False, True, True,
    ]  # fmt: skip
    assert not policy.begins_in_place
    policy.ended(Course.JOINED)
    assert policy.begins_in_place  # the pause is one epoch again


@pytest.mark.parametrize(
    ("waited_seconds", "num_reads", "num_samples", "num_workers", "expected"),
    [
        (0.0, 0, 1, 0, False),  # nothing was measured
        (0.02, 4, 300, 0, True),  # 1.5 s
        (0.02, 4, 300, 2, True),
        (0.02, 4, 3000, 0, False),  # 15 s
        (0.02, 4, 3000, 2, True),  # 7.5 s
        (4 * SHORT_SECONDS, 4, 1, 0, False),
        (3.9 * SHORT_SECONDS, 4, 1, 1, True),
    ],
)
def test_an_epoch_is_short_if_all_reads_take_as_long_as_those_measured(
    waited_seconds: float, num_reads: int, num_samples: int, num_workers: int, expected: bool
) -> None:
    found = is_short(
        waited_seconds=waited_seconds, num_reads=num_reads, num_samples=num_samples, num_workers=num_workers
    )
    assert found is expected
