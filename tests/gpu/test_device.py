"""On a machine with CUDA: batches of a ``DevicePrefetcher`` are right, whatever the device is busy with."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import prefeed

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: make gpu")

SHAPE = (32, 3, 64, 64)
NUM_BATCHES = 40
BUSY_CYCLES = 20_000_000  # some 10 ms


class Batches:
    """Batches all of whose values are their number, from pinned memory or not."""

    def __init__(self, *, pinned: bool) -> None:
        self.pinned = pinned

    def __len__(self) -> int:
        return NUM_BATCHES

    def __iter__(self) -> Any:
        for number in range(NUM_BATCHES):
            batch = torch.full(SHAPE, float(number))
            yield {"image": batch.pin_memory() if self.pinned else batch, "number": number}


def values(batch: Any) -> Any:
    """Return the lowest and the highest value, on the device."""
    return torch.stack((batch.min(), batch.max()))


def check(found: list[Any], *, factor: float = 1) -> None:
    expected = [[factor * number] * 2 for number in range(NUM_BATCHES)]
    assert [pair.tolist() for pair in found] == expected


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_busy_loop_reads_each_batch(pinned: bool, depth: int) -> None:
    """The loop asks for more than the device has done: memory that was used again too early would be seen."""
    batches = prefeed.DevicePrefetcher(Batches(pinned=pinned), "cuda", depth=depth)
    for _ in range(3):
        found = []
        for batch in batches:
            torch.cuda._sleep(BUSY_CYCLES)
            found.append(values(batch["image"]))
            del batch
        check(found)


def test_a_slow_transform_is_waited_for() -> None:
    def twice(batch: Any) -> Any:
        torch.cuda._sleep(BUSY_CYCLES)
        return {"image": batch["image"] * factor}

    factor = torch.full((1,), 2.0, device="cuda")
    batches = prefeed.DevicePrefetcher(Batches(pinned=True), transform=twice, dtype=torch.float32)
    check([values(batch["image"]) for batch in batches], factor=2)


def test_the_loop_may_have_a_stream_of_its_own() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        found = []
        for batch in prefeed.DevicePrefetcher(Batches(pinned=True), "cuda"):
            torch.cuda._sleep(BUSY_CYCLES)
            found.append(values(batch["image"]))
            del batch
        check(found)


def test_batches_of_workers_from_pinned_slots() -> None:
    rows = torch.arange(256.0)[:, None, None].expand(256, 64, 64).contiguous()
    loader = prefeed.DataLoader(
        prefeed.CachedDataset(rows), batch_size=32, num_workers=2, pin_memory=True, persistent_workers=True
    )
    for _ in range(4):
        found = []
        for batch in prefeed.DevicePrefetcher(loader, "cuda", dtype=torch.float64):
            torch.cuda._sleep(BUSY_CYCLES)
            found.append(batch[:, 0, 0].clone())
            assert batch.dtype is torch.float64
            del batch
        assert torch.cat(found).tolist() == list(range(256))


def test_device_memory_is_bounded() -> None:
    list(map(values, (batch["image"] for batch in prefeed.DevicePrefetcher(Batches(pinned=True), "cuda"))))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for batch in prefeed.DevicePrefetcher(Batches(pinned=True), "cuda", depth=2):
        torch.cuda._sleep(BUSY_CYCLES)
        del batch
    batch_bytes = 4 * torch.Size(SHAPE).numel()
    assert torch.cuda.max_memory_allocated() - before <= 7 * batch_bytes


def test_an_epoch_that_is_left_leaves_nothing() -> None:
    threads = threading.active_count()
    for _ in range(20):
        for _ in prefeed.DevicePrefetcher(Batches(pinned=False), "cuda"):
            break
        assert threading.active_count() == threads


def test_copies_run_beside_the_loops_work() -> None:
    """On the device: the copy of a batch begins before the step before it has ended."""
    begun = []

    def mark(batch: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        begun.append(event)
        return batch

    ended = []
    for batch in prefeed.DevicePrefetcher(Batches(pinned=True), "cuda", transform=mark):
        torch.cuda._sleep(BUSY_CYCLES)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        ended.append(event)
        del batch
    torch.cuda.synchronize()
    overlapped = [copied.elapsed_time(step) > 0 for copied, step in zip(begun[1:], ended, strict=False)]
    assert sum(overlapped) > len(overlapped) // 2
