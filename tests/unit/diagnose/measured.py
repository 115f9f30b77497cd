"""Measurements made up for the tests of what is concluded from them."""

from __future__ import annotations

from typing import Any

from prefeed.diagnose.measurement import Costs, LoaderFacts, Measurement, Timing


def timing(step: float, *, waited: float = 0.0, steps: int = 10) -> Timing:
    """Return so many equal steps, of which the loop waits that many seconds each."""
    return Timing(steps=steps, seconds=steps * step, waited_seconds=steps * waited, each=[step] * steps)


def loader(**changes: Any) -> LoaderFacts:
    facts: dict[str, Any] = {
        "dataset": "Photos",
        "samples": 1000,
        "batch_size": 10.0,
        "num_workers": 2,
        "prefetch_factor": 2,
        "pin_memory": False,
        "is_prefeed": False,
        "cores": 2,
        "memory_bytes": 10**9,
    }
    return LoaderFacts(**facts | changes)


def costs(**changes: Any) -> Costs:
    found: dict[str, Any] = {
        "opening": 1.2,
        "reading": 0.2,
        "decoding": 0.4,
        "collating": 0.1,
        "transferring": 0.05,
        "file_bytes": 10**6,
    }
    return Costs(**found | changes)


def measurement(**changes: Any) -> Measurement:
    """Return a job that takes a second a batch, 0.1 s of it for computing, and waits mostly for files to be opened."""
    found: dict[str, Any] = {
        "loader": loader(),
        "as_is": timing(1.0, waited=0.9),
        "compute": timing(0.1),
        "data": timing(1.0, waited=1.0),
        "costs": costs(),
    }
    return Measurement(**found | changes)
