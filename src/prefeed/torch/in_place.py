"""A loader whose epochs begin in place: its samples are read as without prefeed, until the loader joins the server.

    in place ─storage is slow, or was never measured; the server answers─→ joined ─next epoch, if it may be quick again─→ in place

``InPlace`` stands in for the dataset in the loader's processes; ``place`` is the loader's side. A worker that is spawned imports this
module, and what talks to a server only once the loader has joined one.
"""

from __future__ import annotations

import importlib
import logging
import operator
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data._utils.worker as torch_worker

from prefeed.client.in_place import NOTE_IN_FORCE, STATE_BYTES, PlaceState, ReadMeter
from prefeed.client.seen import ROW_BYTES, SeenFiles
from prefeed.config import Config
from prefeed.interception import (
    answers_everywhere,
    carrying,
    in_sample,
    original_open,
    put_open_back,
    reads_from,
    take_open_away,
)
from prefeed.loaders.kinds import length_of
from prefeed.run_summary import explain
from prefeed.sources.mounts import Roots
from prefeed.torch.order import can_be_read_again
from prefeed.torch.samples import SharedState, Staged, is_stacked, own_batch_method, rows_of, samples_of, shared_tensor

if TYPE_CHECKING:
    from prefeed.client.access import AccessMap
    from prefeed.loaders.access import Opening
    from prefeed.torch.serving import Served

_log = logging.getLogger("prefeed")

_AT_ONCE = 16
"""Samples that are made without a look, once storage is known to be quick."""

_MOST_FREELY = 256
"""A batch of more samples looks in its midst, too, whether the loader has joined."""


class InPlace(Staged):
    """A map-style dataset whose samples are read in place, or through a reader once the loader has joined the server.

    Each sample looks whether that is so, or each 16th while storage is quick. Bytes are those that the dataset itself would read, or
    those of ``Served``.

    **Threads and processes**: made in the main process, used in workers: forked, spawned or served; one thread at a time.
    """

    def __init__(self, inner: Any, opening: Opening, config: Config, *, num_workers: int) -> None:
        super().__init__(inner)
        is_shared = num_workers > 0
        state = shared_tensor(STATE_BYTES, torch.uint8, is_shared=is_shared)
        self.state: PlaceState = PlaceState(state, num_rows=num_workers)
        self.shared: SharedState = SharedState(is_shared=is_shared)
        self.seen: SeenFiles | None = None
        if not opening.names_files and not opening.is_of_prefeed:
            self.seen = SeenFiles(shared_tensor(max(1, num_workers) * ROW_BYTES, torch.uint8, is_shared=is_shared))
        self._starts, self._indices = opening.starts, opening.indices
        self._roots = None if opening.names_files else Roots.of(config)
        self._begin_anew()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_served", "_meter")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._note_number = 0
        self._served: Served | None = None
        self._meter: ReadMeter | None = None
        self._is_free = False

    def adopt(self, served: Served, access: AccessMap) -> None:
        """The loader has joined: this process reads through ``served``, all others through readers of their own.

        Args:
            served: Of the loader's process.
            access: What it was made from.
        """
        note = replace(access, ids=None, starts=None, indices=None, cached=None)
        number = self.state.put_note(pickle.dumps((note, served.reader.consumer)))
        self._pid, self._served, self._note_number = os.getpid(), served, number
        self.state.join(number)

    def __getitem__(self, index: Any) -> Any:
        meter = self._free_meter()
        if meter is not None:
            return self._made_freely(meter, [index])[0]
        served = self._joined()
        if served is not None:
            return served[index]
        with self._uncached(), self._measured(1):
            return self.inner[index]

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the samples of a batch, as torch makes them."""
        meter = self._free_meter()
        if meter is not None and type(indices) is list and len(indices) <= _MOST_FREELY:
            return self._made_freely(meter, indices, getattr(self.inner, "__getitems__", None))
        served = self._joined()
        if served is not None:
            return served.__getitems__(indices)
        with self._uncached():
            batch = own_batch_method(self.inner, indices)
            if batch is not None:
                with self._measured(length_of(indices) or 0):
                    return batch(indices)
            if is_stacked(self.inner) or not can_be_read_again(indices):
                with self._measured(length_of(indices) or 0):
                    return samples_of(self.inner, rows_of(indices)[0], lambda _: _NOTHING)
            try:
                return self._one_by_one(iter(indices))
            finally:
                if self._served is not None and self.state.note_number:
                    self._served.batch_made()  # the loader has joined meanwhile

    def _free_meter(self) -> ReadMeter | None:
        """Return this process's meter while nothing of the next batch has to be answered or measured; else None."""
        meter = self._meter
        if meter is None or not meter.is_free() or self._pid != os.getpid():
            return None
        return meter if self._is_free else None

    def _made_freely(
        self, meter: ReadMeter, indices: list[Any], batch: Callable[[Any], list[Any]] | None = None
    ) -> list[Any]:
        """Return samples as torch makes them: nothing is around them but what counts them.

        Args:
            meter: Of this process, while it is free.
            indices: Of the batch.
            batch: The dataset's own method that makes a batch, if it has one.
        """
        inner, rows, taken_away = self.inner, iter(indices), take_open_away()
        try:
            return batch(indices) if batch else [inner[index] for index in rows]
        finally:
            if taken_away:
                put_open_back(taken_away)
            # A sample that failed may have opened its files, and those before it have.
            meter.made_freely(len(indices) - (0 if batch else operator.length_hint(rows)))

    def _one_by_one(self, indices: Iterator[Any]) -> list[Any]:
        inner, words, meter, samples = self.inner, self.state.words, self._reads, []
        if meter.batch_begins():
            with reads_from(meter), carrying(meter):
                for index in indices:
                    meter.opened.clear()
                    samples.append(inner[index])
                    if self.seen is not None and meter.opened:
                        self._saw(index, meter.opened)
                    if words[NOTE_IN_FORCE] or not meter.goes_on():
                        break
        num_watched = len(samples)
        left = self._until_joined(indices, samples)
        meter.made(len(samples), num_watched=num_watched)
        for index in left:
            served = self._joined()
            if served is not None:
                with served.sample(index):
                    samples.append(inner[index])
            else:
                samples.append(inner[index])
        return samples

    def _saw(self, index: Any, paths: list[str]) -> None:
        """Note what a sample opened, for the plan of a later epoch."""
        assert self.seen is not None
        with suppress(TypeError, IndexError, ValueError):  # whatever the dataset takes for an index
            number, indices = operator.index(index), self._indices
            sample = number % len(self.inner) if indices is None else int(indices[number])
            info = torch_worker._worker_info
            self.seen.add(0 if info is None else info.id, sample, tuple(dict.fromkeys(paths)))

    def _until_joined(self, indices: Iterator[Any], samples: list[Any]) -> Iterator[Any]:
        """Make the samples of a batch with nothing in their way; return the indices that are left when the loader joins."""
        inner, words, note = self.inner, self.state.words, NOTE_IN_FORCE
        at_once = _AT_ONCE if self._reads.is_quick else 1
        with original_open():
            while not words[note]:
                made = [inner[index] for index in islice(indices, at_once)]
                samples += made
                if len(made) < at_once:
                    break
        return indices

    def _uncached(self) -> AbstractContextManager[None]:
        """Inside it, samples are made whose files no reader answers."""
        if answers_everywhere():
            self._is_free = False
            return reads_from(None)
        self._is_free = not explain.is_on()
        return _NOTHING if self._is_free else in_sample()

    @contextmanager
    def _measured(self, num_samples: int) -> Iterator[None]:
        """Inside it, samples are made; the first files that they open are measured, if it is time for that."""
        meter = self._reads
        if meter.batch_begins():
            with reads_from(meter), carrying(meter):
                yield
            meter.made(num_samples, num_watched=num_samples)
            return
        with original_open():
            yield
        meter.made(num_samples)

    @property
    def _reads(self) -> ReadMeter:
        if self._meter is None or self._pid != os.getpid():
            self._begin_process_anew()
            info = torch_worker._worker_info
            self._meter = ReadMeter(self.state, self._roots, row=0 if info is None else info.id)
        return self._meter

    def _begin_process_anew(self) -> None:
        """In a forked worker: readers of the loader's process are not this one's."""
        if self._pid != os.getpid():
            self._begin_anew()

    def _joined(self) -> Served | None:
        """Return what samples are read through; None while they are read in place."""
        number = self.state.note_number
        if not number:
            return None
        self._begin_process_anew()
        if number != self._note_number:
            self._open(number)
        return self._served

    def _open(self, number: int) -> None:
        """Read through what the loader has opened; where that cannot be opened here, continue in place."""
        note = self.state.note()
        if note is None:
            return  # it is about to be seen
        before, self._served, self._note_number = self._served, None, number
        if before is not None:
            before.reader.close()
            if before.writes is not None:
                before.writes.end()
        try:
            access, consumer = pickle.loads(note)  # noqa: S301 - of the process that started this one, in memory of both
            access = replace(access, starts=self._starts, indices=self._indices)
            # Not imported before: workers may read in place to their end.
            serving = importlib.import_module("prefeed.torch.serving")
            self._served = serving.Served(self.inner, access, consumer, shared=self.shared)
            self._served.begin_process()
        except Exception as err:  # noqa: BLE001 - whatever it is, the sample can be read in place
            self._served = None
            _log.warning("prefeed: a worker reads in place, because it cannot open what the loader has opened: %s", err)


_NOTHING = nullcontext()
