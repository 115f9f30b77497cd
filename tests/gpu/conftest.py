"""What CUDA and torch keep for good on a machine with a device is no test's leak."""

from __future__ import annotations

import atexit
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def _cuda_has_started() -> None:
    """Start CUDA before the first test: its driver opens files that it keeps."""
    if torch.cuda.is_available():
        (torch.ones(8).pin_memory().cuda() + 1).cpu()
        torch.cuda.Stream().synchronize()


@pytest.fixture(autouse=True)
def _no_worker_is_kept() -> Iterator[None]:
    """Let go of the workers that torch ends at exit, and of their pipes: persistent ones of loaders that pin. (2026, torch 2.11)"""
    yield
    atexit.unregister(torch.utils.data.dataloader._MultiProcessingDataLoaderIter._clean_up_worker)
