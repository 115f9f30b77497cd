"""The examination of a program that nobody changed: its own loop is fed, by way of ``DataLoader.__iter__``.

``prefeed doctor`` starts the program with ``PREFEED_DOCTOR`` in its environment; ``autostart/sitecustomize.py`` then has
``begin`` called once torch is imported. When the verdict is in the file, the loop is ended as ``sys.exit`` would end it.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, get_worker_info

from prefeed.advice.examination import Examination
from prefeed.advice.verdict import judge
from prefeed.torch.loader import DataLoader

VARIABLE: Final = "PREFEED_DOCTOR"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What ``prefeed doctor`` wants of the program.

    Attributes:
        out: File for the verdict, as JSON.
        steps: Steps of each trial.
    """

    out: str
    steps: int


class Over(SystemExit):
    """Ends the program: nothing that it would do now would be of use."""


def begin() -> None:
    """Examine the first loop of this process that trains; torch is there."""
    order = msgspec.json.decode(os.environ[VARIABLE], type=Order)
    _Doctor(order).attend()


class _Doctor:
    """Feeds the loop over the first loader that looks like training's; the others are iterated as ever."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._patient: TorchDataLoader[Any] | None = None
        self._torchs = TorchDataLoader.__iter__

    def attend(self) -> None:
        """Be in the way of every loader's iterator from now on."""
        torchs = self._torchs

        @functools.wraps(torchs)
        def iterate(loader: TorchDataLoader[Any]) -> Iterator[Any]:
            if self._patient is not None or get_worker_info() is not None or not _trains(loader):
                return torchs(loader)
            self._patient = loader
            return self._fed(loader)

        TorchDataLoader.__iter__ = iterate  # type: ignore[method-assign, assignment]

    def _fed(self, loader: TorchDataLoader[Any]) -> Generator[Any, None, None]:
        examination = Examination(
            loader,
            steps=self._order.steps,
            make_iterator=self._torchs,
            device=_device(),
            is_served=isinstance(loader, DataLoader),
            say=_say,
        )
        try:
            with closing(examination.feed()) as feed:
                yield from feed
        finally:
            if examination.measurement is None:
                self._patient = None  # the loop broke off: it was not the one, or the next may get further
        assert examination.measurement is not None
        if _rank() == 0:
            out = Path(self._order.out)
            part = out.with_name(f"{out.name}.part")
            part.write_text(judge(examination.measurement).to_json())
            part.replace(out)
        raise Over(0)


def _trains(loader: TorchDataLoader[Any]) -> bool:
    """Return False for a loader in the order of its samples that is about to be iterated with no gradients: evaluation."""
    sampler = getattr(loader, "sampler", None)
    return (
        isinstance(sampler, RandomSampler | DistributedSampler)
        or torch.is_grad_enabled()
        or not isinstance(sampler, SequentialSampler)
    )


def _device() -> torch.device | None:
    """Return the device that a training here copies its batches to; None: there is none."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def _rank() -> int:
    initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if initialised else int(os.environ.get("RANK", "0"))


def _say(text: str) -> None:
    if _rank() == 0:
        sys.stderr.write(f"prefeed doctor: {text}\n")
