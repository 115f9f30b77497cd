"""Going on in the middle of an epoch: what a loader saves, and how it finds the next batch.

The order of an epoch follows from the state of the random generators before it began. That state is saved, and the
number of batches that the loop has. To resume, the order is drawn again from the same state and the first batches are
left out of it: no sample is made twice, and nothing depends on how many were seen but their number.

A sampler of another class may draw each index when it is asked. What it drew for workers ahead of the loop is saved, and
comes first; then the sampler goes on, with the generators as the checkpoint restored them.

Keys of the state that torchdata's ``StatefulDataLoader`` and Accelerate know have the same names and meanings here.
"""

from __future__ import annotations

import itertools
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
from prefeed.torch.order import is_readable_ahead, samplers_of, yields_integers

_VERSION: Final = 1
_YIELDED: Final = "_num_yielded"
_FINISHED: Final = "_iterator_finished"

State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is left of an epoch that is resumed.

    Attributes:
        batches: What the (batch) sampler still yields; None: all, of which ``num_seen`` are to be thrown away.
        num_seen: Batches that the loop had before.
        drawn: The loader's own generators when the last of ``batches`` was drawn.
        ended: The same when the sampler was asked for one more: some draw again then.
    """

    batches: Any
    num_seen: int
    drawn: list[torch.Tensor]
    ended: list[torch.Tensor]


class Position:
    """Where one loader is.

    **Threads**: the one that iterates the loader; ``state`` may be asked for in another between two batches.
    """

    def __init__(self) -> None:
        self._began: State | None = None
        self._num_yielded = 0
        self._finished = False
        self._loaded: State | None = None
        self._ahead: deque[Any] = deque()

    def watched(self, loader: TorchDataLoader[Any], planned: Any, rest: Rest | None) -> Any:
        """Return the sampler of an epoch: one that goes on, or can be gone on with; None: the loader's own will do.

        Args:
            loader: Whose.
            planned: What yields its indices or batches; None: its own sampler.
            rest: Of an epoch that goes on.
        """
        sampler = planned if rest is None else _Resumed(planned, loader, rest)
        if is_readable_ahead(loader._index_sampler):
            return sampler
        return _Watched(loader._index_sampler if sampler is None else sampler, self._ahead)

    def advanced(self) -> None:
        """The loop has another batch."""
        self._num_yielded += 1
        if self._ahead:
            self._ahead.popleft()

    def ended(self) -> None:
        """The loop was told that there is no further batch."""
        self._finished = True

    def epoch_begins(self, loader: TorchDataLoader[Any], *, draws_seed: bool) -> None:
        """An epoch begins with its first batch.

        Args:
            loader: Whose.
            draws_seed: Torch draws the base seed of its workers before it asks the sampler.
        """
        self._began = _states(loader) | {"draws_seed": draws_seed}
        self._num_yielded, self._finished = 0, False

    @contextmanager
    def iterator_begins(self, loader: TorchDataLoader[Any], *, trust: bool) -> Iterator[Rest | None]:
        """Inside, an iterator is made; gives what is left of the epoch when it is one that goes on.

        The global generators are afterwards as they were before: a checkpoint saves those by itself. Generators that
        are the loader's or its sampler's own are as if the epoch had been iterated from its beginning.

        Args:
            loader: Whose.
            trust: Its sampler may be read ahead, whatever its class.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded[_FINISHED]:
            _restore_own(loader, loaded["now"])
            loaded = None
        if loaded is None:
            self.epoch_begins(loader, draws_seed=True)
            yield None
            return
        began, num_seen = loaded["began"], loaded[_YIELDED]
        here = _Here()
        try:
            _restore(loader, began)
            rest = _draw_rest(loader, loaded, here, trust=trust)
            _set_global_states(began)  # the base seed of the workers is that of the epoch, too
            _set_own_states(loader, began["own"])
            yield rest
        finally:
            here.restore()
        self._began, self._num_yielded, self._finished = began, num_seen, False

    def state(self, loader: TorchDataLoader[Any]) -> State:
        """Return where the loader is, as plain values and tensors."""
        if self._loaded is not None:
            return self._loaded
        now = _states(loader)
        return {
            "version": _VERSION,
            _YIELDED: self._num_yielded,
            _FINISHED: self._finished,
            "batch_size": loader.batch_size,
            "num_batches": length_of(loader),
            "ahead": list(self._ahead),
            "began": self._began or now | {"draws_seed": True},
            "now": now,
        }

    def load(self, loader: TorchDataLoader[Any], state: Mapping[str, Any]) -> None:
        """Go on from there at the next iterator.

        Raises:
            ResumeError: It is another kind of state, or of a loader whose batches are others.
        """
        if not state:
            return
        if state.get("version") != _VERSION or "began" not in state:
            raise ResumeError(
                f"this is no state of prefeed's DataLoader (its keys: {', '.join(map(str, state))}); "
                "load what its own state_dict() returned"
            )
        for name, own in (("batch_size", loader.batch_size), ("num_batches", length_of(loader))):
            if state[name] != own:
                raise ResumeError(
                    f"the state was saved with {name} {state[name]}, and this loader's is {own}; "
                    "make the loader with the dataset, sampler and batch size that it was saved with"
                )
        self._loaded = dict(state)


class _Watched:
    """Yields what a (batch) sampler yields; who made it sees what was drawn."""

    def __init__(self, inner: Any, drawn: deque[Any]) -> None:
        self._inner = inner
        self._drawn = drawn

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        self._drawn.clear()
        for batch in self._inner:
            self._drawn.append(batch)
            yield batch


class _Resumed:
    """Yields what is left of an epoch; the loader's own generators are as if its sampler had been asked.

    Workers that are kept ask again, for a whole epoch: that is for the sampler to give.
    """

    def __init__(self, planned: Any, loader: TorchDataLoader[Any], rest: Rest) -> None:
        # Not the loader: a cycle with the iterator that it keeps would have workers ended by the garbage collector.
        self._index_sampler = loader._index_sampler
        self._generators = _own_generators(loader)
        self._planned = planned
        self._rest: Rest | None = rest

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __iter__(self) -> Iterator[Any]:
        rest, self._rest = self._rest, None
        if rest is None:
            yield from self._index_sampler if self._planned is None else self._planned
            return
        self._set(rest.drawn)
        yield from rest.batches if self._planned is None else self._planned
        self._set(rest.ended)

    def _set(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


class _Here:
    """The global generators as they are; they are put back once."""

    def __init__(self) -> None:
        self._states: State | None = _global_states()

    def restore(self) -> None:
        states, self._states = self._states, None
        if states is not None:
            _set_global_states(states)


def _draw_rest(loader: TorchDataLoader[Any], loaded: State, here: _Here, *, trust: bool) -> Rest:
    """Return what is left of the epoch; the generators are as they were when it began."""
    num_seen, ahead = loaded[_YIELDED], loaded["ahead"]
    if isinstance(loader.dataset, IterableDataset):
        began = loaded["began"]["own"]
        return Rest(batches=None, num_seen=num_seen, drawn=began, ended=began)
    if loaded["began"]["draws_seed"]:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    drawn = iter(loader._index_sampler)
    if not trust and not is_readable_ahead(loader._index_sampler):
        for _ in itertools.islice(drawn, num_seen + len(ahead)):
            pass
        now = _own_states(loader)
        return Rest(batches=itertools.chain(ahead, _drawn_from(here, drawn)), num_seen=num_seen, drawn=now, ended=now)
    for _ in itertools.islice(drawn, num_seen):
        pass
    num_batches = loaded["num_batches"]
    batches = list(itertools.islice(drawn, None if num_batches is None else num_batches - num_seen))
    now = _own_states(loader)
    batches += drawn
    return Rest(
        batches=_regular(loader._index_sampler, batches), num_seen=num_seen, drawn=now, ended=_own_states(loader)
    )


def _regular(index_sampler: Any, batches: list[Any]) -> Any:
    """Return batches as a sampler of torch's that yields the same: how long they are is known of such a one."""
    if type(index_sampler) is not BatchSampler or not yields_integers(index_sampler.sampler):
        return batches
    indices = list(itertools.chain.from_iterable(batches))
    return BatchSampler(indices, index_sampler.batch_size, drop_last=False)


def _drawn_from(here: _Here, drawn: Iterator[Any]) -> Iterator[Any]:
    """Yield what a sampler draws from now on: with the generators of now."""
    here.restore()
    yield from drawn


def length_of(loader: TorchDataLoader[Any]) -> int | None:
    """Return how many batches an epoch has; None when that is not known."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader._index_sampler)
    except Exception:  # noqa: BLE001 - it is the user's
        return None


def _states(loader: TorchDataLoader[Any]) -> State:
    """Return the state of all that the order of an epoch is drawn from."""
    samplers = samplers_of(loader._index_sampler)
    return _global_states() | {
        "own": _own_states(loader),
        "epochs": [_epoch_of(sampler) for sampler in samplers],
        "samplers": [sampler.state_dict() if _is_stateful(sampler) else None for sampler in samplers],
    }


def _restore(loader: TorchDataLoader[Any], state: Mapping[str, Any]) -> None:
    _set_global_states(state)
    _restore_own(loader, state)


def _restore_own(loader: TorchDataLoader[Any], state: Mapping[str, Any]) -> None:
    _set_own_states(loader, state["own"])
    samplers = samplers_of(loader._index_sampler)
    for sampler, epoch, own in zip(samplers, state["epochs"], state["samplers"], strict=True):
        if epoch is not None:
            sampler.epoch = epoch
        if own is not None:
            sampler.load_state_dict(own)


def _global_states() -> State:
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    version, words, next_gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "random": [version, torch.tensor(words), next_gauss],
    }


def _set_global_states(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, words, next_gauss = state["random"]
    random.setstate((version, tuple(words.tolist()), next_gauss))


def _own_states(loader: TorchDataLoader[Any]) -> list[torch.Tensor]:
    return [generator.get_state() for generator in _own_generators(loader)]


def _set_own_states(loader: TorchDataLoader[Any], states: Iterable[torch.Tensor]) -> None:
    for generator, state in zip(_own_generators(loader), states, strict=True):
        generator.set_state(state)


def _own_generators(loader: TorchDataLoader[Any]) -> list[torch.Generator]:
    """Return the generators of the loader and its samplers, each once."""
    samplers = samplers_of(loader._index_sampler)
    found = [loader.generator, *(getattr(sampler, "generator", None) for sampler in samplers)]
    return list({id(generator): generator for generator in found if isinstance(generator, torch.Generator)}.values())


def _epoch_of(sampler: Any) -> int | None:
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) else None


def _is_stateful(sampler: Any) -> bool:
    return callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None))
