"""Passes of a generator over a real node: each has the bytes that its files had when it began, or newer ones."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefeed.client.beside import ReadsBeside
from prefeed.config import resolve
from prefeed.frameworks.generators import ServedGenerator
from prefeed.loaders.feed import Feeds
from prefeed.sources.mounts import Roots
from sandbox import Sandbox

NUM_FILES = 6
NUM_PASSES = 6


class SlowPlans:
    """A clock by which each plan takes a second or more, and what lies between two plans hardly longer."""

    now = 100.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def rewrite(path: Path, number: int) -> None:
    """Another program writes a file; it was done an hour ago, as far as its time tells."""
    command = 'printf %s "$1" > "$2.new" && touch -d "1 hour ago" "$2.new" && mv "$2.new" "$2"'
    subprocess.run(["sh", "-c", command, "sh", f"{path.stem}: {number}", str(path)], check=True)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    return [root / f"{number}.txt" for number in range(NUM_FILES)]


def generator_of(paths: list[Path]) -> Callable[..., Iterator[str]]:
    names = [str(path) for path in paths]

    def elements(*_: Any) -> Iterator[str]:
        for name in names:
            with open(name) as file:
                yield file.read()

    return elements


@pytest.mark.parametrize(
    "args", [lambda number: (), lambda number: (number,), lambda number: (0,)], ids=["none", "epoch", "same"]
)
def test_passes_in_short_order_see_what_has_changed(
    paths: list[Path], sandbox: Sandbox, args: Callable[[int], tuple[int, ...]]
) -> None:
    """There is no time for a plan in each: then each file is asked whether it has changed."""
    config = resolve()
    beside, feeds = ReadsBeside(config, Roots.of(config)), Feeds("test")
    served = ServedGenerator(generator_of(paths), feeds, beside=lambda: beside, clock=SlowPlans())
    for number in range(NUM_PASSES):
        for path in paths:
            rewrite(path, number)
        assert list(served(*args(number))) == [f"{path.stem}: {number}" for path in paths]
    feeds.clear()
    del served
    beside.end()
