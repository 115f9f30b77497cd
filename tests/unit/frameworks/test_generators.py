"""A generator as a dataset: what it holds, how long it is, and which sample each element is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefeed.config import configure
from prefeed.frameworks.generators import _UNKNOWN_LENGTH, GeneratorElements, ServedGenerator, held_values

PATHS = ["a global list"]
NUMBER = 3


class Holder:
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def elements(self, *, reverse: bool = False) -> Iterator[str]:
        yield from reversed(self.paths) if reverse else self.paths

    def __call__(self) -> Iterator[str]:
        return self.elements()


def held_cases() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    paths = ["a"]
    holder = Holder(paths)

    def with_default(names: list[str] = paths) -> Iterator[str]:
        yield from names

    return {
        "closure": (lambda: iter(paths), {"paths": paths}),
        "global data, in a nested function too": (lambda: [name for name in PATHS if NUMBER], {"PATHS": PATHS}),
        "default": (with_default, {"default0": paths}),
        "method": (holder.elements, {"self": holder}),
        "object": (holder, {"self": holder}),
        "partial": (partial(with_default, paths, other=1), {"default0": paths, "argument0": paths, "other": 1}),
        "built-in": (iter, {"self": iter}),
    }


@pytest.mark.parametrize("case", held_cases())
def test_what_a_generator_holds(case: str) -> None:
    generator, expected = held_cases()[case]
    found = held_values(generator)
    assert {name: found[name] for name in expected} == expected
    assert "NUMBER" not in found


def test_a_closure_that_is_not_filled_yet_is_left_out() -> None:
    def elements() -> Iterator[str]:
        yield from later

    assert held_values(elements) == {}
    later = ["a"]
    assert held_values(elements) == {"later": later}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    configure()
    yield tmp_path
    configure()


def test_the_length_is_that_of_the_list_of_files(root: Path) -> None:
    for index in range(5):
        (root / f"{index}.bin").write_bytes(b"x")
    paths = [f"{root}/{index}.bin" for index in range(5)]
    elements = GeneratorElements({"numbers": list(range(9)), "self": Holder(paths)})
    assert (len(elements), elements.is_length_known) == (5, True)
    other = GeneratorElements({"numbers": list(range(9))})
    assert (len(other), other.is_length_known) == (_UNKNOWN_LENGTH, False)
    assert len(GeneratorElements({}, 7)) == 7


PLAN_SECONDS = 0.004


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Notes which samples are made."""

    reports_each = True

    def __init__(self) -> None:
        self.made: list[int] = []

    @contextmanager
    def making(self, index: int) -> Iterator[None]:
        self.made.append(index)
        yield


class FakeFeed:
    """Notes what is planned."""

    def __init__(self, dataset: GeneratorElements, clock: FakeClock) -> None:
        self.dataset = dataset
        self.source = Source()
        self.plans: list[list[int]] = []
        self.num_ended = self.num_steps = 0
        self.clock = clock

    def loop_begins(self, num_batches: int | None) -> None:
        assert num_batches is None

    def epoch_ended(self) -> None:
        self.num_ended += 1

    def step(self) -> None:
        self.num_steps += 1

    def serve(self) -> Source:
        return self.source

    def begin(self, order: Iterable[int]) -> None:
        self.plans.append(list(order))
        self.clock.now += PLAN_SECONDS

    def next_batch(self, make: Callable[[], Any]) -> Any:
        return make()


class FakeFeeds:
    def __init__(self) -> None:
        self.feed: Any = None
        self.clock = FakeClock()
        self.num_beside = 0

    def of(self, loader: Any, dataset: GeneratorElements) -> FakeFeed:
        self.feed = self.feed or FakeFeed(dataset, self.clock)
        return self.feed

    def renew(self, loader: Any, dataset: GeneratorElements) -> None:
        self.feed = FakeFeed(dataset, self.clock)


def served(generator: Callable[..., Any]) -> tuple[ServedGenerator, FakeFeeds]:
    feeds: Any = FakeFeeds()

    def beside() -> None:
        feeds.num_beside += 1

    return ServedGenerator(generator, feeds, beside=beside, clock=feeds.clock), feeds


def test_an_endless_generator_begins_its_list_again(root: Path) -> None:
    paths = [f"{root}/{index}.bin" for index in range(3)]
    for path in paths:
        Path(path).write_bytes(b"x")

    def endless() -> Iterator[str]:
        while True:
            yield from paths

    generator, feeds = served(endless)
    elements = generator()
    assert [next(elements) for _ in range(8)] == [*paths, *paths, *paths[:2]]
    assert feeds.feed.source.made == [0, 1, 2, 3, 1, 2, 3, 1]  # 3: the first of another round is not learned
    assert feeds.feed.plans == [[0, 1, 2], [1, 2], [1, 2]]


def test_a_pass_that_is_longer_than_known_is_the_length_of_the_next(root: Path) -> None:
    generator, feeds = served(lambda: iter(range(_UNKNOWN_LENGTH + 1)))
    assert sum(1 for _ in generator()) == _UNKNOWN_LENGTH + 1
    assert len(feeds.feed.dataset) == _UNKNOWN_LENGTH + 1
    assert type(feeds.feed.dataset).__name__ == "<lambda>"


def test_errors_of_a_generator_are_its_own_and_end_the_pass(root: Path) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("of the user")

    generator, feeds = served(failing)
    elements = generator()
    assert next(elements) == 1
    with pytest.raises(ValueError, match="of the user"):
        next(elements)
    assert elements.is_over
    assert list(feeds.feed.source.made) == [0, 1]
    with pytest.raises(TypeError):
        served(lambda: None)[0]()


def test_one_pass_at_a_time_is_read_ahead(root: Path) -> None:
    generator, feeds = served(lambda: iter("ab"))
    first, second = generator(), generator()
    assert list(second) == list(first) == ["a", "b"]
    assert len(feeds.feed.plans) == 1
    assert list(generator()) == ["a", "b"]
    assert len(feeds.feed.plans) == 2


def test_short_passes_have_a_plan_now_and_then() -> None:
    """A thousand epochs of 1 ms each, where a plan takes 4 ms: plans take at most a fiftieth of the time."""
    generator, feeds = served(lambda: iter("ab"))
    for _ in range(1000):
        assert list(generator()) == ["a", "b"]
        feeds.clock.now += 0.001
    assert feeds.clock.now - 100 < 1.03 + 2 * PLAN_SECONDS
    assert len(feeds.feed.plans) == 2 + 4  # the cost of the first one is not known
    assert len(feeds.feed.source.made) == 6 * 3
    assert feeds.num_beside == 1000 - 6  # these ask each file whether it has changed
    feeds.clock.now += 1
    assert list(generator()) == ["a", "b"]
    assert len(feeds.feed.plans) == 7


def test_passes_with_arguments_are_parts_of_a_round() -> None:
    """As of ``interleave``: in the second round it is known which samples follow, in the order in which the parts take turns."""
    generator, feeds = served(lambda shard, place: iter(f"{shard}{place}{number}" for number in range(2)))
    shards = [b"x", np.int64(1), np.array([1, 2])]
    for _ in range(3):
        passes = [generator(shard, 0) for shard in shards]
        found = [next(elements) for _ in range(2) for elements in passes]
        assert [next(elements, None) for elements in passes] == [None] * 3
        assert found == [f"{shard}0{number}" for number in range(2) for shard in shards]
        feeds.clock.now += 1
    assert [len(plan) for plan in feeds.feed.plans] == [_UNKNOWN_LENGTH, 9, 9]
    assert feeds.feed.source.made == [*range(9)] * 3  # with the end of each part
    assert feeds.feed.num_ended == 2
    assert feeds.feed.num_steps == 18


def test_parts_one_after_the_other_are_rounds_of_their_own() -> None:
    """As of ``flat_map``: nothing says when all of them were read, and each is to see the files as they are."""
    generator, feeds = served(lambda part: iter("ab"))
    for number in [0, 1, 2, 0, 2]:
        assert list(generator(number)) == ["a", "b"]
        feeds.clock.now += 1
    assert [plan[:3] for plan in feeds.feed.plans[:3]] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert feeds.feed.plans[3:] == [[*range(9)], [6, 7, 8, *range(6)]]
    assert feeds.num_beside == 0


def test_parts_that_each_have_the_whole_list_are_passes(root: Path) -> None:
    """As of ``args=(epoch,)``: the files of sample i are read ahead whatever the number of the epoch."""
    paths = [f"{root}/{index}.bin" for index in range(3)]
    for path in paths:
        Path(path).write_bytes(b"x")
    generator, feeds = served(lambda epoch: iter(paths))
    for epoch in range(4):
        assert list(generator(epoch)) == paths
        feeds.clock.now += 1
    assert feeds.feed.plans == [[0, 1, 2]] * 4
    assert feeds.feed.source.made == [0, 1, 2, 3] * 4


def test_a_thousand_short_parts_have_few_plans() -> None:
    generator, feeds = served(lambda part: iter("ab"))
    for number in range(1000):
        list(generator(number % 5))
        feeds.clock.now += 0.001
    assert len(feeds.feed.plans) == 2 + 4
    other, feeds = served(lambda part: iter("ab"))
    for _ in range(1000):
        list(other(0))
        feeds.clock.now += 0.001
    assert len(feeds.feed.plans) == 2 + 4
