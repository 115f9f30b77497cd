"""On a machine with CUDA: batches are normalised where they are."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: make gpu")


def test_runs_where_the_batch_is() -> None:
    from prefeed.vision import Normalize

    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    expected = Normalize()(levels)

    images, label = Normalize()((levels.cuda(), 1))

    assert (images.device.type, label) == ("cuda", 1)
    assert (images.cpu() - expected).abs().max() <= 1e-6
