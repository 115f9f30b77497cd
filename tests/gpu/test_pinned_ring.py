"""On a machine with CUDA: batches of a loader with ``pin_memory`` are pinned, and right on the device."""

from __future__ import annotations

from typing import Any

import pytest

import prefeed

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: make gpu")

SHAPE = (3, 64, 64)
NUM_SAMPLES = 256


class Rows:
    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full(SHAPE, float(index)), index


def make_loader(**kwargs: Any) -> Any:
    return prefeed.DataLoader(prefeed.CachedDataset(Rows()), batch_size=32, num_workers=2, pin_memory=True, **kwargs)


def test_batches_are_pinned_slots() -> None:
    held = {batch.data_ptr() for batch, _ in make_loader() if batch.is_pinned()}
    assert 0 < len(held) < NUM_SAMPLES // 32  # slots come again


def test_a_copy_that_does_not_block_reads_what_was_there() -> None:
    """Each batch is dropped while its copy waits behind other work on a stream of its own."""
    stream = torch.cuda.Stream()
    loader = make_loader(persistent_workers=True)
    for _ in range(5):
        copies = []
        for batch, labels in loader:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(50_000_000)
                copies.append((batch.to("cuda", non_blocking=True), labels))
            del batch
        torch.cuda.synchronize()
        for on_device, labels in copies:
            expected = labels.to("cuda", torch.float32)[:, None, None, None].expand_as(on_device)
            assert torch.equal(on_device, expected)
