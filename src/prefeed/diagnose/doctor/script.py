"""The examination of an unchanged program: its own loop is fed, by way of ``DataLoader.__iter__``.

``prefeed doctor`` starts the program with ``PREFEED_DOCTOR`` in its environment; ``autostart/sitecustomize.py`` then has
``begin`` called once torch is imported. When the verdict is in the file, the loop is ended as ``sys.exit`` does it.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, SequentialSampler, get_worker_info

from prefeed.diagnose.doctor.examination import Examination
from prefeed.diagnose.doctor.verdict import Verdict, judge
from prefeed.errors import CannotExamineError
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


def begin() -> None:
    """Examine the first loop of this process that trains; torch is there."""
    order = msgspec.json.decode(os.environ[VARIABLE], type=Order)
    _Doctor(order).attend()


class _Patient:
    """A loader under examination; a loop that breaks off resumes it in its next epoch.

    Attributes:
        fed: Number of the iterator that is fed, or was the last.
        is_fed: An iterator has asked, and has not been let go.
    """

    def __init__(self, loader: TorchDataLoader[Any], examination: Examination) -> None:
        self.loader = loader
        self.examination = examination
        self.feed = examination.feed()
        self.fed = 0
        self.is_fed = False

    def is_of(self, loader: TorchDataLoader[Any]) -> bool:
        """Return True for the loader as it is known, and for one that is made again each epoch."""
        if loader.dataset is self.loader.dataset:
            return _kind_of(loader) == _kind_of(self.loader)
        return not self.is_fed and _kind_of(loader) == _kind_of(self.loader) and _is_as_long(loader, self.loader)


class _Doctor:
    """Feeds the loops over loaders that look like training's, until one has been fed enough; others are iterated as ever."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._patients: list[_Patient] = []
        self._is_busy = False
        self._torchs = TorchDataLoader.__iter__

    def attend(self) -> None:
        """Be in the way of every loader's iterator from now on."""
        torchs = self._torchs

        @functools.wraps(torchs)
        def iterate(loader: TorchDataLoader[Any]) -> Iterator[Any]:
            if self._is_busy or get_worker_info() is not None or not _trains(loader):
                return torchs(loader)
            return self._fed(loader)  # nothing begins before its first batch: some make iterators for a look only

        TorchDataLoader.__iter__ = iterate  # type: ignore[method-assign, assignment]
        atexit.register(self._leave)

    def _fed(self, loader: TorchDataLoader[Any]) -> Generator[Any, None, None]:
        patient = self._patient_of(loader)
        patient.fed += 1
        patient.is_fed, number = True, patient.fed
        if number > 1:
            patient.examination.goes_on()
        try:
            while number == patient.fed and (item := self._next(patient)):
                yield item[0]
        finally:
            patient.is_fed = patient.is_fed and number != patient.fed
        if patient.examination.measurement is not None:
            self._write(judge(patient.examination.measurement))
            raise SystemExit(0)
        yield from self._torchs(loader)  # another iterator over it is fed now, or it could not be examined

    def _next(self, patient: _Patient) -> tuple[Any] | None:
        """Return what the loop gets next; None: no more. Loaders that are iterated for it are not looked at."""
        self._is_busy = True
        try:
            return (next(patient.feed),)
        except (StopIteration, CannotExamineError):
            return None
        finally:
            self._is_busy = False

    def _write(self, verdict: Verdict) -> None:
        if _rank() == 0:
            out = Path(self._order.out)
            part = out.with_name(f"{out.name}.part")
            part.write_text(verdict.to_json())
            part.replace(out)

    def _patient_of(self, loader: TorchDataLoader[Any]) -> _Patient:
        for patient in self._patients:
            if patient.is_of(loader):
                return patient
        examination = Examination(
            loader,
            steps=self._order.steps,
            make_iterator=self._torchs,
            device=_device(),
            is_served=isinstance(loader, DataLoader),
            say=_say,
            directory=Path(self._order.out).parent,
        )
        self._patients.append(_Patient(loader, examination))
        return self._patients[-1]

    def _leave(self) -> None:
        """End what an unfinished examination started: the program ends, perhaps by an error that still holds the loop."""
        for patient in self._patients:
            with suppress(ValueError):  # a thread is in the midst of it
                patient.feed.close()


def _kind_of(loader: TorchDataLoader[Any]) -> tuple[Any, ...]:
    return type(loader.dataset), type(loader), type(loader.sampler), loader.batch_size, loader.num_workers


def _is_as_long(loader: TorchDataLoader[Any], other: TorchDataLoader[Any]) -> bool:
    try:
        return len(loader) == len(other)
    except TypeError:  # a stream does not say
        return True


def _trains(loader: TorchDataLoader[Any]) -> bool:
    """Return False for a loader in the order of its samples that is about to be iterated with no gradients: evaluation."""
    if torch.is_grad_enabled():
        return True
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        return sampler.shuffle
    return not isinstance(sampler, SequentialSampler)


def _device() -> torch.device | None:
    """Return the device that a training here copies its batches to; None: there is none."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def _rank() -> int:
    initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if initialised else int(os.environ.get("RANK", "0"))


def _say(text: str) -> None:
    if _rank() == 0:
        sys.stderr.write(f"prefeed doctor: {text}\n")
