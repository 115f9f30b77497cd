"""Epochs of this process's loaders that no server was told of: the last ones."""

from __future__ import annotations

from collections import deque

from prefeed.types import EPOCHS_KEPT, EpochWait

_epochs: deque[EpochWait] = deque(maxlen=EPOCHS_KEPT)


def record(epoch: EpochWait) -> None:
    """Keep what a loader without a server reports."""
    _epochs.append(epoch)


def recorded() -> tuple[EpochWait, ...]:
    """Return what was kept, the oldest first."""
    return tuple(_epochs)
