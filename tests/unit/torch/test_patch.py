"""torch's own class, changed in place and back."""

from __future__ import annotations

import abc
import copy
import inspect
import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data
from torch.utils.data import DataLoader as BoundEarlier
from torch.utils.data import IterableDataset, TensorDataset, dataloader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

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


CLASSES = (BoundEarlier, dataloader._BaseDataLoaderIter, _SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter)


def test_disable_leaves_nothing() -> None:
    before = [dict(vars(cls)) for cls in CLASSES]
    names = dict(vars(torch.utils.data)), dict(vars(dataloader))
    patch.enable()
    patch.enable()
    for cls, own in zip(CLASSES, before, strict=True):
        assert {name for name, value in vars(cls).items() if own[name] is not value} == {"__init__"}
    assert inspect.signature(BoundEarlier.__init__).parameters.keys() >= {"self", "dataset", "batch_size", "in_order"}
    patch.disable()
    patch.disable()

    for cls, own in zip(CLASSES, before, strict=True):
        assert all(vars(cls)[name] is value for name, value in own.items())
        assert vars(cls).keys() == own.keys()
    assert (dict(vars(torch.utils.data)), dict(vars(dataloader))) == names


def test_what_somebody_else_put_over_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = _SingleProcessDataLoaderIter
    monkeypatch.setattr(cls, "__init__", vars(cls)["__init__"])  # put back after the test
    patch.enable()
    ours = vars(cls)["__init__"]

    def theirs(iterator: Any, loader: Any) -> Any:
        return ours(iterator, loader)

    cls.__init__ = theirs  # type: ignore[assignment, method-assign]
    patch.disable()

    assert vars(cls)["__init__"] is theirs
    loader = BoundEarlier([1, 2])  # type: ignore[arg-type]
    assert [int(batch) for batch in loader] == [1, 2]
    assert module._attachments.get(loader) is None


class Derived(BoundEarlier[Any]):
    pass


class Other(dataloader._BaseDataLoaderIter):
    """As torchdata's: torch's base class, and all else of its own."""

    def _next_data(self) -> Any:
        return self._collate_fn([self._dataset[index] for index in next(self._sampler_iter)])


class Overriding(BoundEarlier[Any]):
    """As torchdata's StatefulDataLoader: makes iterators of its own."""

    def _get_iterator(self) -> Any:
        return Other(self)


class Iterating(BoundEarlier[Any]):
    """Has no need of torch's iterators."""

    def __iter__(self) -> Any:
        for indices in self.batch_sampler or ():
            yield self.collate_fn([self.dataset[index] for index in indices])


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
@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Overriding, "not used for this loader: its class, Overriding, makes iterators of a class of its own, Other"),
        (Iterating, "not used for a loader of class Iterating: it was not iterated by torch's iterators"),
        (Derived, "not used for this loader: nothing is known about the files of its dataset, list"),
    ],
)
def test_what_goes_round_torchs_iterators_is_said_once(cls: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="prefeed"):
        loader = cls([0, 1, 2])
        for _ in range(2):
            assert [int(batch) for batch in loader] == [0, 1, 2]
        del loader
    (line,) = [message for message in caplog.messages if "not used for" in message]
    assert words in line


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


def test_where_prefeed_cannot_serve_loaders_they_are_torchs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What serves them is imported with the first loader of a process that was spawned: that must not fail for the program."""
    monkeypatch.setattr(patch, "_SERVING", "prefeed.torch.absent")
    patch.enable()
    with caplog.at_level(logging.WARNING, logger="prefeed"):
        loader = BoundEarlier([1, 2])  # type: ignore[arg-type]
        assert [int(batch) for batch in loader] == [1, 2]
    assert not patch.is_enabled()
    assert ["absent" in record.message for record in caplog.records] == [True]
