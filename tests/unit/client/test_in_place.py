"""What processes share about epochs that are read in place, and reads that are measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefeed.client import in_place
from prefeed.client.in_place import STATE_BYTES, PlaceState, ReadMeter
from prefeed.core.in_place import MOST_MEASURED, Storage
from prefeed.sources.mounts import Roots


class Memory:
    """Memory of this process alone."""

    def __init__(self) -> None:
        self._bytes = np.zeros(STATE_BYTES, dtype=np.uint8)

    def numpy(self) -> Any:
        return self._bytes


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def state(memory: Memory) -> PlaceState:
    state = PlaceState(memory)
    state.epoch_begins(in_place=True)
    return state


def measure(state: PlaceState, slow: int, quick: int = 0, *, row: int = 0) -> None:
    for number in range(slow + quick):
        state.measured(row, is_slow=number < slow)


# ---------------------------------------------------------------- state


def test_reads_of_all_processes_count(state: PlaceState) -> None:
    measure(state, slow=2, row=0)
    measure(state, slow=1, row=63)
    assert state.storage() is Storage.UNKNOWN
    measure(state, slow=0, quick=1, row=5)
    assert state.num_measured() == 4
    assert state.storage() is Storage.SLOW


def test_only_the_last_reads_of_a_process_count(state: PlaceState) -> None:
    measure(state, slow=0, quick=100)
    assert state.storage() is Storage.QUICK
    measure(state, slow=MOST_MEASURED // 2 + 1)
    assert state.storage() is Storage.SLOW
    assert state.num_measured() == 100 + MOST_MEASURED // 2 + 1


def test_another_epoch_begins_with_no_reads(state: PlaceState) -> None:
    measure(state, slow=20)
    state.epoch_begins(in_place=True)
    assert state.storage() is Storage.UNKNOWN
    measure(state, slow=0, quick=16)
    assert state.storage() is Storage.QUICK


def test_a_note_is_in_force_once_it_is_joined(state: PlaceState, memory: Memory) -> None:
    other = PlaceState(memory)
    number = state.put_note(b"some")
    assert (other.note_number, other.note()) == (0, b"some")
    state.join(number)
    assert other.note_number == number
    state.epoch_begins(in_place=False)
    assert other.note_number == number
    state.epoch_begins(in_place=True)
    assert other.note_number == 0


def test_the_same_note_has_the_same_number(state: PlaceState) -> None:
    first = state.put_note(b"one")
    assert state.put_note(b"one") == first
    assert state.put_note(b"another, longer") == first + 1
    assert state.put_note(b"one") == first + 2


def test_a_note_that_is_not_whole_is_no_note(state: PlaceState, memory: Memory) -> None:
    state.put_note(b"some note")
    memory.numpy()[STATE_BYTES - in_place._NOTE_BYTES] ^= 1
    assert PlaceState(memory).note() is None


def test_a_note_that_is_too_long(state: PlaceState) -> None:
    with pytest.raises(ValueError, match="too long"):
        state.put_note(bytes(STATE_BYTES))


# ---------------------------------------------------------------- meter


class Clock:
    """Both clocks: a read takes so long, and the processor works for so long of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read_ns = self.cpu_ns = self.now_ns = 0
        for name in ("perf_counter_ns", "thread_time_ns"):
            monkeypatch.setattr(in_place.time, name, getattr(self, name))
        monkeypatch.setattr(in_place.time, "monotonic_ns", lambda: self.now_ns)
        self._wall = self._cpu = 0

    def perf_counter_ns(self) -> int:
        self._wall += self.read_ns
        return self._wall

    def thread_time_ns(self) -> int:
        self._cpu += self.cpu_ns
        return self._cpu


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(b"contents")
    return str(tmp_path / "file")


def test_the_bytes_of_the_file_are_given(state: PlaceState, file: str) -> None:
    meter = ReadMeter(state, None, row=3)
    assert meter.read_file(file) is None  # no batch has begun
    assert meter.batch_begins()
    assert meter.read_file(file) == b"contents"
    assert state.num_measured() == 1


def test_waiting_is_slow_and_work_is_not(state: PlaceState, file: str, clock: Clock) -> None:
    meter = ReadMeter(state, None, row=0)
    clock.read_ns = clock.cpu_ns = 10_000_000
    meter.batch_begins()
    for _ in range(MOST_MEASURED):
        meter.read_file(file)
        meter.goes_on()
    assert state.storage() is Storage.QUICK
    clock.cpu_ns, clock.now_ns = 0, 1_000_000_000
    for _ in range(MOST_MEASURED):
        assert meter.batch_begins()
        assert meter.read_file(file) == b"contents"
    assert state.storage() is Storage.SLOW


def test_what_reads_waited_is_added_up_over_processes(state: PlaceState, file: str, clock: Clock) -> None:
    clock.read_ns = 5_000_000
    for row in (0, 7):
        meter = ReadMeter(state, None, row=row)
        meter.batch_begins()
        meter.read_file(file)
        meter.read_file(file)
    assert state.waited() == (pytest.approx(0.02), 4)
    state.epoch_begins(in_place=True)
    assert state.waited() == (0, 0)


def test_an_epoch_that_stays_in_place_is_noted_and_not_measured(state: PlaceState, file: str) -> None:
    meter = ReadMeter(state, Roots((), named=(os.path.dirname(file),)), row=0)
    assert not state.stays
    state.stay()
    assert state.stays
    assert meter.batch_begins()
    for _ in range(2 * in_place._MOST_TRIES):
        assert meter.may_have(file)
        assert meter.read_file(file) is None
        assert meter.goes_on()
    assert meter.opened == [file] * 2 * in_place._MOST_TRIES
    assert not meter.may_have("/elsewhere/file")
    assert state.num_measured() == 0
    state.epoch_begins(in_place=True)
    assert not state.stays
    assert meter.batch_begins()
    assert meter.read_file(file) == b"contents"


def test_when_enough_is_measured_one_read_in_a_while_is(state: PlaceState, file: str, clock: Clock) -> None:
    meter = ReadMeter(state, None, row=0)
    meter.batch_begins()
    num_samples = 1
    while meter.read_file(file) is not None and meter.goes_on():
        num_samples += 1
    assert num_samples == MOST_MEASURED
    assert not meter.batch_begins()
    clock.now_ns += 1_000_000_000
    assert meter.batch_begins()
    assert meter.read_file(file) is not None
    assert not meter.goes_on()
    assert meter.read_file(file) is None
    state.epoch_begins(in_place=True)
    assert meter.batch_begins()


def test_samples_that_open_nothing_are_tried_a_few_times(state: PlaceState) -> None:
    meter = ReadMeter(state, None, row=0)
    meter.batch_begins()
    num_samples = 1
    while meter.goes_on():
        num_samples += 1
    assert num_samples == in_place._MOST_TRIES
    assert meter.batch_begins()  # and again in the next batch


def test_files_that_are_left_to_the_sample(state: PlaceState, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(in_place._WHOLE_BYTES + 1))
    meter = ReadMeter(state, Roots((), named=(str(tmp_path),)), row=0)
    meter.batch_begins()
    for name in ("pipe", "absent", "."):
        assert meter.read_file(str(tmp_path / name)) is None
    assert not meter.may_have("/elsewhere/file")
    assert state.num_measured() == 0
    assert meter.read_file(str(tmp_path / "large")) is None
    assert state.num_measured() == 1  # by its first bytes


def test_large_files_are_opened_twice_only_so_often(state: PlaceState, tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "large").write_bytes(bytes(in_place._WHOLE_BYTES + 1))
    clock.read_ns = 1_000_000
    meter = ReadMeter(state, None, row=0)
    for _ in range(3 * MOST_MEASURED):
        meter.batch_begins()
        assert meter.read_file(str(tmp_path / "large")) is None
    assert state.num_measured() == MOST_MEASURED


def test_what_was_made_in_place_is_counted_and_reckoned(state: PlaceState, tmp_path: Path) -> None:
    """Four of a hundred samples were watched: they opened two files each, of which some were measured."""
    for number in range(8):
        (tmp_path / f"{number}").write_bytes(bytes(100))
    meter = ReadMeter(state, Roots((), named=(str(tmp_path),)), row=0)
    assert state.in_place() == (0, 0, 0)
    meter.batch_begins()
    for number in range(8):
        assert meter.read_file(str(tmp_path / f"{number}")) is not None
    assert not meter.may_have("/elsewhere/file")
    meter.made(100, num_watched=4)
    assert state.in_place() == (100, 200, 20_000)
    ReadMeter(state, None, row=7).made(50)
    assert state.in_place() == (150, 300, 30_000)
    state.epoch_begins(in_place=True)
    assert state.in_place() == (0, 0, 0)


def test_files_of_watched_samples_that_are_not_measured_count_as_well(state: PlaceState, file: str) -> None:
    meter = ReadMeter(state, None, row=0)
    meter.batch_begins()
    while meter.read_file(file) is not None:
        pass
    assert not meter.may_have(file)
    assert state.num_measured() == MOST_MEASURED
    meter.made(1, num_watched=1)
    assert state.in_place() == (1, MOST_MEASURED + 2, 8 * (MOST_MEASURED + 2))


def test_of_a_large_file_its_size_counts(state: PlaceState, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(3 << 20))
    meter = ReadMeter(state, None, row=0)
    meter.batch_begins()
    assert meter.read_file(str(tmp_path / "large")) is None
    meter.made(2, num_watched=1)
    assert state.in_place() == (2, 2, 6 << 20)
