"""On a machine with CUDA: a checkpoint that was loaded onto the device is gone on with."""

from __future__ import annotations

import io
from typing import Any

import pytest

import prefeed

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: make gpu")


def test_a_state_that_map_location_put_on_the_device() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(40))

    def make() -> Any:
        return prefeed.DataLoader(dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))

    loader = make()
    iterator = iter(loader)
    next(iterator)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    expected = [batch.tolist() for (batch,) in iterator]
    file.seek(0)
    other = make()
    other.load_state_dict(torch.load(file, map_location="cuda"))
    assert [batch.tolist() for (batch,) in other] == expected
