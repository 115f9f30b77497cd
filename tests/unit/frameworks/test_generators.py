"""A generator as a dataset: what it holds, how long it is, and which sample each element is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prefeed.config import configure
from prefeed.frameworks.generators import _UNKNOWN_LENGTH, Elements, ServedGenerator, held_by

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
    found = held_by(generator)
    assert {name: found[name] for name in expected} == expected
    assert "NUMBER" not in found


def test_a_closure_that_is_not_filled_yet_is_left_out() -> None:
    def elements() -> Iterator[str]:
        yield from later

    assert held_by(elements) == {}
    later = ["a"]
    assert held_by(elements) == {"later": later}


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
    elements = Elements({"numbers": list(range(9)), "self": Holder(paths)})
    assert (len(elements), elements.is_length_known) == (5, True)
    other = Elements({"numbers": list(range(9))})
    assert (len(other), other.is_length_known) == (_UNKNOWN_LENGTH, False)
    assert len(Elements({}, 7)) == 7


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

    def __init__(self, dataset: Elements) -> None:
        self.dataset = dataset
        self.source = Source()
        self.plans: list[list[int]] = []

    def loop_begins(self, num_batches: int | None) -> None:
        assert num_batches is None

    def serve(self) -> Source:
        return self.source

    def begin(self, order: Iterable[int]) -> None:
        self.plans.append(list(order))

    def next_batch(self, make: Callable[[], Any]) -> Any:
        return make()


class FakeFeeds:
    def __init__(self) -> None:
        self.feed: Any = None

    def of(self, loader: Any, dataset: Elements) -> FakeFeed:
        self.feed = self.feed or FakeFeed(dataset)
        return self.feed

    def renew(self, loader: Any, dataset: Elements) -> None:
        self.feed = FakeFeed(dataset)


def served(generator: Callable[..., Any]) -> tuple[ServedGenerator, FakeFeeds]:
    feeds: Any = FakeFeeds()
    return ServedGenerator(generator, feeds), feeds


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
