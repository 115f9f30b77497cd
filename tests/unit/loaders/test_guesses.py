"""Guesses are tried: few files at first, as many as were right after that, and none of what proves wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

from prefeed.client.access import AccessMap
from prefeed.loaders.guesses import FIRST, MOST_AHEAD, Column, Guess
from prefeed.sources.learned import LearnedMap, LearnedMapWriter
from prefeed.torch.planning import PlannedSampler

LENGTH = 12_000


def column(name: str, *, length: int = LENGTH, start: int = 0) -> Column:
    return Column(start, start + length, lambda index: [f"/{name}/{index}"])


def run(guess: Guess, opened: Callable[[int], set[str]], *, samples: int = LENGTH, batch: int = 128) -> list[str]:
    """Make samples in order, batch by batch, each judged once it was made; return all paths that were given out."""
    given: list[str] = []
    for start in range(0, samples, batch):
        given += guess.take(range(start, samples))[1]
        for sample in range(start, min(samples, start + batch)):
            guess.judge(sample, opened(sample))
    return given


def test_a_right_guess_gives_out_everything() -> None:
    guess = Guess([column("right")])
    first = guess.take(range(LENGTH))[1]
    assert len(first) == FIRST == 512  # as SEMANTICS.md promises
    assert first + run(guess, lambda i: {f"/right/{i}"}) == [f"/right/{i}" for i in range(LENGTH)]
    assert not guess.is_over


def test_no_more_than_that_is_ahead() -> None:
    guess = Guess([column("right")])
    run(guess, lambda i: {f"/right/{i}"}, samples=LENGTH - MOST_AHEAD - 1)
    assert len(guess.take(range(LENGTH - MOST_AHEAD - 1, LENGTH))[1]) == MOST_AHEAD == 4096


def test_a_wrong_guess_is_dropped() -> None:
    guess = Guess([column("wrong")])
    assert len(run(guess, lambda i: {f"/right/{i}"})) == FIRST
    assert guess.is_over
    assert guess.take(range(LENGTH)) == ([], [])


@pytest.mark.parametrize("num_right", [3, 100, 6000])
def test_right_at_first_and_wrong_later(num_right: int) -> None:
    guess = Guess([column("guess")])
    given = run(guess, lambda i: {f"/guess/{i}"} if i < num_right else {"/other"})
    assert guess.is_over
    assert len(given) - num_right <= min(FIRST + num_right, MOST_AHEAD + 128)


def test_columns_are_judged_one_by_one() -> None:
    guess = Guess([column("wrong"), column("right"), column("of some", length=100)])
    given = run(guess, lambda i: {f"/right/{i}"} | ({f"/of some/{i}"} if i < 100 else set()))
    assert {path for path in given if path.startswith("/right")} == {f"/right/{i}" for i in range(LENGTH)}
    assert len([path for path in given if path.startswith("/wrong")]) <= FIRST // 2
    assert len([path for path in given if path.startswith("/of some")]) == 100


def test_a_column_tells_of_its_own_samples_alone() -> None:
    """One of a dataset that was concatenated from several."""
    guess = Guess([column("second", start=100, length=10)])
    assert [sample for sample in range(300) if guess.tells_of(sample)] == list(range(100, 110))
    counts, paths = guess.take(range(300))
    assert counts == [(sample, 1) for sample in range(100, 110)]
    assert paths == [f"/second/{index}" for index in range(10)]


def test_samples_that_are_never_made_hold_up_no_others() -> None:
    """Every second one is made; of the others nobody hears, as when a sampler has left them out."""
    guess = Guess([column("right")])
    given: list[str] = []
    for start in range(0, LENGTH, 128):
        given += guess.take(range(start, LENGTH))[1]
        for sample in range(start, min(LENGTH, start + 128), 2):
            guess.judge(sample, {f"/right/{sample}"})
    assert given == [f"/right/{i}" for i in range(LENGTH)]
    assert len(guess.pending) <= MOST_AHEAD


def test_columns_that_raise_or_are_no_paths_are_nothing() -> None:
    def broken(index: int) -> list[str]:
        raise RuntimeError(index)

    guess = Guess([Column(0, 9, broken), Column(0, 9, lambda _: ["relative", "/nul\0"]), Column(0, 9, lambda _: [])])
    assert not guess.tells_of(3)
    assert guess.take(range(9)) == ([], [])


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=300), st.integers(1, 3))
def test_what_is_not_right_is_bounded(made: list[tuple[int, bool]], files: int) -> None:
    """Whatever samples are asked for and made, in any order, several times or never."""
    guess = Guess([Column(0, 10_000, lambda index: [f"/{index}/{part}" for part in range(files)])])
    given, right, pending = 0, 0, set()
    for start, is_right in made:
        counts, paths = guess.take(range(start, start + 700))
        assert sum(count for _, count in counts) == len(paths)
        given += len(paths)
        pending |= {sample for sample, _ in counts}
        assert given - right <= FIRST + right
        assert set(guess.pending.tolist()) == pending
        for sample in sorted(pending)[:3]:
            right += files if is_right else 0
            guess.judge(sample, {f"/{sample}/{part}" for part in range(files)} if is_right else set())
            pending.discard(sample)


# ---------------------------------------------------------------- plans that a guess makes


class Server:
    """Stands in for the consumer and for its server: has a learned map, which samples that are made get into."""

    reads_once = True

    def __init__(self, directory: Path, length: int) -> None:
        self.learned = LearnedMapWriter.open_or_create(directory, length)
        self.paths: list[str] = []
        self.planned: list[int] = []
        self.num_waits = 0
        self.is_deaf = False

    def path(self, index: int) -> str:
        return self.paths[index]

    def suppose(self, samples: Any, paths: list[str]) -> bool:
        if self.is_deaf:
            return False
        at = len(self.paths)
        self.paths += paths
        for sample, count in samples.tolist():
            self.learned.suppose(sample, range(at, at + count))
            at += count
        return True

    def made(self, sample: int, *, is_right: bool) -> None:
        self.learned.record(sample, self.learned.objects_of(sample) if is_right else ())

    def read_counts(self) -> None:
        self.num_waits += 1

    def begin(self, ids: Any, *, is_partial: bool = False) -> None:
        self.planned = ids.tolist()

    def extend(self, ids: Any, *, are_read_soon: bool = True) -> None:
        self.planned += ids.tolist()

    def advance(self, position: int) -> None:
        assert position <= len(self.planned)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("is_deaf", [False, True])
def test_plans_grow_with_what_was_right(tmp_path: Path, num_workers: int, is_right: bool, is_deaf: bool) -> None:
    length, batch_size = 5000, 16
    server = Server(tmp_path / "map", length)
    server.is_deaf = is_deaf
    dataset: Any = SimpleNamespace(manifest=SimpleNamespace(path=server.path), num_samples=length)
    ahead = max(1, 2 * num_workers)
    sampler: Any = PlannedSampler(
        BatchSampler(SequentialSampler(range(length)), batch_size, drop_last=False),
        AccessMap(dataset=dataset, learned=LearnedMap.open(tmp_path / "map", length)),
        server,  # type: ignore[arg-type]
        trust=False,
        num_workers=num_workers,
        batches_ahead=ahead,
        seed_source=None,
        guess=Guess([column("guess", length=length)]),
    )
    batches: list[list[int]] = []
    for batch in sampler:
        batches.append(batch)
        for sample in itertools.chain.from_iterable(batches[-ahead : len(batches) - ahead + 1]):
            server.made(sample, is_right=is_right)
    assert list(itertools.chain.from_iterable(batches)) == list(range(length))
    assert server.num_waits == (0 if is_deaf else 1)
    if is_deaf:
        assert server.planned == []
    elif is_right:
        assert sorted(server.planned) == list(range(length))
    else:
        assert len(server.planned) == len(server.paths) == FIRST


@pytest.mark.usefixtures("sandbox")
def test_what_is_known_is_planned_at_once(tmp_path: Path) -> None:
    """A guess changes nothing where all is known: the order stays one window."""
    server = Server(tmp_path / "map", 3000)
    for sample in range(3000):
        server.learned.record(sample, [sample])
    dataset: Any = SimpleNamespace(manifest=SimpleNamespace(path=str), num_samples=3000)
    access = AccessMap(dataset=dataset, learned=LearnedMap.open(tmp_path / "map", 3000))
    sampler: Any = PlannedSampler(
        BatchSampler(SequentialSampler(range(3000)), 8, drop_last=False), access, server,  # type: ignore[arg-type]
        trust=False, num_workers=0, batches_ahead=1, seed_source=None, guess=Guess([column("guess")]),
    )  # fmt: skip
    next(iter(sampler))
    assert server.planned == np.arange(3000).tolist()
    assert server.num_waits == 0
