"""Counters in mapped files: whoever ends, however, what was counted is there; and files are used again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.tally import program
from prefeed.tally.program import NUM_COUNTERS, claim, sums


def counted(directory: Path) -> dict[bytes, list[int]]:
    return {key: numbers[:2] for key, numbers in sums(str(directory)).items()}


def test_sums_over_all_who_count(tmp_path: Path) -> None:
    one, two = claim(str(tmp_path)), claim(str(tmp_path))
    assert one is not None
    assert two is not None
    one.add(b"a", 1, 2)
    one.add(b"b", 5)
    two.add(b"a", 10, 20)
    two.add(b"a", 0, -4)
    assert one.add_one(b"b")
    assert not one.add_one(b"c")  # for which there may be no room

    assert counted(tmp_path) == {b"a": [11, 18], b"b": [6, 0]}
    assert all(len(numbers) == NUM_COUNTERS for numbers in sums(str(tmp_path)).values())
    assert len(list(tmp_path.iterdir())) == 2


def test_the_next_continues_where_one_has_ended(tmp_path: Path) -> None:
    for n in range(5):
        counts = claim(str(tmp_path))
        assert counts is not None
        counts.add(b"a", 1)
        counts.add(b"key %d" % n, 1)
        del counts  # as the end of its process

    assert counted(tmp_path) == {b"a": [5, 0]} | {b"key %d" % n: [1, 0] for n in range(5)}
    assert [path.name for path in tmp_path.iterdir()] == ["counts-0"]


def test_keys_that_are_too_long_are_cut(tmp_path: Path) -> None:
    counts = claim(str(tmp_path))
    assert counts is not None
    for _ in range(2):
        counts.add(b"x" * 5000, 1)

    assert counted(tmp_path) == {b"x" * 952: [2, 0]}


def test_more_keys_than_there_is_room_for(tmp_path: Path) -> None:
    counts = claim(str(tmp_path))
    assert counts is not None
    for n in range(1100):
        counts.add(b"%d" % n, 1)
    counts.add(b"0", 1)

    found = counted(tmp_path)
    assert (len(found), found[b"0"]) == (1024, [2, 0])


def test_a_full_file_system_costs_counts_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = claim(str(tmp_path))
    assert counts is not None
    counts.add(b"a", 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    counts.add(b"b", 1)
    counts.add(b"a", 1)
    assert counted(tmp_path) == {b"a": [2, 0]}


def test_memory_is_taken_for_what_is_counted(tmp_path: Path) -> None:
    counts = claim(str(tmp_path))
    assert counts is not None
    for n in range(8):
        counts.add(b"%d" % n, 1)
    assert (tmp_path / "counts-0").stat().st_blocks * 512 <= 16384


def test_there_is_no_directory(tmp_path: Path) -> None:
    assert claim(str(tmp_path / "gone")) is None
    program.begin(str(tmp_path / "gone"))
    program.add(b"a", 1)
    assert not program.is_counting()


def test_names_in_keys() -> None:
    assert program.parts_of(program.key_of(program.WHY, "a\0b", "é\udcff")) == (program.WHY, ["a b", "é\\udcff"])


@pytest.mark.usefixtures("sandbox")
def test_a_fork_counts_for_itself(tmp_path: Path) -> None:
    program.begin(str(tmp_path))
    try:
        program.add(b"a", 1)
        for number in (0, 9):
            child = os.fork()
            if not child:
                program.add(b"a", 10)
                os.kill(os.getpid(), number)
                os._exit(0)
            os.waitpid(child, 0)
            program.add(b"a", 100)
    finally:
        program.end()

    assert counted(tmp_path) == {b"a": [221, 0]}
    assert len(list(tmp_path.iterdir())) == 2, "the second child goes on in the file of the first"


@pytest.mark.usefixtures("sandbox")
def test_a_process_is_counted_once_under_a_key() -> None:
    key = program.key_of(program.LOADER, "asked twice")
    assert [program.is_new(key), program.is_new(key)] == [True, False]
    child = os.fork()
    if not child:
        os._exit([program.is_new(key), program.is_new(key)] != [True, False])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
