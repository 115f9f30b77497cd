"""The device is polled where that pays: for one reader that asks soon again, on a core of its own; and never when idle."""

from __future__ import annotations

import errno
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest

from prefeed.fuse import wire
from prefeed.mount import daemon as daemon_module
from prefeed.mount.daemon import Daemon
from prefeed.mount.polling import POLL_SECONDS, BusyPolling

LOOK, SOON, LATE, WORK = 2e-6, 20e-6, 150e-6, 5e-3
READER, OTHER, RELEASE = 7, 8, 0


def came(polling: BusyPolling, requests: Iterable[tuple[int, float]], *, look: float = LOOK) -> list[bool]:
    """Note requests of tasks after waits of so many seconds; return for which of them the device was polled."""
    polled = []
    for task, waited in requests:
        polled.append(polling.seconds > 0)
        polling.record_request(task, waited, min(look, waited))
    return polled


def test_a_reader_that_asks_soon_again_is_polled_for() -> None:
    polled = came(BusyPolling(), [(READER, WORK), *[(READER, SOON)] * 20])
    assert polled == [False] * 3 + [True] * 18


def test_a_request_of_no_task_neither_begins_nor_ends_it() -> None:
    files = [(READER, SOON), (READER, SOON), (RELEASE, LOOK)] * 20
    assert all(came(BusyPolling(), files)[4:])
    assert not any(came(BusyPolling(), [(RELEASE, LOOK)] * 20))


def test_a_reader_with_one_file_in_five_milliseconds_is_not_polled_for() -> None:
    files = [(READER, WORK), (READER, SOON), (RELEASE, LOOK)] * 1000
    assert not any(came(BusyPolling(), files))
    parts = [(READER, WORK), *[(READER, SOON)] * 3] * 1000  # each open is waited for in vain after the parts of a file
    polling = BusyPolling()
    in_vain = [polled and waited == WORK for polled, (_, waited) in zip(came(polling, parts), parts, strict=True)]
    assert sum(in_vain) <= 80


def test_readers_that_take_turns_are_not_polled_for() -> None:
    assert not any(came(BusyPolling(), [(READER, SOON), (OTHER, SOON)] * 100))
    polling = BusyPolling()
    assert came(polling, [(READER, SOON)] * 5)[-1]
    assert not any(came(polling, [(OTHER, SOON), (READER, SOON)] * 100)[1:])


@pytest.mark.parametrize(
    ("waited", "look"), [(LATE, LOOK), (POLL_SECONDS, LOOK), (SOON, SOON)], ids=["late", "limit", "taken away"]
)
def test_hardly_anything_is_spent_where_it_does_not_pay(waited: float, look: float) -> None:
    """It comes later, or another thread, as on a single core, has had the processor meanwhile."""
    assert 2 <= sum(came(BusyPolling(), [(READER, waited)] * 10_000, look=look)) <= 100


def test_requests_that_are_there_at_once_prove_nothing() -> None:
    polling = BusyPolling()
    mixed = [(READER, LOOK)] * 20 + [(READER, LATE)]
    assert sum(came(polling, mixed * 500)[20::21]) <= 80


def test_it_goes_on_while_three_of_four_come_in_time_and_is_tried_again() -> None:
    polling = BusyPolling()
    assert all(came(polling, [(READER, SOON), (READER, SOON), (READER, SOON), (READER, LATE)] * 100)[3:])
    came(polling, [(READER, LATE)] * 10_000)
    assert polling.seconds == 0.0
    assert all(came(polling, [(READER, SOON)] * 1000)[256:])


class Device:
    """What the daemon asks of ``os``, with requests that come so many seconds after the answer before, and a clock."""

    def __init__(self, waits: Iterable[float], *, end: int = errno.ENODEV) -> None:
        self.waits = deque(waits)
        self.end = end
        self.blocks = False
        self.now = 0.0
        self.num_reads = 0
        self.num_blocked = 0
        self._due = self.waits[0] if self.waits else 0.0

    def set_blocking(self, device: int, blocks: bool) -> None:
        self.blocks = blocks

    def perf_counter(self) -> float:
        return self.now

    def readv(self, device: int, buffers: tuple[bytearray]) -> int:
        self.num_reads += 1
        assert self.num_reads < 100_000, "a busy loop"
        self.now += LOOK
        if not self.waits:
            raise OSError(self.end, "gone")
        if self.now < self._due:
            if not self.blocks:
                raise BlockingIOError(errno.EAGAIN, "nothing yet")
            self.num_blocked += 1
            self.now = self._due
        self.waits.popleft()
        wire.REQUEST_HEADER.pack_into(buffers[0], 0, wire.Operation.READ, 1, 1, READER)
        return wire.HEADER_BYTES

    def writev(self, device: int, parts: list[Any]) -> None:
        self._due = self.now + (self.waits[0] if self.waits else 0.0)


def serve(monkeypatch: pytest.MonkeyPatch, device: Device) -> Daemon:
    """Answer all that comes, in this thread."""
    monkeypatch.setattr(daemon_module, "os", device)
    monkeypatch.setattr(daemon_module, "time", device)
    daemon = Daemon(3, lambda _: errno.EIO, lambda *_: b"")
    buffer = bytearray(wire.REQUEST_BYTES)
    while daemon._answer_next(buffer):
        pass
    return daemon


def test_the_daemon_polls_between_requests_that_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device([WORK, *[SOON] * 100])
    serve(monkeypatch, device)
    assert device.num_blocked == 3
    assert device.num_reads <= 3 + 98 * SOON / LOOK + 1


def test_the_daemon_sleeps_where_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device([WORK] * 1000)
    serve(monkeypatch, device)
    assert device.num_blocked == 1000
    assert device.num_reads == 1001
    device = Device(itertools.chain([SOON] * 10, [3600.0]))
    serve(monkeypatch, device)
    assert device.num_reads <= 3 + 8 * SOON / LOOK + POLL_SECONDS / LOOK + 3


@pytest.mark.parametrize("number", [errno.ENODEV, errno.ECONNABORTED])
@pytest.mark.parametrize("waits", [[], [SOON] * 10], ids=["idle", "polled"])
def test_the_daemon_ends_with_the_mount(monkeypatch: pytest.MonkeyPatch, number: int, waits: list[float]) -> None:
    device = Device(waits, end=number)
    serve(monkeypatch, device)
    assert device.num_reads <= 1 + len(waits) * SOON / LOOK


def test_the_daemon_takes_over_a_device_that_was_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device([WORK])
    assert not device.blocks  # as a daemon that was killed has left it
    serve(monkeypatch, device)
    assert (device.num_reads, device.num_blocked) == (2, 1)
