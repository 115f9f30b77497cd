"""The loader's own face."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import prefeed
from prefeed.config import resolve
from prefeed.torch import loader as module

pytestmark = pytest.mark.usefixtures("sandbox")


def test_signature_is_torchs_and_config() -> None:
    torchs = list(inspect.signature(TorchDataLoader.__init__).parameters.values())
    ours = list(inspect.signature(prefeed.DataLoader.__init__).parameters.values())
    assert ours[:-1] == torchs
    assert (ours[-1].name, ours[-1].kind) == ("config", inspect.Parameter.KEYWORD_ONLY)


def test_it_is_torchs_loader() -> None:
    assert issubclass(prefeed.DataLoader, TorchDataLoader)


def test_nothing_of_ours_is_in_it() -> None:
    loader: Any = prefeed.DataLoader([1, 2, 3])
    assert list(loader) == [torch.tensor([1]), torch.tensor([2]), torch.tensor([3])]

    assert vars(loader).keys() == vars(TorchDataLoader([1, 2, 3])).keys()
    assert vars(copy.copy(loader)) == vars(loader)


def test_given_settings_go_with_copies_and_pickles() -> None:
    config = resolve({"enabled": False})
    loader: Any = prefeed.DataLoader([1, 2, 3], config=config)

    for same in (loader, copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert module._attachment_of(same, explicit=True)._config == config
        assert [int(batch) for batch in same] == [1, 2, 3]


def test_a_copy_has_an_attachment_of_its_own() -> None:
    loader: Any = prefeed.DataLoader([1, 2, 3])
    other = copy.copy(loader)

    assert module._attachment_of(loader, explicit=True) is module._attachment_of(loader, explicit=True)
    assert module._attachment_of(other, explicit=True) is not module._attachment_of(loader, explicit=True)


def test_attachment_ends_with_its_loader() -> None:
    loader: Any = prefeed.DataLoader([1, 2, 3])
    attachment = weakref.ref(module._attachment_of(loader, explicit=True))
    del loader
    gc.collect()

    assert attachment() is None


class Unhashable(prefeed.DataLoader[Any]):
    """Equal by what is in it, as a dataclass is."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)


def test_loader_without_a_hash() -> None:
    loader, other = Unhashable([1, 2, 3]), Unhashable([4, 5])  # type: ignore[arg-type]
    assert [int(batch) for batch in loader] == [1, 2, 3]
    next(iter(loader))
    state = loader.state_dict()
    assert [int(batch) for batch in other] == [4, 5]
    loader.load_state_dict(state)
    assert [int(batch) for batch in loader] == [2, 3]
