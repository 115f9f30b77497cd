"""The origin, read without a server."""

from __future__ import annotations

import random
import threading

import pytest

from fake_sources import CountingSource, Fault, FaultySource
from nodes import content, memory_source
from prefeed.config import resolve
from prefeed.errors import ObjectNotFoundError, TruncatedBodyError
from prefeed.sources.answers import read_origin, seconds_to_settle
from prefeed.types import ObjectInfo


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were asked for; none is made."""
    made: list[float] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            made.append(timeout)
            return False

    monkeypatch.setattr("prefeed.sources.answers.threading.Event", Event)
    return made


def test_an_object_is_read() -> None:
    assert read_origin(memory_source(2), "00001.bin", resolve({})) == content(1)


def test_what_may_pass_is_tried_again(pauses: list[float]) -> None:
    source = CountingSource(FaultySource(memory_source(2), {"00001.bin": Fault("error", times=3)}))
    assert read_origin(source, "00001.bin", resolve({})) == content(1)
    assert source.fetches == 4
    assert len(pauses) == 3
    assert pauses == sorted(pauses)


def test_what_will_not_pass_is_raised_with_the_path(pauses: list[float]) -> None:
    source = CountingSource(memory_source(2))
    with pytest.raises(ObjectNotFoundError, match=r"memory://test/nothing"):
        read_origin(source, "nothing", resolve({}))
    assert (source.fetches, pauses) == (1, [])


def test_the_last_error_is_raised_at_the_deadline(pauses: list[float]) -> None:
    source = FaultySource(memory_source(2), {"00001.bin": Fault("truncated")})
    with pytest.raises(TruncatedBodyError, match=r"00001\.bin"):
        read_origin(source, "00001.bin", resolve(limits={"retry_seconds": 5}))
    assert len(pauses) >= 1


def test_the_user_s_generator_is_left_alone(pauses: list[float]) -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    read_origin(FaultySource(memory_source(1), {"00000.bin": Fault("error", times=2)}), "00000.bin", resolve({}))
    assert random.random() == expected


@pytest.mark.parametrize(
    ("version", "changed", "seconds"),
    [
        ('"64-a"', 100, 1.5),  # as nginx makes it
        ('W/"64-a"', 100, 1.5),
        ("100-10", 100, 1.5),  # there is no ETag
        ('"64-a"', 98, 0.0),  # of another time: not made of it
        ('"62-a"', 98, 0.0),
        ('"63-a"', 99, 0.5),
        ('"6e-a"', 110, 0.0),  # in the future
        ('"d41d8cd9"', 100, 0.0),
        ("", 0, 0.0),
    ],
)
def test_a_version_of_whole_seconds_is_young_for_two(version: str, changed: int, seconds: float) -> None:
    info = ObjectInfo(path="x", size_bytes=10, version=version, modified_seconds=changed)
    assert seconds_to_settle(info, 100.5) == seconds
