"""What a training loop can see of a loader, step by step, so that two loaders can be compared."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

EPOCHS = 3


@dataclass
class Setup:
    """One way to call a loader.

    Attributes:
        kwargs: Arguments of the loader.
        generators: The user's own generators, whose states belong to what is compared.
        probe: Anything else to be looked at after each step.
        before_epoch: Called with the epoch's number before it begins.
    """

    kwargs: dict[str, Any]
    generators: list[torch.Generator] = field(default_factory=list)
    probe: Callable[[], Any] = lambda: None
    before_epoch: Callable[[int], None] = lambda epoch: None


def seed_all(seed: int = 7) -> None:
    """Seed torch, numpy and random."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def digest(value: Any) -> str:
    """Return a short name of a value, equal for equal bytes in the same structure."""
    hasher = hashlib.sha256()
    for part in _parts(value):
        hasher.update(part)
    return hasher.hexdigest()[:16]


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.contiguous().numpy().tobytes()
    elif isinstance(value, dict):
        for key in value:
            yield repr(key).encode()
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__}{len(value)}".encode()
        for item in value:
            yield from _parts(item)
    else:
        yield repr(value).encode()


def generator_states(generators: list[torch.Generator]) -> dict[str, str]:
    """Return the states of the global generators, and of these."""
    kind, keys, *rest = np.random.get_state()
    states = {  # after each step: numpy takes 4 ms to write 624 numbers
        "torch": digest(torch.get_rng_state()),
        "numpy": digest([kind, keys.tobytes(), repr(rest)]),
        "random": digest(repr(random.getstate())),
    }
    return states | {f"user {i}": digest(g.get_state()) for i, g in enumerate(generators)}


def observe(loader: Any, setup: Setup, *, epochs: int = EPOCHS, steps: int | None = None) -> list[Any]:
    """Run epochs and return everything visible after each step; ``steps``: break off each epoch after so many."""
    seen: list[Any] = []

    def look(event: str, batch: Any = None) -> None:
        seen.append((event, digest(batch), generator_states(setup.generators), setup.probe()))

    for epoch in range(epochs):
        setup.before_epoch(epoch)
        iterator = iter(loader)
        look(f"epoch {epoch} begins")
        for step, batch in enumerate(iterator):
            look(f"epoch {epoch} step {step}", batch)
            if steps is not None and step + 1 == steps:
                break
        look(f"epoch {epoch} ends")
        del iterator
    return seen


def assert_same(expected: list[Any], actual: list[Any]) -> None:
    """Fail with the first step that differs."""
    for one, other in zip(expected, actual, strict=False):
        assert one == other
    assert len(expected) == len(actual)
