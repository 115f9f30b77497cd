"""Going on in the middle of an epoch: what a loader saves, and how it finds the next batch.

The order of an epoch follows from the state of the random generators before it began. That state is saved, and the
number of batches that the loop has. To resume, the order is drawn again from the same state and the first batches are
left out of it: no sample is made twice, and nothing depends on how many were seen but their number.

A sampler of another class may draw each index when it is asked. What it drew for workers ahead of the loop is saved, and
comes first; then the sampler resumes, with the generators as the checkpoint restored them.

What else a sampler draws from, the state does not hold: whether it draws the same again is looked at, and said.

Keys of the state that torchdata's ``StatefulDataLoader`` and Accelerate know have the same names and meanings here.
"""

from __future__ import annotations

import copy
import itertools
import logging
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.errors import ResumeError
from prefeed.loaders.kinds import length_of
from prefeed.torch.nesting import map_tensors
from prefeed.torch.order import (
    WINDOW,
    ReadAhead,
    batch_size_of,
    drawn_order,
    is_readable_ahead,
    read_ahead,
    samplers_of,
    yields_integers,
)

State = dict[str, Any]
"""Plain values and tensors, as ``torch.load`` gives them back unasked."""


class GlobalStates:
    """The global generators as they are; they are put back once."""

    def __init__(self) -> None:
        self._states: State | None = global_states()

    def restore(self) -> None:
        """Put them back; a second call does nothing."""
        states, self._states = self._states, None
        if states is not None:
            set_global_states(states)


def states_of(loader: TorchDataLoader[Any]) -> State:
    """Return the state of all that the order of an epoch is drawn from."""
    samplers = samplers_of(loader._index_sampler)
    return global_states() | {
        "own": own_states(loader),
        "epochs": [_epoch_of(sampler) for sampler in samplers],
        "samplers": [copy.deepcopy(sampler.state_dict()) if _is_stateful(sampler) else None for sampler in samplers],
    }


def restore(loader: TorchDataLoader[Any], state: Mapping[str, Any]) -> None:
    """Put back all that ``states_of`` gave."""
    set_global_states(state)
    restore_own(loader, state)


def restore_own(loader: TorchDataLoader[Any], state: Mapping[str, Any]) -> None:
    """Put back what is the loader's or its samplers' own; the global generators stay."""
    set_own_states(loader, state["own"])
    samplers = samplers_of(loader._index_sampler)
    for sampler, epoch, own in zip(samplers, state["epochs"], state["samplers"], strict=True):
        if epoch is not None and epoch != sampler.epoch:
            _set_epoch(sampler, epoch)
        if own is not None:
            sampler.load_state_dict(own)


def global_states() -> State:
    """Return the states of the generators that everybody draws from: of torch, numpy and Python."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    version, words, next_gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "random": [version, torch.tensor(words), next_gauss],
    }


def set_global_states(state: Mapping[str, Any]) -> None:
    """Put back what ``global_states`` gave."""
    torch.set_rng_state(state["torch"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, words, next_gauss = state["random"]
    random.setstate((version, tuple(words.tolist()), next_gauss))


def own_states(loader: TorchDataLoader[Any]) -> list[torch.Tensor]:
    """Return the states of ``own_generators``."""
    return [generator.get_state() for generator in own_generators(loader)]


def set_own_states(loader: TorchDataLoader[Any], states: Iterable[torch.Tensor]) -> None:
    """Put back what ``own_states`` gave."""
    for generator, state in zip(own_generators(loader), states, strict=True):
        generator.set_state(state)


def own_generators(loader: TorchDataLoader[Any]) -> list[torch.Generator]:
    """Return the generators of the loader and its samplers, each once."""
    samplers = samplers_of(loader._index_sampler)
    found = [loader.generator, *(getattr(sampler, "generator", None) for sampler in samplers)]
    return list({id(generator): generator for generator in found if isinstance(generator, torch.Generator)}.values())


def _epoch_of(sampler: Any) -> int | None:
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) else None


def _set_epoch(sampler: Any, epoch: int) -> None:
    if callable(getattr(sampler, "set_epoch", None)):
        sampler.set_epoch(epoch)  # some draw the order here
    else:
        sampler.epoch = epoch


def _is_stateful(sampler: Any) -> bool:
    return callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None))


def are_same(one: Any, other: Any) -> bool:
    """Return True for equal states."""
    if isinstance(one, list):
        return all(itertools.starmap(are_same, zip(one, other, strict=True)))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


_log = logging.getLogger("prefeed")

_VERSION: Final = 1
_YIELDED: Final = "_num_yielded"
_FINISHED: Final = "_iterator_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is left of an epoch that is resumed.

    Attributes:
        batches: What the (batch) sampler still yields, or what reads it ahead; None: all, of which ``num_seen`` are to be
            thrown away.
        num_seen: Batches that the loop had before.
        drawn: The loader's own generators when the last of ``batches`` was drawn.
        ended: The same when the sampler was asked for one more: some draw again then. None: it draws as it is asked.
        is_in_place: The data set is a stream that resumes there by itself.
    """

    batches: Any | ReadAhead
    num_seen: int
    drawn: list[torch.Tensor]
    ended: list[torch.Tensor] | None
    is_in_place: bool = False


class Position:
    """Where one loader is: its iterator that was made last.

    **Threads**: the one that iterates the loader; ``state`` may be asked for in another between two batches.
    """

    def __init__(self) -> None:
        self._began: State | None = None
        self._num_yielded = 0
        self._finished = False
        self._loaded: State | None = None
        self._last: list[Any] = []
        self._ahead: deque[Any] = deque()
        self._planned: Any = None

    def watched(self, loader: TorchDataLoader[Any], planned: Any, rest: Rest | None) -> Any:
        """Return the sampler of an epoch: one that resumes, or can be resumed; None: the loader's own will do.

        Args:
            loader: Whose.
            planned: What yields its indices or batches; None: its own sampler.
            rest: Of an epoch that is resumed.
        """
        self._planned = planned
        sampler = planned if rest is None else _Resumed(planned, loader, rest)
        if is_readable_ahead(loader._index_sampler):
            return sampler
        return _CountedSampler(loader._index_sampler if sampler is None else sampler, self)

    def draws(self) -> deque[Any]:
        """Return where a sampler puts what it draws from now on: an earlier iterator may continue with its own."""
        self._last, self._ahead = [], deque()
        return self._ahead

    def advanced(self) -> None:
        """The loop has another batch."""
        self._num_yielded += 1
        if self._ahead:
            self._last = [self._ahead.popleft()]

    def ended(self) -> None:
        """The loop was told that there is no further batch."""
        self._finished = True

    def epoch_begins(self, loader: TorchDataLoader[Any], *, draws_seed: bool) -> None:
        """An epoch begins with its first batch.

        Args:
            loader: Whose.
            draws_seed: Torch draws the base seed of its workers before it asks the sampler.
        """
        self._began = states_of(loader) | {"draws_seed": draws_seed}
        self._num_yielded, self._finished = 0, False
        self.draws()

    @contextmanager
    def iterator_begins(self, loader: TorchDataLoader[Any]) -> Iterator[Rest | None]:
        """Inside, an iterator is made; gives what is left of the epoch when it is one that is resumed.

        The global generators are afterwards as they were before: a checkpoint saves those by itself. Generators that
        are the loader's or its sampler's own are as if the epoch had been iterated from its beginning.

        Args:
            loader: Whose.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is not None and "dataset" in loaded:
            stream: Any = loader.dataset
            stream.load_state_dict(loaded["dataset"])
        if loaded is not None and _is_where_it_began(loaded):
            restore_own(loader, loaded["began"])
            loaded = None
        if loaded is None or loaded[_FINISHED]:
            self.epoch_begins(loader, draws_seed=True)
            yield None
            return
        began, num_seen = loaded["began"], loaded[_YIELDED]
        here = GlobalStates()
        try:
            restore(loader, began)
            rest = _draw_rest(loader, loaded, here)
            set_global_states(began)  # the base seed of the workers is that of the epoch, too
            set_own_states(loader, began["own"])
            yield rest
            if not loader.num_workers:  # nothing was drawn yet; Lightning makes an iterator for an epoch that is over
                set_own_states(loader, loaded["now"]["own"])
        finally:
            here.restore()
        self._began, self._num_yielded, self._finished = began, num_seen, False
        self._last = self._last or loaded["last"]

    def state(self, loader: TorchDataLoader[Any]) -> State:
        """Return where the loader is, as plain values and tensors."""
        if self._loaded is not None:
            return self._loaded
        if any(isinstance(batch, Iterator) for batch in self._ahead):
            raise ResumeError(
                f"its sampler, a {type(loader._index_sampler).__name__}, yields batches that can be read only once, and "
                f"{len(self._ahead)} of them are on their way: they cannot be saved; let it yield lists"
            )
        now = states_of(loader)
        return {
            "version": _VERSION,
            _YIELDED: self._num_yielded,
            _FINISHED: self._finished,
            "batch_size": loader.batch_size,
            "num_batches": num_batches_of(loader),
            "last": _plain([batch for batch in self._last if not isinstance(batch, Iterator)]),
            "ahead": _plain(list(self._ahead)),
            "read_ahead": 0 if self._planned is None else self._planned.num_read_ahead,
            "began": self._began or now | {"draws_seed": True},
            "now": now,
        } | _position_of_stream(loader)

    def load(self, loader: TorchDataLoader[Any], state: Mapping[str, Any]) -> None:
        """Resume from there at the next iterator.

        Raises:
            ResumeError: It is another kind of state, or of a loader whose batches are others.
        """
        if not state:
            return
        if state.get("version") != _VERSION or "began" not in state:
            raise ResumeError(
                f"this is not a state of prefeed's DataLoader (its keys: {', '.join(map(str, state))}); "
                "load what its own state_dict() returned"
            )
        chain, began = samplers_of(loader._index_sampler), state["began"]
        for name, saved, own in (
            ("batch_size", state["batch_size"], loader.batch_size),
            ("num_batches", state["num_batches"], num_batches_of(loader)),
            ("number of samplers, one inside the other,", len(began["epochs"]), len(chain)),
            ("number of generators", len(began["own"]), len(own_generators(loader))),
        ):
            if saved != own:
                raise ResumeError(
                    f"the state was saved with {name} {saved}, and this loader's is {own}; "
                    "make the loader with the dataset, sampler, generator and batch size that it was saved with"
                )
        if ("dataset" in state) != bool(_position_of_stream(loader)):
            raise ResumeError(
                "only a loader without workers saves the position of prefeed.resumable: load its state into one without workers, "
                "or use torchdata's StatefulDataLoader, which saves it in each worker"
            )
        self._loaded = map_tensors(dict(state), torch.Tensor.cpu, lambda value: value)  # it may come by map_location
        if state[_FINISHED]:  # at once, and not when an iterator is made: who counts epochs, sets the next one before
            restore_own(loader, self._loaded["now"])


class _CountedSampler:
    """Yields what a (batch) sampler yields; the loader's position knows what was drawn."""

    def __init__(self, inner: Any, position: Position) -> None:
        self._inner = inner
        self._position = position

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        return self._noting(self._position.draws(), iter(self._inner))

    def _noting(self, drawn: deque[Any], batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            drawn.append(batch)
            yield batch


class _Resumed:
    """Yields what is left of an epoch; the loader's own generators are as if its sampler had been asked.

    Workers that are kept ask again, for a whole epoch: that is for the sampler to give.
    """

    def __init__(self, planned: Any, loader: TorchDataLoader[Any], rest: Rest) -> None:
        # Not the loader: a cycle with the iterator that it keeps would have workers ended by the garbage collector.
        self._index_sampler = loader._index_sampler
        self._generators = own_generators(loader)
        self._planned = planned
        self._rest: Rest | None = rest

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __iter__(self) -> Iterator[Any]:
        if self._rest is None:
            return iter(self._index_sampler if self._planned is None else self._planned)
        return self._resumed(self._rest)

    def _resumed(self, rest: Rest) -> Iterator[Any]:
        self._rest = None  # not before the first batch: torch makes two iterators where there are workers
        self._set(rest.drawn)
        yield from rest.batches if self._planned is None else self._planned
        if rest.ended is not None:
            self._set(rest.ended)

    def _set(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def _draw_rest(loader: TorchDataLoader[Any], loaded: State, here: GlobalStates) -> Rest:
    """Return what is left of the epoch; the generators are as they were when it began."""
    num_seen, ahead = loaded[_YIELDED], _unplain(loaded["ahead"])
    if isinstance(loader.dataset, IterableDataset):
        return Rest(
            batches=None, num_seen=num_seen, drawn=loaded["began"]["own"], ended=None, is_in_place="dataset" in loaded
        )
    num_batches, is_known = loaded["num_batches"], is_readable_ahead(loader._index_sampler)
    drawn: Iterator[Any] = iter(()) if is_known else iter(loader._index_sampler)  # as torch, before the base seed
    if loaded["began"]["draws_seed"]:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        if loader.num_workers and not is_known:
            drawn = iter(loader._index_sampler)  # torch makes another one
    if is_known and not ahead and (num_batches is None or _num_samples(loader, num_batches - num_seen) > WINDOW):
        reader = read_ahead(loader._index_sampler)
        _pass(iter(reader), num_seen, _unplain(loaded["last"]), loader)
        reader.skip(_num_samples(loader, num_seen))
        return Rest(batches=reader, num_seen=num_seen, drawn=own_states(loader), ended=None)
    drawn = iter(loader._index_sampler) if is_known else drawn
    _pass(drawn, num_seen + len(ahead), [*_unplain(loaded["last"]), *ahead], loader)
    if not is_known:  # what was read ahead of torch was drawn from the generators of then
        ahead += itertools.islice(drawn, loaded.get("read_ahead", 0))
        batches = itertools.chain(ahead, _drawn_from(here, drawn))
        return Rest(batches=batches, num_seen=num_seen, drawn=own_states(loader), ended=None)
    num_left = None if num_batches is None else max(0, num_batches - num_seen - len(ahead))
    rest = [*ahead, *itertools.islice(drawn, num_left)]
    now = own_states(loader)
    rest += drawn
    return Rest(batches=_regular(loader._index_sampler, rest), num_seen=num_seen, drawn=now, ended=own_states(loader))


def _position_of_stream(loader: TorchDataLoader[Any]) -> State:
    """Return the position of a ``prefeed.resumable`` in the loop's own process, which is that of the loop."""
    stream: Any = loader.dataset
    is_there = not loader.num_workers and getattr(stream, "resumes_exactly", False) is True
    return {"dataset": stream.state_dict()} if is_there else {}


def _num_samples(loader: TorchDataLoader[Any], num_batches: int) -> int:
    return num_batches * (batch_size_of(loader._index_sampler) or 1)


def _pass(drawn: Iterator[Any], number: int, expected: list[Any], loader: TorchDataLoader[Any]) -> None:
    """Let that many batches go by; warn when the last of them are not those that are expected."""
    last = list(deque(itertools.islice(drawn, number), maxlen=len(expected)))
    if not np.array_equal(drawn_order(last), drawn_order(expected)):
        _log.warning(
            "prefeed: a %s drew other batches when the epoch resumed than before it was interrupted: some samples may "
            "come twice, others not at all; give it state_dict and load_state_dict, or let it draw from torch's generators",
            type(samplers_of(loader._index_sampler)[-1]).__name__,
        )


def _regular(index_sampler: Any, batches: list[Any]) -> Any:
    """Return batches as a sampler of torch's that yields the same: how long they are is known of such a one."""
    if type(index_sampler) is not BatchSampler or not yields_integers(index_sampler.sampler):
        return batches
    indices = list(itertools.chain.from_iterable(batches))
    return BatchSampler(indices, index_sampler.batch_size, drop_last=False)


def _drawn_from(here: GlobalStates, drawn: Iterator[Any]) -> Iterator[Any]:
    """Yield what a sampler draws from now on: with the generators of now."""
    here.restore()
    yield from drawn


def num_batches_of(loader: TorchDataLoader[Any]) -> int | None:
    """Return how many batches an epoch has; None when that is not known."""
    return None if isinstance(loader.dataset, IterableDataset) else length_of(loader._index_sampler)


def _is_where_it_began(state: State) -> bool:
    """Return True when the epoch had no batch, and the global generators are as they were before: it just begins."""
    if state[_YIELDED] or state[_FINISHED]:
        return False
    now, began = global_states(), state["began"]
    return all(are_same(now[name], began[name]) for name in now)


def _plain(drawn: Any) -> Any:
    """Return what a sampler drew, numpy's numbers and arrays in it as tensors: torch loads nothing else unasked."""
    if isinstance(drawn, np.ndarray | np.generic) and drawn.dtype.kind in "iu":
        return {"numpy": torch.from_numpy(np.array(drawn))}
    return type(drawn)(map(_plain, drawn)) if type(drawn) in (list, tuple) else drawn


def _unplain(saved: Any) -> Any:
    if isinstance(saved, dict) and saved.keys() == {"numpy"}:
        return saved["numpy"].numpy()[()]
    return type(saved)(map(_unplain, saved)) if type(saved) in (list, tuple) else saved
