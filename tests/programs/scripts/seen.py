"""What a program saw and made, so that two runs of it can be compared: no part of what is tested."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Seen:
    """Batches and losses, in their order, as one digest each; ``save`` adds the weights.

    Args:
        out: Directory that ``save`` writes ``seen.json`` to.
    """

    def __init__(self, out: str) -> None:
        self._out = Path(out)
        self._batches = hashlib.sha256()
        self._num_batches = 0
        self._losses: list[str] = []

    def batch(self, *parts: Any) -> None:
        """Add one batch: tensors, arrays, numbers, texts, or lists and dicts of them."""
        self._num_batches += 1
        for part in parts:
            _add(self._batches, part)

    def loss(self, value: torch.Tensor | float) -> None:
        """Add one loss, to its last bit."""
        self._losses.append(float(torch.as_tensor(value).detach()).hex())

    def save(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write everything, with a digest of the weights."""
        digest = hashlib.sha256()
        for name in sorted(weights):
            _add(digest, name)
            _add(digest, weights[name])
        found = {
            "batches": self._batches.hexdigest(), "num_batches": self._num_batches, "losses": self._losses,
            "weights": digest.hexdigest(),
        }  # fmt: skip
        self._out.mkdir(parents=True, exist_ok=True)
        (self._out / "seen.json").write_text(json.dumps(found))


def _add(digest: Any, part: Any) -> None:
    if isinstance(part, torch.Tensor):
        part = part.detach().cpu().contiguous().view(torch.uint8).numpy() if part.dim() else part.item()
    if isinstance(part, np.ndarray):
        digest.update(np.ascontiguousarray(part).tobytes())
    elif isinstance(part, Mapping):
        for name in sorted(part):
            _add(digest, name)
            _add(digest, part[name])
    elif isinstance(part, list | tuple):
        for item in part:
            _add(digest, item)
    else:
        digest.update(repr(part).encode())
