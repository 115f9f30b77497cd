"""CUDA is started once, before the first test: what its driver opens and keeps is no test's leak."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def _cuda_has_started() -> None:
    if torch.cuda.is_available():
        (torch.ones(8).pin_memory().cuda() + 1).cpu()
        torch.cuda.Stream().synchronize()
