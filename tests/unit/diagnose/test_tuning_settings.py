from __future__ import annotations

import pytest

from prefeed.diagnose.tune.search import (
    Settings,
    Space,
    lines_to_paste,
    more_lookahead,
    more_prefetch,
    numbers_between,
    size_text,
    thread_numbers,
    with_workers,
    worker_numbers,
)

NONE = Settings(num_workers=0)


@pytest.mark.parametrize(("cores", "first"), [(1, [0, 1, 2, 4]), (2, [0, 1, 2, 4]), (6, [0, 1, 2, 4, 6, 8])])
def test_worker_numbers_hold_the_cores_and_go_beyond(cores: int, first: list[int]) -> None:
    numbers = worker_numbers(cores)
    assert numbers[: len(first)] == first
    assert numbers[-1] == 64


def test_many_cores_are_not_all_for_workers() -> None:
    assert worker_numbers(256)[-1] == 64


@pytest.mark.parametrize(
    ("tried", "best", "between"),
    [({0, 1, 2, 4, 8}, 4, [3, 6]), ({0, 1, 2}, 2, []), ({0, 1, 2, 4}, 4, [3]), ({0}, 0, []), ({8, 16}, 8, [12])],
)
def test_numbers_between(tried: set[int], best: int, between: list[int]) -> None:
    assert numbers_between(tried, best) == between


def test_with_workers() -> None:
    two = with_workers(NONE, 2)
    assert (two.num_workers, two.prefetch_factor) == (2, 2)
    assert with_workers(two, 0) == NONE
    assert with_workers(Settings(num_workers=4, prefetch_factor=8), 2).prefetch_factor == 8


def test_thread_numbers() -> None:
    assert thread_numbers(Space(cores=8, threads=8), 2) == [6, 4, 1]
    assert thread_numbers(Space(cores=2, threads=2), 2) == [1]
    assert thread_numbers(Space(cores=1, threads=1), 0) == []
    assert thread_numbers(Space(cores=8), 2) == []


def test_more_of_something_comes_to_an_end() -> None:
    assert more_prefetch(NONE) is None
    assert more_prefetch(Settings(num_workers=1, prefetch_factor=16)) is None
    more = more_prefetch(with_workers(NONE, 1))
    assert more is not None
    assert more.prefetch_factor == 4
    assert more_lookahead(NONE) is None
    assert more_lookahead(Settings(num_workers=0, lookahead=16 << 30)) is None
    assert more_lookahead(Settings(num_workers=0, lookahead=1)) == Settings(num_workers=0, lookahead=4)


def test_size_orders_settings() -> None:
    two = with_workers(NONE, 2)
    assert NONE.size < two.size < with_workers(NONE, 3).size
    assert two.size < Settings(num_workers=2, prefetch_factor=2, pin_memory=True).size
    assert two.size < Settings(num_workers=2, prefetch_factor=4).size


def test_lines_to_paste() -> None:
    best = Settings(num_workers=6, prefetch_factor=4, pin_memory=True)
    assert lines_to_paste(best, NONE) == "DataLoader(..., num_workers=6, prefetch_factor=4, pin_memory=True)"
    assert lines_to_paste(NONE, best) == "DataLoader(..., num_workers=0, pin_memory=False)"
    more = Settings(num_workers=0, threads=3, lookahead=2 << 30)
    assert lines_to_paste(more, NONE).splitlines() == [
        "DataLoader(..., num_workers=0)",
        "torch.set_num_threads(3)",
        "PREFEED_LOOKAHEAD=2GiB in the environment, before the server starts",
    ]


@pytest.mark.parametrize(
    ("size", "text"), [(2 << 30, "2GiB"), (512 << 20, "512MiB"), (1 << 10, "1KiB"), (1000, "1000")]
)
def test_size_text(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_processor_is_left_of_many() -> None:
    assert [Space(cores=cores).most_cpus for cores in (1, 2, 4, 64)] == [1, 2, 3, 63]
