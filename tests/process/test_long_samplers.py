"""Samplers of 10⁸ draws, and of no end: the batches of torch, little memory, whoever dies between two windows."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

import prefeed
from e2e.steps import seed_all
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import ServerUnavailableError
from prefeed.types import PlanInfo
from process.conditions import kill, make_objects, server_pid, wait_for

MANY = 10**8
BATCH = 250
STEPS = 60
"""Samples enough for the windows of a sampler that draws as it goes: 8,192 are the first."""

MOST_BYTES = 64 * 1024**2


class Drawn(Sampler[int]):
    """The user's own: draws from numpy's global generator; its length is wrong, or missing."""

    def __init__(self, length: int | None, most: int) -> None:
        self.most = most
        if length is not None:
            self.__class__ = type("Says", (Drawn,), {"__len__": lambda _: length})

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            number += 1
            yield int(np.random.randint(self.most))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_objects(tmp_path_factory.mktemp("long") / "objects")
    for number, file in enumerate(sorted(root.iterdir())):
        file.write_bytes(file.read_bytes()[:100] if number < 40 else b"")
    return root


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


def replaced(dataset: Any, **kwargs: Any) -> RandomSampler:
    return RandomSampler(dataset, replacement=True, num_samples=MANY, **kwargs)


SAMPLERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "replacement": lambda data: {"sampler": replaced(data), "batch_size": BATCH},
    "its own generator": lambda data: {
        "sampler": replaced(data, generator=torch.Generator().manual_seed(5)), "batch_size": BATCH,
    },
    "batch sampler": lambda data: {"batch_sampler": BatchSampler(replaced(data), BATCH, True)},
    "without end": lambda data: {"sampler": Drawn(None, len(data)), "batch_size": BATCH},
    "says too little": lambda data: {"sampler": Drawn(7, len(data)), "batch_size": BATCH},
}  # fmt: skip


def loader_of(dataset: Any, kind: str, cls: Any = prefeed.DataLoader, **kwargs: Any) -> Any:
    return cls(dataset, collate_fn=list, **SAMPLERS[kind](dataset), **kwargs)


def global_states() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes()  # type: ignore[index, union-attr]


def plans() -> list[PlanInfo]:
    """Return the plans of the server that runs; of none when none does."""
    try:
        with NodeClient.connect(resolve({}), autostart=False) as node:
            return [plan for plan in node.plans() if plan.length]
    except ServerUnavailableError:
        return []


@pytest.mark.parametrize(("kind", "num_workers"), [("replacement", 0), ("batch sampler", 2)])
def test_batches_and_generators_are_torchs_and_the_plan_stays_small(root: Path, kind: str, num_workers: int) -> None:
    """Two epochs that are left early."""
    objects = prefeed.datasets.Objects(root)

    def seen(cls: Any) -> list[Any]:
        seed_all()
        loader = loader_of(objects, kind, cls, num_workers=num_workers)
        found: list[Any] = []
        for _ in range(2):
            found += [(batch, global_states()) for batch in itertools.islice(loader, STEPS)]
            if cls is prefeed.DataLoader:
                [plan] = plans()
                assert STEPS * BATCH // 3 < plan.position <= STEPS * BATCH < plan.length < 200_000
                assert 0 < plan.memory_bytes < MOST_BYTES
        return found

    assert seen(prefeed.DataLoader) == seen(DataLoader)
    assert prefeed.statistics().errors == {}
    assert prefeed.statistics().origin_requests <= len(objects)


@pytest.mark.parametrize("trust", [False, True])
def test_a_sampler_of_the_users_without_end(root: Path, trust: bool) -> None:
    """Where it may be read ahead, a window is; else nothing is drawn but what torch asks for, and nothing piles up."""
    objects = prefeed.datasets.Objects(root)

    def seen(cls: Any, **kwargs: Any) -> list[Any]:
        seed_all()
        return list(itertools.islice(loader_of(objects, "without end", cls, **kwargs), STEPS))

    config = resolve({"trust_samplers": trust})
    assert seen(prefeed.DataLoader, config=config) == seen(DataLoader)
    assert all(plan.memory_bytes < MOST_BYTES for plan in plans())


@pytest.mark.parametrize(
    "kind", ["replacement", pytest.param("its own generator", marks=pytest.mark.whole), "says too little"]
)
def test_it_continues_where_it_was(root: Path, kind: str) -> None:
    """A training that was saved in the middle of an order of 10⁸ gives the batches that it would have given."""
    objects = prefeed.datasets.Objects(root)
    config = resolve({"trust_samplers": True})
    seed_all()
    loader = loader_of(objects, kind, config=config)
    iterator = iter(loader)
    expected = list(itertools.islice(iterator, STEPS))[STEPS // 2 :]
    del iterator, loader

    seed_all()
    loader = loader_of(objects, kind, config=config)
    iterator = iter(loader)
    list(itertools.islice(iterator, STEPS // 2))
    state, numpy_state = loader.state_dict(), np.random.get_state()
    del iterator, loader

    seed_all(99)
    loader = loader_of(objects, kind, config=config)
    np.random.set_state(numpy_state)
    loader.load_state_dict(state)
    assert list(itertools.islice(loader, STEPS // 2)) == expected


@pytest.mark.parametrize("kind", ["replacement", pytest.param("without end", marks=pytest.mark.whole)])
def test_a_server_that_is_killed_between_two_windows(root: Path, kind: str) -> None:
    objects = prefeed.datasets.Objects(root)
    seed_all()
    expected = list(itertools.islice(loader_of(objects, kind, DataLoader), 2 * STEPS))
    seed_all()
    loader = loader_of(objects, kind, config=resolve({"trust_samplers": True}))
    seen = []
    for step, batch in enumerate(itertools.islice(loader, 2 * STEPS)):
        seen.append(batch)
        if step == STEPS // 4:
            kill(server_pid())
        if step == STEPS:
            wait_for(lambda: bool(plans()), "a new server with the plan")
    assert seen == expected
    [plan] = plans()
    assert plan.memory_bytes < MOST_BYTES
    if kind == "replacement":  # a pass over the other is as long as its dataset
        assert 0 < plan.position < plan.length


def test_a_client_that_is_killed_between_two_windows_leaves_no_plan(root: Path) -> None:
    objects = prefeed.datasets.Objects(root)

    def train() -> None:
        for step, _ in enumerate(loader_of(objects, "replacement")):
            if step == STEPS // 2:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = multiprocessing.get_context("fork").Process(target=train)
    trainer.start()
    trainer.join()
    assert trainer.exitcode == -signal.SIGKILL
    wait_for(lambda: not plans(), "the plan to end")
    assert prefeed.statistics().errors == {}
