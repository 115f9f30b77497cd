"""``prefeed.doctor``: the examination of a loop that the user gives as a loader and a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.diagnose.examination import Examination
from prefeed.diagnose.loader_clones import require_loader
from prefeed.diagnose.verdict import Verdict, judge
from prefeed.torch.loader import DataLoader

DEFAULT_STEPS: Final = 20


def doctor(
    loader: TorchDataLoader[Any],
    step: Callable[[Any], Any],
    *,
    steps: int = DEFAULT_STEPS,
    device: torch.device | str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """Return whether a training loop waits for data, for what, and what to do about it.

    The loop ``for batch in loader: step(batch)`` is run several times over a few batches: as it is, with the same batch
    again and again, with its files in memory, its samples in a stage cache, with more workers. So the model is trained a
    little, on some batches more than once: examine a copy, or throw it away.

    Args:
        loader: Any ``torch.utils.data.DataLoader``; it is iterated, and not changed.
        step: What is done with a batch: forward, backward, optimizer.
        steps: Steps of each trial that count.
        device: Where ``step`` copies the batch to: then the copy is timed, too. None: nowhere.
        say: Shows what is tried.

    Returns:
        The verdict; ``str(verdict)`` is what a person reads, ``verdict.to_json()`` the rest.

    Raises:
        TypeError: ``loader`` is no DataLoader, or ``step`` cannot be called.
        ValueError: ``steps`` is less than 2.
    """
    require_loader(loader, "doctor", step=step, needs_step=True)
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or steps < 2:
        raise ValueError(f"a trial needs at least 2 steps to be timed, a whole number, not {steps!r}")
    examination = Examination(
        loader,
        steps=steps,
        device=None if device is None else torch.device(device),
        is_served=isinstance(loader, DataLoader),
        say=say,
    )
    with closing(examination.feed()) as feed:
        for batch in feed:
            step(batch)
    assert examination.measurement is not None
    return judge(examination.measurement)
