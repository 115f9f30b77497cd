"""torch's own class, changed in place and back."""

from __future__ import annotations

import abc
import copy
import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data
import torch.utils.data.dataloader
from torch.utils.data import DataLoader as BoundEarlier
from torch.utils.data import IterableDataset, TensorDataset

import prefeed
from prefeed.torch import attachment, patch
from prefeed.torch import loader as module


@pytest.fixture(autouse=True)
def _no_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is mounted here: nothing is known about the files of a list."""
    monkeypatch.setenv("PREFEED_ROOTS", "")


@pytest.fixture
def enabled() -> Iterator[None]:
    patch.enable()
    yield
    patch.disable()


def test_disable_leaves_nothing() -> None:
    before = dict(vars(BoundEarlier))
    names = dict(vars(torch.utils.data)), dict(vars(torch.utils.data.dataloader))
    patch.enable()
    patch.enable()
    changed = {name for name, value in vars(BoundEarlier).items() if before[name] is not value}
    patch.disable()

    assert changed == {"_get_iterator", "__init__"}
    assert all(vars(BoundEarlier)[name] is value for name, value in before.items())
    assert vars(BoundEarlier).keys() == before.keys()
    assert (dict(vars(torch.utils.data)), dict(vars(torch.utils.data.dataloader))) == names
    patch.disable()
    assert all(vars(BoundEarlier)[name] is value for name, value in before.items())


def test_what_somebody_else_put_over_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = vars(BoundEarlier)["_get_iterator"]
    monkeypatch.setattr(BoundEarlier, "_get_iterator", torchs)  # put back after the test
    patch.enable()
    ours = vars(BoundEarlier)["_get_iterator"]

    def theirs(loader: Any) -> Any:
        return ours(loader)

    BoundEarlier._get_iterator = theirs  # type: ignore[method-assign]
    patch.disable()

    assert vars(BoundEarlier)["_get_iterator"] is theirs
    loader = BoundEarlier([1, 2])  # type: ignore[arg-type]
    assert [int(batch) for batch in loader] == [1, 2]
    assert module._attachments.get(loader) is None


class Derived(BoundEarlier[Any]):
    pass


class Overriding(BoundEarlier[Any]):
    """As torchdata's StatefulDataLoader: makes iterators of its own."""

    def _get_iterator(self) -> Any:
        return torch.utils.data.dataloader._SingleProcessDataLoaderIter(self)


class Mixed(prefeed.DataLoader[Any], abc.ABC):
    pass


def test_isinstance_while_enabled() -> None:
    plain, derived, explicit = BoundEarlier([1]), Derived([1]), prefeed.DataLoader([1])  # type: ignore[arg-type]
    assert [isinstance(each, prefeed.DataLoader) for each in (plain, derived, explicit)] == [False, False, True]
    patch.enable()
    assert all(isinstance(each, prefeed.DataLoader) for each in (plain, derived, explicit))
    assert not isinstance(plain, Mixed)
    assert not isinstance([1], prefeed.DataLoader)
    assert type(plain) is torch.utils.data.DataLoader
    patch.disable()
    assert [isinstance(each, prefeed.DataLoader) for each in (plain, derived, explicit)] == [False, False, True]


@pytest.mark.usefixtures("enabled")
def test_issubclass_says_what_was_derived() -> None:
    assert issubclass(Mixed, prefeed.DataLoader)
    assert not issubclass(BoundEarlier, prefeed.DataLoader)
    assert not issubclass(Derived, prefeed.DataLoader)


@pytest.mark.usefixtures("enabled")
def test_loaders_copy_and_pickle_as_torchs() -> None:
    loader = BoundEarlier(TensorDataset(torch.arange(3)))
    plain = vars(loader).keys()
    list(loader)
    again = pickle.loads(pickle.dumps(loader))

    assert vars(loader).keys() == plain
    assert type(again) is type(loader)
    assert vars(copy.copy(loader)) == vars(loader)
    assert [batch for (batch,) in again] == [torch.tensor([0]), torch.tensor([1]), torch.tensor([2])]


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("dataset", [Numbers(), [0, 1, 2]], ids=["iterable", "list"])
def test_what_cannot_be_helped_is_said_once(dataset: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="prefeed"):
        loader = BoundEarlier(dataset)
        for _ in range(2):
            assert [int(batch) for batch in loader] == [0, 1, 2]

    (line,) = [record for record in caplog.records if "not used for this loader" in record.getMessage()]
    assert line.levelno == logging.INFO


@pytest.mark.usefixtures("enabled")
def test_explicit_loader_is_attached_once(caplog: pytest.LogCaptureFixture) -> None:
    loader = prefeed.DataLoader([0, 1, 2])  # type: ignore[arg-type]
    assert [int(batch) for batch in loader] == [0, 1, 2]

    (line,) = [record for record in caplog.records if "not used for this loader" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert module._attachment_of(loader, explicit=False).explicit


@pytest.mark.usefixtures("enabled")
def test_class_with_iterators_of_its_own_is_left_alone() -> None:
    loader = Overriding([0, 1, 2])  # type: ignore[arg-type]

    assert [int(batch) for batch in loader] == [0, 1, 2]
    assert module._attachments.get(loader) is None


@pytest.mark.usefixtures("enabled")
def test_whatever_happens_to_us_is_not_noticed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(attachment, "access_of", fail)
    with caplog.at_level(logging.INFO, logger="prefeed"):
        assert [int(batch) for batch in BoundEarlier([0, 1])] == [0, 1]  # type: ignore[arg-type]
    assert "RuntimeError: no" in caplog.text
    with pytest.raises(RuntimeError, match="no"):
        list(prefeed.DataLoader([0, 1]))  # type: ignore[arg-type]


@pytest.mark.usefixtures("enabled")
def test_bad_setting_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_MEMORY", "much")
    with caplog.at_level(logging.INFO, logger="prefeed"):
        assert [int(batch) for batch in BoundEarlier([0, 1])] == [0, 1]  # type: ignore[arg-type]
    assert "PREFEED_MEMORY: 'much' is not a size" in caplog.text


class OwnSampler(BoundEarlier[Any]):
    """Draws from elsewhere."""

    @property
    def _index_sampler(self) -> Any:
        return [[1], [0]]


@pytest.mark.usefixtures("enabled")
def test_class_with_a_sampler_of_its_own_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="prefeed"):
        assert [int(batch) for batch in OwnSampler([0, 1])] == [1, 0]  # type: ignore[arg-type]
    assert "its class, OwnSampler, chooses the sampler in a way of its own" in caplog.text
