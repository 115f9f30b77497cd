"""Loaders of other frameworks are served where they are as these stand-ins are; ``tests/frameworks`` has the real ones.

A stand-in has the modules, names and calls of its framework on which the integration relies, and no more.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import prefeed
from e2e.automatic import auto
from leaks import wait_until
from prefeed.config import configure
from prefeed.frameworks.hooks import MODULES
from unit.frameworks.files import NUM, Files, content, make_files

pytestmark = [pytest.mark.usefixtures("sandbox"), pytest.mark.timeout(300)]

BATCH = 4


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    root = make_files(tmp_path / "data")
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    configure()
    yield Files(root)
    gc.collect()
    configure()


def module_of(name: str, *classes: type, **functions: Callable[..., Any]) -> ModuleType:
    """Return a module of a framework with these classes and functions."""
    module = ModuleType(name)
    for cls in classes:
        cls.__module__ = name
        setattr(module, cls.__name__, cls)
    vars(module).update(functions)
    return module


# ---------------------------------------------------------------- paddle


def paddle_samplers() -> list[type]:
    class RandomSampler:
        def __init__(self, data_source: Any) -> None:
            self.data_source, self.generator = data_source, None

        def __iter__(self) -> Iterator[int]:
            yield from np.random.permutation(len(self.data_source)).tolist()

    class BatchSampler:
        def __init__(self, dataset: Any, batch_size: int) -> None:
            self.sampler, self.batch_size = RandomSampler(dataset), batch_size

        def __iter__(self) -> Iterator[list[int]]:
            batch: list[int] = []
            for index in self.sampler:
                batch.append(index)
                if len(batch) == self.batch_size:
                    yield batch
                    batch = []
            if batch:
                yield batch

        def __len__(self) -> int:
            return math.ceil(len(self.sampler.data_source) / self.batch_size)

    return [RandomSampler, BatchSampler]


def paddle() -> ModuleType:
    class _DataLoaderIterSingleProcess:
        def __init__(self, loader: Any) -> None:
            self._dataset, self._sampler_iter = loader.dataset, iter(loader.batch_sampler)

        def __next__(self) -> list[Any]:
            return [self._dataset[index] for index in next(self._sampler_iter)]

    class _DataLoaderIterMultiProcess(_DataLoaderIterSingleProcess):
        """Takes batches ahead, as its workers do."""

        def __init__(self, loader: Any) -> None:
            super().__init__(loader)
            self._ahead = [next(self._sampler_iter) for _ in range(4)]

        def __next__(self) -> list[Any]:
            self._ahead += [next(self._sampler_iter, [])]
            batch = self._ahead.pop(0)
            if not batch:
                raise StopIteration
            return [self._dataset[index] for index in batch]

    return module_of(
        "paddle.io.dataloader.dataloader_iter", *paddle_samplers(),
        _DataLoaderIterSingleProcess, _DataLoaderIterMultiProcess,
    )  # fmt: skip


def paddle_epochs(module: Any, dataset: Files, num_workers: int) -> Callable[[], list[bytes]]:
    loader = SimpleNamespace(
        dataset=dataset, batch_sampler=module.BatchSampler(dataset, BATCH), num_workers=num_workers, worker_init_fn=None
    )
    cls = module._DataLoaderIterMultiProcess if num_workers else module._DataLoaderIterSingleProcess
    loader_type = type("DataLoader", (SimpleNamespace,), {})  # SimpleNamespace itself takes no weak references
    itself = loader_type(**vars(loader))

    def epoch() -> list[bytes]:
        iterator, seen = cls(itself), []
        try:
            while True:
                seen += next(iterator)
        except StopIteration:
            return seen

    return epoch


# ---------------------------------------------------------------- grain


class ShuffledOnce:
    """An index sampler of one pass, for two shards that read the same; element i is known without those before."""

    def __init__(self, num: int, seed: int) -> None:
        self.keys = np.random.default_rng(seed).permutation(num).repeat(2).tolist()

    def __getitem__(self, index: int) -> Any:
        return SimpleNamespace(record_key=self.keys[index])


def grain() -> ModuleType:
    class DataLoader:
        def __init__(self, data_source: Any, sampler: Any) -> None:
            self._data_source, self._sampler = data_source, sampler
            self._shard_options = SimpleNamespace(shard_index=1, shard_count=2)
            self._dataset = self._create_dataset()

        def _create_dataset(self) -> Callable[[int], Any]:
            source, sampler = self._data_source, self._sampler
            return lambda number: source[sampler[2 * number + 1].record_key]

        def __iter__(self) -> Any:
            return iterator_type(self)

    class DataLoaderIterator:
        def __init__(self, data_loader: Any) -> None:
            self._data_loader, self._at = data_loader, 0

        def __next__(self) -> Any:
            try:
                sample = self._data_loader._dataset(self._at)
            except IndexError:
                raise StopIteration from None
            self._at += 1
            return sample

        def get_state(self) -> bytes:
            text = {"last_seen_indices": {"0": 2 * self._at - 1}, "source": repr(self._data_loader._data_source)}
            return json.dumps(text).encode()

        def set_state(self, state: bytes) -> None:
            found = json.loads(state)
            assert found["source"] == repr(self._data_loader._data_source)
            self._at = (found["last_seen_indices"]["0"] + 1) // 2

    iterator_type = DataLoaderIterator
    return module_of("grain._src.python.data_loader", DataLoader, DataLoaderIterator)


def grain_epochs(module: Any, dataset: Files, num_workers: int) -> Callable[[], list[bytes]]:
    """Return a loop over one of two shards; its second half is read after the state of its first was restored."""
    loaders = iter([module.DataLoader(dataset, ShuffledOnce(len(dataset), seed)) for seed in range(2)])

    def epoch() -> list[bytes]:
        loader = next(loaders)
        first = iter(loader)
        seen = [next(first) for _ in range(NUM // 2)]
        second = iter(loader)
        second.set_state(first.get_state())
        try:
            while True:
                seen.append(next(second))
        except StopIteration:
            return seen

    return epoch


# ---------------------------------------------------------------- mindspore


def mindspore() -> ModuleType:
    def sample_one(dataset: Any, sample_ids: Any) -> Iterator[Any]:
        for index in sample_ids:
            yield dataset[index]

    def sample_by_workers(sample_fn: Any, sample_ids: Any) -> Iterator[Any]:
        return (sample_fn.dataset.dataset[index] for index in sample_ids)

    class GeneratorDataset:
        def __init__(self, source: Any, num_parallel_workers: int) -> None:
            self.source, self.sampler = source, "RandomSampler"
            self.num_parallel_workers = num_parallel_workers

        def prepare_multiprocessing(self) -> None:
            if self.num_parallel_workers:
                self.source = SimpleNamespace(dataset=self.source)
                self.prepared = partial(module._cpp_sampler_fn_mp, SimpleNamespace(dataset=self.source))
            else:
                self.prepared = partial(module._cpp_sampler_fn, self.source)

    module: Any = module_of(
        "mindspore.dataset.engine.datasets_user_defined", GeneratorDataset,
        _cpp_sampler_fn=sample_one, _cpp_sampler_fn_mp=sample_by_workers,
    )  # fmt: skip
    return module


def mindspore_epochs(module: Any, dataset: Files, num_workers: int) -> Callable[[], list[bytes]]:
    generator = np.random.default_rng(0)

    def epoch() -> list[bytes]:
        pipeline = module.GeneratorDataset(dataset, num_workers)
        pipeline.prepare_multiprocessing()
        return list(pipeline.prepared(generator.permutation(len(dataset))))

    return epoch


Make = Callable[[], ModuleType]
Epochs = Callable[[Any, Any, int], Callable[[], list[bytes]]]

FRAMEWORKS: dict[str, tuple[Make, Epochs]] = {
    "paddle": (paddle, paddle_epochs),
    "grain": (grain, grain_epochs),
    "mindspore": (mindspore, mindspore_epochs),
}
"""How a stand-in is made, and a loop over it, which returns the samples of an epoch."""


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, Epochs]:
    make, epochs = FRAMEWORKS[request.param]
    module = make()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert MODULES[module.__name__] == request.param
    return module, epochs


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_node_reads_ahead_and_samples_are_the_same(
    framework: tuple[ModuleType, Epochs], files: Files, num_workers: int
) -> None:
    module, epochs = framework
    np.random.seed(5)
    plain = epochs(module, files, num_workers)
    expected = [plain(), plain(), np.random.random()]
    with auto():
        np.random.seed(5)
        loop = epochs(module, files, num_workers)
        first = loop()
        assert wait_until(lambda: prefeed.statistics().resident_objects == NUM, timeout_seconds=60)
        before = prefeed.statistics()
        assert before.misses == 0
        assert [first, loop(), np.random.random()] == expected
        del loop
        gc.collect()
        assert wait_until(lambda: prefeed.statistics().reads >= 2 * len(first), timeout_seconds=60)
        after = prefeed.statistics()
    assert set(first) == {content(index) for index in range(NUM)}
    assert after.origin_requests == NUM
    assert after.hits - before.hits >= len(first)
    assert (after.direct_reads, after.misses) == (0, before.misses)
    assert epochs(module, files, num_workers)()  # as before
    assert prefeed.statistics().reads == after.reads


def test_a_framework_that_is_made_otherwise_is_left_alone(
    framework: tuple[ModuleType, Epochs], files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """What the integration relies on is private: when it is gone, programs run as without prefeed, and one line says so."""
    module, _ = framework
    for name in list(vars(module)):
        if not name.startswith("__"):
            delattr(module, name)
    with caplog.at_level(logging.WARNING, "prefeed"), auto():
        pass
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"prefeed: loaders of {module.__name__.partition('.')[0]} do not use the cache: ")
