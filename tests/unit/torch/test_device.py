"""Batches on a device that does its work late: what is left out of the order of work is seen."""

from __future__ import annotations

import threading
import weakref
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import prefeed
from leaks import wait_until
from prefeed.errors import ResumeError
from unit.torch.late_device import LateDevice, PinnedRows

pytestmark = pytest.mark.usefixtures("sandbox")

SECONDS = 60


def prefetcher(loader: Any, device: LateDevice, **kwargs: Any) -> prefeed.DevicePrefetcher[Any]:
    made = prefeed.DevicePrefetcher(loader, "cpu", **kwargs)
    made._streams = device
    return made


def is_idle(epoch: Any) -> bool:
    """Return True when the thread has made all that it may, and the loop may come."""
    ahead = epoch._ahead
    return wait_until(
        lambda: not ahead._thread.is_alive() or ahead._maker.is_waiting(),
        timeout_seconds=SECONDS,
    )


def read(device: LateDevice, tensor: torch.Tensor, into: list[float]) -> None:
    """Have the loop's queue look at a tensor: a training step."""

    def look(there: torch.Tensor) -> None:
        values = set(there.reshape(-1).tolist())
        into.append(values.pop() if len(values) == 1 else float("nan"))

    device.put(look, tensor)


def train(epoch: Iterator[Any], device: LateDevice) -> list[float]:
    """Return a list that a loop over tensors asked the device to put their values into."""
    found: list[float] = []
    assert is_idle(epoch)
    for batch in epoch:
        read(device, batch, found)
        del batch
        assert is_idle(epoch)
    return found


# ---------------------------------------------------------------- the order of work


@pytest.mark.parametrize("first", ["loops", "side"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_loop_reads_what_the_loader_had(first: str, depth: int) -> None:
    """Fails without the wait for a batch's mark, without ``keep``, and without keeping what is copied from."""
    device = LateDevice()
    batches = prefetcher(PinnedRows(8), device, depth=depth)
    for _ in range(2):
        found = train(iter(batches), device)
        device.finish(getattr(device, first))
        assert found == list(range(8))


def test_the_loops_queue_has_none_of_the_copying() -> None:
    device = LateDevice()
    epoch: Any = iter(prefetcher(PinnedRows(8), device, transform=lambda batch: device.applied(torch.neg, batch)))
    assert is_idle(epoch)
    next(epoch)
    assert not any(callable(step) for step in device.loops)
    epoch.close()


@pytest.mark.parametrize("first", ["loops", "side"])
def test_what_the_transform_makes_is_ordered_too(first: str) -> None:
    device = LateDevice()
    twice = prefetcher(PinnedRows(8), device, transform=lambda batch: device.applied(lambda t: 2 * t, batch))
    found = train(iter(twice), device)
    device.finish(getattr(device, first))
    assert found == [2 * number for number in range(8)]


def test_the_transform_may_use_what_was_made_before_the_loop() -> None:
    device = LateDevice()
    mean = device.empty((4, 3))
    device.put(lambda there: there.fill_(100), mean)

    def subtract(batch: torch.Tensor) -> torch.Tensor:
        there = device.empty((4, 3))
        device.put(lambda out, one, other: torch.sub(one, other, out=out), there, batch, mean)
        return there

    found = train(iter(prefetcher(PinnedRows(3), device, transform=subtract)), device)
    device.finish(device.side)
    assert found == [-100, -99, -98]


def test_a_loader_may_make_its_batches_on_the_device() -> None:
    class Made(PinnedRows):
        def batch(self, number: int) -> Any:
            there = device.empty(self.shape)
            device.put(lambda tensor: tensor.fill_(number), there)
            return there

    device = LateDevice()
    twice = prefetcher(Made(6), device, transform=lambda batch: device.applied(lambda t: 2 * t, batch))
    found = train(iter(twice), device)
    device.finish(device.side)
    assert found == [0, 2, 4, 6, 8, 10]


def test_all_tensors_of_a_batch_are_kept() -> None:
    class Nested(PinnedRows):
        def batch(self, number: int) -> Any:
            return {"images": [self.tensor(number)], "boxes": (Boxes(self.tensor(number + 0.5)), "name")}

    class Boxes:
        def __init__(self, corners: torch.Tensor) -> None:
            self.corners = corners

        def to(self, there: Any, non_blocking: bool = False) -> Boxes:
            assert non_blocking
            return Boxes(there.copy(self.corners, None))

    device = LateDevice()
    found: list[float] = []
    epoch = iter(prefetcher(Nested(6), device))
    for batch in epoch:
        read(device, batch["images"][0], found)
        read(device, batch["boxes"][0].corners, found)
        assert batch["boxes"][1] == "name"
        del batch
        assert is_idle(epoch)
    device.finish(device.side)
    assert found == [number / 2 for number in range(12)]


def test_batches_that_are_kept_stay_what_they_are() -> None:
    device = LateDevice()
    kept = list(prefetcher(PinnedRows(6), device))
    found: list[float] = []
    for batch in kept:
        read(device, batch, found)
    device.finish(device.loops)
    assert found == list(range(6))


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_memory_is_bounded_when_the_loop_runs_ahead_of_the_device(depth: int) -> None:
    device = LateDevice()
    train(iter(prefetcher(PinnedRows(50), device, depth=depth)), device)
    assert device.num_blocks <= 2 * depth + 2
    device.finish()


def test_floating_point_numbers_are_cast() -> None:
    device = LateDevice()
    (batch,) = prefetcher([(torch.ones(2), torch.arange(3))], device, dtype=torch.float16)
    device.finish()
    assert [tensor.dtype for tensor in batch] == [torch.float16, torch.int64]
    assert [tensor.tolist() for tensor in batch] == [[1, 1], [0, 1, 2]]


# ---------------------------------------------------------------- who waits for whom


def test_the_ready_batch_is_handed_over_before_the_loader_is_asked() -> None:
    loader = PinnedRows(3)
    epoch = iter(prefetcher(loader, LateDevice(), depth=1))
    assert is_idle(epoch)
    loader.may_go_on.clear()
    next(epoch)
    assert wait_until(lambda: loader.num_asked == 2, timeout_seconds=SECONDS)
    loader.may_go_on.set()
    assert len(list(epoch)) == 2


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_at_most_that_number_of_batches_ahead(depth: int) -> None:
    loader = PinnedRows(20)
    epoch: Any = iter(prefetcher(loader, LateDevice(), depth=depth))
    for number in range(4):
        assert is_idle(epoch)
        assert loader.num_asked == number + depth
        next(epoch)
    epoch.close()


def test_the_thread_enters_the_device_first() -> None:
    class Asks(PinnedRows):
        def batch(self, number: int) -> Any:
            assert device.in_thread == [threading.current_thread()]
            return super().batch(number)

    device = LateDevice()
    assert len(list(prefetcher(Asks(3), device))) == 3


# ---------------------------------------------------------------- the end


def test_an_epoch_that_is_left_leaves_nothing() -> None:
    device = LateDevice()
    batches = prefetcher(PinnedRows(10), device)
    for _ in range(10):
        for _ in batches:
            break
        assert threading.active_count() == 1
        assert not any(callable(step) for step in device.side if getattr(step, "__name__", "") != "<lambda>")
        device.finish()
    with pytest.raises(ZeroDivisionError):
        for _ in batches:
            raise ZeroDivisionError
    device.finish()


def test_copies_are_waited_for_at_the_end() -> None:
    """The loader's memory may be given back as soon as the epoch is over."""
    device = LateDevice()
    loader = PinnedRows(4)
    for leave in (lambda epoch: epoch.close(), lambda epoch: list(epoch)):
        copied: list[Any] = []
        epoch: Any = iter(prefetcher(loader, device, transform=copied.append))
        next(epoch)
        assert is_idle(epoch)
        leave(epoch)
        values = [set(batch.reshape(-1).tolist()) for batch in copied]
        assert values == [{float(number)} for number in range(len(copied))]
        assert len(copied) >= 3


def test_the_loaders_iterator_is_closed_in_its_thread() -> None:
    def numbers() -> Iterator[torch.Tensor]:
        try:
            while True:
                yield torch.ones(1)
        finally:
            closed_in.append(threading.current_thread().name)

    closed_in: list[str] = []
    kept = numbers()
    for _ in prefetcher(kept, LateDevice()):
        break
    assert closed_in == ["prefeed-background"]


@pytest.mark.parametrize("device", [LateDevice(), None], ids=["device", "cpu"])
@pytest.mark.parametrize("where", ["loader", "transform"])
def test_an_error_comes_in_the_place_of_its_batch(where: str, device: LateDevice | None) -> None:
    def rows() -> Iterator[torch.Tensor]:
        yield from (torch.zeros(1), torch.zeros(1))
        if where == "loader":
            raise FileNotFoundError("3.jpg")
        yield torch.zeros(1)

    def transform(batch: torch.Tensor) -> torch.Tensor:
        nonlocal num_transformed
        num_transformed += 1
        if where == "transform" and num_transformed == 3:
            raise FileNotFoundError("3.jpg")
        return batch

    num_transformed = 0
    batches = prefeed.DevicePrefetcher(rows(), "cpu", transform)
    batches._streams = device
    epoch = iter(batches)
    assert len([next(epoch), next(epoch)]) == 2
    with pytest.raises(FileNotFoundError, match=r"3\.jpg"):
        next(epoch)
    with pytest.raises(StopIteration):
        next(epoch)


# ---------------------------------------------------------------- as apex's data_prefetcher


@pytest.mark.parametrize("device", [LateDevice(), None], ids=["device", "cpu"])
def test_next_gives_none_after_the_last_batch(device: LateDevice | None) -> None:
    """The loop of apex's example, and the one of those who keep a batch whole; each epoch begins with the next call."""
    pairs: Any = [(torch.full((2,), float(number)), torch.tensor([number])) for number in range(3)]
    batches = prefeed.DevicePrefetcher(pairs, "cpu")
    batches._streams = device
    for _ in range(2):
        seen = []
        images, labels = batches.next()
        while images is not None:
            seen.append(labels)
            images, labels = batches.next()
        assert labels is None
        if device is not None:
            device.finish()
        assert torch.cat(seen).tolist() == [0, 1, 2]
        assert threading.active_count() == 1

    whole = prefeed.DevicePrefetcher([{"image": image, "meta": "a"} for image, _ in pairs], "cpu")
    whole._streams = device
    for _ in range(2):
        num_batches = 0
        batch = whole.next()
        while batch is not None:
            num_batches += 1
            batch = whole.next()
        assert num_batches == 3
    assert prefeed.DevicePrefetcher([], "cpu").next() is None


def test_an_error_comes_from_next_too_and_ends_the_epoch() -> None:
    def rows() -> Iterator[list[torch.Tensor]]:
        yield [torch.zeros(1)]
        raise FileNotFoundError("2.jpg")

    batches = prefetcher(rows(), LateDevice())
    assert len(batches.next()) == 1
    with pytest.raises(FileNotFoundError, match=r"2\.jpg"):
        batches.next()
    assert batches.next() == (None,)


def test_what_next_began_ends_with_the_prefetcher_and_with_another_loop() -> None:
    batches = prefetcher(PinnedRows(10), LateDevice())
    batches.next()
    assert len(list(batches)) == 10
    assert batches.next() is not None
    del batches
    assert threading.active_count() == 1
    on_cpu = prefeed.DevicePrefetcher(iterator := iter([torch.ones(1)] * 3), "cpu")
    on_cpu.next()
    on_cpu.transform = lambda batch: batch
    alive = weakref.ref(on_cpu)
    del on_cpu
    assert alive() is None  # an epoch that was begun does not hold it
    assert len(list(iterator)) == 2


# ---------------------------------------------------------------- on the CPU


def test_on_the_cpu_batches_are_the_loaders() -> None:
    rows = [(torch.rand(2), torch.arange(2)) for _ in range(3)]
    for _ in range(2):
        found = list(prefeed.DevicePrefetcher(rows, "cpu"))
        assert all(
            one is other for had, given in zip(found, rows, strict=True) for one, other in zip(had, given, strict=True)
        )


def test_on_the_cpu_dtype_and_transform_are_applied() -> None:
    def double(batch: Any) -> Any:
        return {name: 2 * tensor for name, tensor in batch.items()}

    rows = [{"image": torch.ones(2), "label": torch.ones(1, dtype=torch.uint8)}]
    (batch,) = prefeed.DevicePrefetcher(rows, torch.device("cpu"), double, torch.bfloat16)
    assert batch["image"].tolist() == [2, 2]
    assert [batch["image"].dtype, batch["label"].dtype] == [torch.bfloat16, torch.uint8]


def test_on_the_cpu_there_is_no_thread() -> None:
    epoch = iter(prefeed.DevicePrefetcher([torch.ones(1)] * 3, "cpu"))
    next(epoch)
    assert threading.active_count() == 1


def test_this_machines_device_is_the_default() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert prefeed.DevicePrefetcher([]).device.type == expected


# ---------------------------------------------------------------- as a loader


@pytest.mark.parametrize("workers", [0, 1])
def test_around_a_loader(workers: int) -> None:
    rows = torch.arange(24.0).view(12, 2)
    loader = prefeed.DataLoader(prefeed.CachedDataset(rows), batch_size=4, num_workers=workers)
    batches = prefetcher(loader, LateDevice())
    for _ in range(2):
        found = list(batches)
        batches._streams.finish()  # type: ignore[union-attr]
        assert torch.equal(torch.cat(found), rows)
    assert len(batches) == 3
    assert batches.batch_size == 4
    assert batches.sampler is loader.sampler
    for _ in batches:
        break


def test_the_epoch_is_set_in_the_loader() -> None:
    class Shuffled(PinnedRows):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    loader = Shuffled(1)
    prefeed.DevicePrefetcher(loader, "cpu").set_epoch(3)
    assert loader.epoch == 3
    assert not hasattr(prefeed.DevicePrefetcher([], "cpu"), "set_epoch")


@pytest.mark.parametrize("num_seen", [0, 1, 3])
def test_the_state_is_that_of_the_batch_that_the_loop_has(num_seen: int) -> None:
    def loader() -> Any:
        return prefeed.DataLoader(prefeed.CachedDataset(torch.arange(12.0).view(6, 2)), batch_size=1)

    def values(batches: Any) -> list[float]:
        return [float(batch[0, 0]) for batch in batches]

    device = LateDevice()
    batches = prefetcher(loader(), device, resumable=True)
    epoch: Any = iter(batches)
    for _ in range(num_seen):
        assert is_idle(epoch)
        next(epoch)
    state = batches.state_dict()
    epoch.close()
    assert batches.state_dict() == state

    resumed = prefetcher(loader(), device, resumable=True)
    resumed.load_state_dict(state)
    found = list(resumed)
    device.finish()
    assert values(found) == [2.0 * number for number in range(num_seen, 6)]
    assert resumed.state_dict()["_iterator_finished"]


def test_a_state_that_would_skip_batches_is_refused() -> None:
    batches = prefetcher(prefeed.DataLoader(prefeed.CachedDataset(torch.zeros(6))), LateDevice())
    assert batches.state_dict()["_num_yielded"] == 0
    epoch: Any = iter(batches)
    with pytest.raises(ResumeError, match=r"up to 2 batches ahead of the loop.*resumable=True"):
        batches.state_dict()
    epoch.close()
    assert not hasattr(prefeed.DevicePrefetcher([]), "state_dict")


@pytest.mark.parametrize("depth", [0, -1])
def test_depth_is_at_least_one(depth: int) -> None:
    with pytest.raises(ValueError, match=f"depth must be a whole number, at least 1: {depth}"):
        prefeed.DevicePrefetcher([], depth=depth)


# ---------------------------------------------------------------- nested batches


Point = namedtuple("Point", ["x", "to"])


@dataclass(frozen=True)
class Item:
    image: torch.Tensor
    name: str


def test_packed_sequences_move_themselves() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    (batch,) = prefeed.DevicePrefetcher([{"text": packed}], "cpu")
    assert type(batch["text"]) is type(packed)
    assert torch.equal(batch["text"].data, packed.data)


def test_each_kind_stays_what_it_is() -> None:
    batch = (
        Point(torch.ones(1), torch.ones(1)),
        [Item(torch.ones(1), "a")],
        {"n": 3, "t": torch.ones(1)},
        None,
        "text",
    )
    (found,) = prefeed.DevicePrefetcher([batch], "cpu", dtype=torch.float64)
    point, items, mapping, nothing, text = found
    assert type(point) is Point
    assert type(items[0]) is Item
    assert (items[0].name, mapping["n"], nothing, text) == ("a", 3, None, "text")
    tensors = [point.x, point.to, items[0].image, mapping["t"]]
    assert {tensor.dtype for tensor in tensors} == {torch.float64}
