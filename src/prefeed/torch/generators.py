"""What the order of an epoch is drawn from: generators and samplers, their states saved and put back."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.torch.order import samplers_of

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
