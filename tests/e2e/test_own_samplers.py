"""Samplers of a program's own class: all that the loop can see is as with torch, and each is read as far ahead as it allows."""

from __future__ import annotations

import copy
import gc
import inspect
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchLoader

import prefeed
from e2e import own_samplers
from e2e.hashed import Hashed, write_hashed
from e2e.own_samplers import (
    ALL,
    BATCH_SIZE,
    KINDS,
    NONE,
    NUM_SAMPLES,
    SOME,
    Curriculum,
    Data,
    HoldsLazy,
    Own,
    OwnOf,
    Traced,
    Waiting,
)
from e2e.steps import seed_all
from leaks import wait_until
from prefeed.torch import forecasts
from prefeed.torch.order import FIRST
from unit.torch.test_planning import Listener, access_map, planned

Wrap = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a copy takes depends on the machine."""
    monkeypatch.setattr(forecasts, "_MOST_SECONDS", 60.0)


def made(kind: Callable[..., Own], tmp_path: Path) -> Own:
    return kind(tmp_path / "order.txt") if inspect.signature(kind).parameters else kind()


def global_states() -> int:
    kind, keys, *rest = np.random.get_state()
    return hash((torch.get_rng_state().numpy().tobytes(), kind, keys.tobytes(), *rest, random.getstate()))


def batches_of(own: Own) -> Any:
    return own.sampler if own.is_batched else BatchSampler(own.sampler, BATCH_SIZE, False)


def seen_of(own: Own, shown: Any, *, epochs: int = 2) -> list[Any]:
    """Return what a loop sees that draws from all global generators itself; torch draws a base seed before each epoch."""
    seed_all()
    seen: list[Any] = []
    for _ in range(epochs):
        batches: Iterator[Any] = iter(shown)
        torch.empty((), dtype=torch.int64).random_()
        number = 0
        try:
            for batch in iter(partial(next, batches, None), None):  # as torch: no second ``iter``
                seen.append((batch, global_states(), own.probe()))
                random.random(), np.random.rand(), torch.rand(1)
                own.step(number)
                number += 1
                if number == own.endless:
                    break
        except ValueError as err:
            seen.append(str(err))
        del batches
        seen.append((global_states(), own.probe()))
    own.close()
    return seen


def warned(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function()
    return result, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_own_sampler_is_as_with_torch(num_workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS[num_workers // 2 :: 2]:
        own = made(kind, tmp_path)
        expected, expected_text = warned(partial(seen_of, own, batches_of(own))), capsys.readouterr()
        own, listener = made(kind, tmp_path), Listener()
        sampler = planned(
            batches_of(own),
            listener,
            access_map(NUM_SAMPLES),
            num_workers=num_workers,
            batches_ahead=2 * num_workers or 1,
        )
        assert warned(partial(seen_of, own, sampler)) == expected, kind
        assert capsys.readouterr() == expected_text, kind
        foreseen = len(next(ids for event, ids in listener.told if event == "begin"))
        if own.endless == 130:  # more than two passes
            assert all(len(ids) >= foreseen for event, ids in listener.told if event == "begin"), kind
        limits = {ALL: (100, NUM_SAMPLES), SOME: (2 * BATCH_SIZE, NUM_SAMPLES - 1), NONE: (0, 0)}
        assert limits[own.foreseen][0] <= foreseen <= limits[own.foreseen][1], kind


def test_a_sampler_that_waits_for_the_loop_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "_MOST_SECONDS", 0.05)
    listener = Listener()
    sampler = Waiting()
    drawn = []
    for index in planned(sampler, listener, access_map(NUM_SAMPLES)):
        drawn.append(index)
        sampler.release(index)
        if len(drawn) == 50:
            break
    assert drawn == [*range(10)] * 5
    assert listener.told[0][0] == "begin"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_first_epoch_is_fetched_ahead(num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has one batch, and the server all files; epochs are equal, also with one generator for loader and sampler."""
    root = tmp_path / "data"
    dataset = Hashed(root, NUM_SAMPLES)
    write_hashed(root, dataset)
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    listed = prefeed.datasets.Objects(root)

    def loader_of(loader_class: Any, read: Any) -> Any:
        generator = torch.Generator().manual_seed(3)
        sampler = OwnOf(generator)
        return loader_class(
            read, batch_size=BATCH_SIZE, sampler=sampler, generator=generator, num_workers=num_workers, collate_fn=list
        )

    seed_all()
    loader = loader_of(TorchLoader, [path.read_bytes() for path in sorted(root.glob("*/*"))])
    expected = [*loader, *loader]
    seed_all()
    loader = loader_of(prefeed.DataLoader, listed)
    batches = iter(loader)
    first = next(batches)
    assert wait_until(lambda: prefeed.statistics().resident_objects == NUM_SAMPLES, timeout_seconds=60)
    assert [first, *batches, *loader] == expected


@pytest.mark.parametrize("item", [(1, 2), [1, 2], {"length": 3}, np.zeros(1)])
def test_copies_are_of_limited_size(item: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is many small objects, or many arrays, that a sampler holds."""
    monkeypatch.setattr(forecasts, "_MAX_ITEMS", 1 << 16)
    held = [copy.copy(item) for _ in range(1 << 12)]
    if isinstance(item, tuple):
        held = [(index, index) for index in range(1 << 12)]
    assert forecasts.try_forecast(HoldsLazy(held)) is None
    assert forecasts.try_forecast(HoldsLazy(held[:100])) is not None


def test_copies_have_limited_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "_MAX_BYTES", 10_000)
    arrays = [np.zeros(1000, dtype=np.uint8) for _ in range(20)]
    copied, *_ = forecasts._copy_of(HoldsLazy(arrays))
    assert sum(type(array) is np.ndarray for array in copied.held[0]) == 10


def test_what_a_sampler_has_left_is_not_kept_after_the_epoch() -> None:
    data = Data()
    sampler = HoldsLazy(data)
    shown = planned(sampler, Listener(), access_map(NUM_SAMPLES))
    assert list(shown)
    is_kept = weakref.ref(data)
    sampler.held = ()
    del data
    gc.collect()
    assert is_kept() is None


def test_a_name_that_gets_a_value_in_mid_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that draws the next window does not use it."""
    length = 3 * FIRST
    seen: list[int] = []
    sampler = Traced(length)
    for number, _ in enumerate(planned(sampler, Listener(), access_map(length))):
        if number == 9:
            monkeypatch.setattr(own_samplers, "trace", seen)
    assert seen == [*range(10, length)]


def test_names_of_threads_are_as_with_torch() -> None:
    def number() -> int:
        return int(threading.Thread().name.rpartition("-")[2])

    before = number()
    assert list(planned(Curriculum(), Listener(), access_map(NUM_SAMPLES)))
    assert number() == before + 1
