"""Opens of some groups of samples are counted, and reckoned for the others."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from prefeed.tally import estimate, program
from prefeed.tally.estimate import Estimate, groups

OPEN, LOAD = program.key_of(program.PAST, "open", "s"), program.key_of(program.PAST, "numpy.load", "s")


@pytest.fixture
def told(tmp_path: Path) -> Path:
    program.begin(str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _ends() -> object:
    yield
    program.end()


def group(counting: Estimate, num_samples: int, opened: dict[bytes, int]) -> bool:
    """Make a group; return whether its opens are counted: then each is told, as ``opens`` does."""
    with counting as made:
        if made.is_counting:
            for key, number in opened.items():
                for _ in range(number):
                    program.add(key, 1)
                    made.opened(key)
        made.num_samples = num_samples
    return made.is_counting


def test_what_each_sample_opens_is_counted_exactly(told: Path) -> None:
    one = Estimate()
    counted = [group(one, 64, {OPEN: 64, LOAD: 128}) for _ in range(300)]
    assert [place for place, is_counted in enumerate(counted) if is_counted] == [0, 128, 256]
    found = program.sums(str(told))
    assert found[OPEN][0] == 300 * 64
    assert found[LOAD][0] == 300 * 128
    assert found[program.ESTIMATED][0] == 297 * 3 * 64


def test_parts_of_an_open_are_kept(told: Path) -> None:
    """A file that one sample of 10 opens, and batches of 3 samples."""
    one = Estimate()
    group(one, 10, {OPEN: 1})
    for _ in range(100):
        group(one, 3, {})
    assert program.sums(str(told))[OPEN][0] == 1 + 30


def test_groups_are_counted_until_one_has_samples(told: Path) -> None:
    one = Estimate()
    assert [group(one, number, {}) for number in (0, 0, 4, 4)] == [True, True, True, False]
    assert program.ESTIMATED not in program.sums(str(told))


def test_what_an_epoch_opened_says_nothing_of_the_next(told: Path) -> None:
    """A dataset that keeps in memory what it has read opens nothing in its second epoch."""
    one = Estimate()
    for _ in range(100):
        group(one.of(1), 20, {OPEN: 20})
    for _ in range(100):
        group(one.of(2), 20, {})
    assert program.sums(str(told))[OPEN][0] == 2000


def test_a_sample_that_fails_ends_its_group() -> None:
    one = Estimate()
    with pytest.raises(ZeroDivisionError), one:
        raise ZeroDivisionError
    assert not groups


@pytest.mark.usefixtures("sandbox")
def test_groups_within_a_sample_and_in_other_threads() -> None:
    """A dataset over another loader; a thread that reads beside it."""
    outer, inner, seen = Estimate(), Estimate(), []
    with outer:
        with inner:
            assert groups[threading.get_ident()] is inner
        thread = threading.Thread(target=lambda: seen.append(groups.get(threading.get_ident())))
        thread.start()
        thread.join()
        assert groups[threading.get_ident()] is outer
    assert seen == [None]
    assert not groups


@pytest.mark.usefixtures("sandbox")
def test_a_forked_child_makes_no_group() -> None:
    with Estimate():
        child = os.fork()
        if not child:
            os._exit(len(estimate.groups))
        assert os.waitpid(child, 0)[1] == 0
