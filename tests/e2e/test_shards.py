"""``prefeed.shards`` and WebDataset: the same samples in the same order, shards fetched ahead and once per node."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import random
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import prefeed
from cover import crossed
from limits import set_limits
from prefeed.client.block_file import BlockFile
from prefeed.files import close
from prefeed.files.shards import FilePrefetcher
from prefeed.files.webdataset import register
from sandbox import Sandbox

SAMPLES = 12
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # WebDataset's own of local paths


@pytest.fixture
def paths(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    set_limits(monkeypatch, block_bytes=64 * 1024, start_seconds=120)
    for shard in range(6):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as tar:
            for sample in range(SAMPLES):
                data = np.random.default_rng((shard, sample)).integers(0, 256, 20_000, dtype=np.uint8).tobytes()
                member = tarfile.TarInfo(f"{shard}-{sample}.bin")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    register()
    yield [str(tmp_path / f"{shard}.tar") for shard in range(6)]
    close()


def size_of(paths: list[str]) -> int:
    return sum(os.stat(path).st_size for path in paths)


def ours(paths: list[str]) -> list[str]:
    return [f"prefeed:{path}" for path in paths]


def test_shards_are_open_files_in_order(paths: list[str]) -> None:
    given: list[Any] = []
    for file, path in zip(prefeed.shards(paths), paths, strict=True):
        assert isinstance(file, BlockFile)
        assert file.read() == Path(path).read_bytes()
        given.append(file)
    assert all(file.closed for file in given)
    statistics = prefeed.statistics()
    assert (statistics.origin_bytes, statistics.direct_reads) == (size_of(paths), 0)


def test_an_error_is_raised_where_its_shard_is_due(paths: list[str]) -> None:
    order = prefeed.shards([paths[0], paths[1] + "-none", paths[2]])
    assert next(order).read() == Path(paths[0]).read_bytes()
    with pytest.raises(FileNotFoundError, match="-none"):
        next(order)

    def urls() -> Iterator[str]:
        yield paths[0]
        raise RuntimeError("no more of them")

    order = prefeed.shards(urls())
    assert next(order).read() == Path(paths[0]).read_bytes()
    with pytest.raises(RuntimeError, match="no more of them"):
        next(order)
    assert list(prefeed.shards([])) == []


def test_ctrl_c_ends_it_at_once(paths: list[str]) -> None:
    """Not when the shards that are open by then were read."""

    def urls() -> Iterator[str]:
        yield from paths[:2]
        raise KeyboardInterrupt

    ahead = FilePrefetcher(urls(), lambda _: None, prefeed.Config())
    with pytest.raises(KeyboardInterrupt):
        next(ahead)
    ahead.close()


def test_files_that_are_not_reached_are_closed(paths: list[str]) -> None:
    opened: list[Any] = []

    def open_one(path: str) -> Any:
        opened.append(prefeed.open(path, readahead=True))
        return opened[-1]

    ahead = FilePrefetcher(iter(paths), open_one, prefeed.Config())
    _, first = next(ahead)
    ahead.close()
    close()  # waits for those that are being opened
    assert len(opened) > 1
    assert [file.closed for file in opened] == [False] + [True] * (len(opened) - 1)
    assert isinstance(first, BlockFile)
    first.close()


def test_the_next_shards_are_opened_while_one_is_read(paths: list[str]) -> None:
    may_open = threading.Event()
    threads: list[str] = []

    def open_one(path: str) -> Any:
        if path != paths[0]:
            assert may_open.wait(60)
        threads.append(threading.current_thread().name)
        return prefeed.open(path, readahead=True)

    ahead = FilePrefetcher(iter(paths), open_one, prefeed.Config())
    _, first = next(ahead)
    assert isinstance(first, BlockFile)
    assert first.read() == Path(paths[0]).read_bytes()
    child = multiprocessing.get_context("fork").Process(target=_read_rest, args=(ahead, may_open, paths[1:]))
    child.start()
    child.join()
    assert child.exitcode == 0
    child.close()
    assert threads == ["MainThread"]
    may_open.set()
    first.close()
    _read_rest(ahead, may_open, paths[1:])
    assert threads == ["MainThread", *["prefeed-open"] * (len(paths) - 1)]


def test_connections_are_closed_behind_shards_that_are_being_opened(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open = threading.Event()
    opened: list[str] = []

    def open_one(path: str) -> Any:
        if path != paths[0]:
            assert may_open.wait(60)
        opened.append(path)
        return prefeed.open(path, readahead=True)

    ahead = FilePrefetcher(iter(paths[:2]), open_one, prefeed.Config())
    _, first = next(ahead)
    assert isinstance(first, BlockFile)
    seen: list[list[str]] = []
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[FilePrefetcher.__module__], "close_blocks", lambda: seen.append(list(opened)))
        closer = threading.Thread(target=close)
        closer.start()
        closer.join(0.2)  # long enough to close too early
        may_open.set()
        closer.join()
    assert seen == [paths[:2]]
    ahead.close()
    first.close()


def test_a_pipeline_that_is_left_closes_its_shards_in_any_thread(paths: list[str]) -> None:
    """It may be collected in the very thread that opens a shard, which nothing may wait for then."""
    opened: list[Any] = []
    left: list[FilePrefetcher[str]] = []

    def open_one(path: str) -> Any:
        opened.append(prefeed.open(path, readahead=True))
        if path != paths[0]:
            left[0].close()
        return opened[-1]

    ahead = FilePrefetcher(iter(paths[:2]), open_one, prefeed.Config())
    left.append(ahead)
    _, first = next(ahead)
    close()
    assert isinstance(first, BlockFile)
    assert [file.closed for file in opened] == [False, True]
    first.close()


def _read_rest(ahead: FilePrefetcher[str], may_open: threading.Event, paths: list[str]) -> None:
    """Read the shards that are not open yet; in a forked child it opens them itself."""
    may_open.set()
    for (_, file), path in zip(ahead, paths, strict=True):
        assert isinstance(file, BlockFile)
        assert file.read() == Path(path).read_bytes()
        file.close()


# ------------------------------------------------------------ WebDataset


def draw(sample: dict[str, Any]) -> tuple[str, bytes, str, float, float]:
    """Return a sample with a number from each generator that transforms draw from."""
    name = os.path.basename(sample["__url__"])
    return sample["__key__"], sample["bin"], name, random.random(), float(np.random.random()) + float(torch.rand(()))


def seen(urls: list[str], *, num_workers: int, **options: Any) -> list[Any]:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    dataset = wds.WebDataset(urls, empty_check=False, seed=7, **options).map(draw)
    if options.get("resampled"):
        dataset = dataset.with_epoch(40)
    return list(DataLoader(dataset, batch_size=None, num_workers=num_workers))


@pytest.mark.parametrize(
    ("options", "num_workers"),
    crossed(
        {
            "in order": {"shardshuffle": False},
            "shuffled": {"shardshuffle": 4},
            "shuffled by epoch": {"shardshuffle": 4, "detshuffle": True},
        },
        [0, 2],
    ),
)
def test_samples_are_the_same(paths: list[str], options: dict[str, Any], num_workers: int) -> None:
    plain = seen(paths, num_workers=num_workers, **options)
    assert len(plain) == 6 * SAMPLES
    for _ in range(2):
        assert seen(ours(paths), num_workers=num_workers, **options) == plain
    statistics = prefeed.statistics()
    assert (statistics.origin_bytes, statistics.direct_reads) == (size_of(paths), 0)


def test_an_order_that_draws_from_the_generators_of_transforms_is_not_read_ahead(paths: list[str]) -> None:
    def order(urls: list[str]) -> Iterator[dict[str, str]]:
        for _ in range(8):
            yield {"url": random.choice(urls)}

    def run(urls: list[str]) -> list[Any]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        stages = (wds.tariterators.tar_file_expander, wds.tariterators.group_by_keys)
        return list(wds.DataPipeline(lambda: order(urls), wds.cache.StreamingOpen(), *stages, wds.map(draw)))

    assert run(ours(paths)) == run(paths)


def test_a_shard_that_is_not_there_goes_to_the_handler(paths: list[str]) -> None:
    errors: list[Exception] = []

    def skip(err: Exception) -> bool:
        errors.append(err)
        return True

    urls = ours([paths[0], paths[0] + "-none", paths[1]])
    dataset = wds.WebDataset(urls, shardshuffle=False, handler=skip)
    assert len(list(dataset)) == 2 * SAMPLES
    assert [type(err).__name__ for err in errors] == ["ObjectNotFoundError"]
    errors.clear()
    with pytest.raises(FileNotFoundError):
        list(wds.WebDataset(urls, shardshuffle=False))


def test_a_truncated_shard_is_the_same_error_as_without(paths: list[str]) -> None:
    whole = Path(paths[1]).read_bytes()
    Path(paths[1]).write_bytes(whole[: len(whole) // 2])

    def kinds(urls: list[str]) -> list[Any]:
        found: list[Any] = []
        try:
            found.extend(one["__key__"] for one in wds.WebDataset(urls, shardshuffle=False))
        except Exception as err:  # noqa: BLE001 - whatever it is
            found.append(type(err))
        return found

    assert kinds(ours(paths)) == kinds(paths)


def test_two_ranks_fetch_each_shard_once(paths: list[str]) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_read_all, args=(paths,)) for _ in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
        rank.close()
    statistics = prefeed.statistics()
    assert (statistics.origin_bytes, statistics.direct_reads) == (size_of(paths), 0)


def _read_all(paths: list[str]) -> None:
    dataset = wds.WebDataset(ours(paths), shardshuffle=False)
    assert sum(1 for _ in dataset) == 6 * SAMPLES
    close()


# ------------------------------------------------------------ resumed


def shuffled(urls: list[str]) -> Any:
    dataset = wds.WebDataset(urls, empty_check=False, seed=7, shardshuffle=4, nodesplitter=wds.split_by_node)
    return prefeed.resumable(dataset.shuffle(15, initial=5, seed=3).map(keys_of))


def keys_of(sample: dict[str, Any]) -> str:
    return f"{sample['__key__']} {sum(sample['bin'])}"


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdatas_loader_resumes_each_rank_exactly(
    paths: list[str], num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader() -> Any:
        return StatefulDataLoader(shuffled(ours(paths)), batch_size=4, num_workers=num_workers, collate_fn=list)

    seen: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        whole = loader()
        batches = iter(whole)
        first = [next(batches) for _ in range(5)]
        state = pickle.dumps(whole.state_dict())
        rest = list(batches)
        resumed = loader()
        resumed.load_state_dict(pickle.loads(state))
        assert list(resumed) == rest
        seen += [key for batch in (*first, *rest) for key in batch]
        del whole, resumed, batches
    assert len(seen) == len(set(seen)) == 6 * SAMPLES
    statistics = prefeed.statistics()
    assert (statistics.origin_bytes, statistics.direct_reads) == (size_of(paths), 0)


def test_prefeeds_loader_resumes_without_making_what_was_seen(paths: list[str], tmp_path: Path) -> None:
    made: list[str] = []

    def loader() -> Any:
        pipeline = wds.WebDataset(ours(paths), empty_check=False, shardshuffle=False).map(keys_of)
        pipeline.append(wds.map(lambda key: made.append(key) or key))
        return prefeed.DataLoader(prefeed.resumable(pipeline), batch_size=4, collate_fn=list)

    whole = loader()
    batches = iter(whole)
    for _ in range(7):
        next(batches)
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    rest = list(batches)
    made.clear()
    resumed = loader()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert list(resumed) == rest
    assert made == [key for batch in rest for key in batch]
    with_workers = prefeed.DataLoader(shuffled(ours(paths)), batch_size=4, num_workers=2)
    with pytest.raises(prefeed.errors.ResumeError, match="StatefulDataLoader"):
        with_workers.load_state_dict(whole.state_dict())


def test_shards_that_were_read_are_not_fetched_to_resume(paths: list[str]) -> None:
    whole = shuffled(paths)  # read without the cache
    iterator = iter(whole)
    for _ in range(4 * SAMPLES):
        next(iterator)
    state, rest = whole.state_dict(), list(iterator)  # plain and with the cache are one order
    assert all(state["versions"])  # and of one version
    resumed = shuffled(ours(paths))
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    statistics = prefeed.statistics()
    assert 0 < statistics.origin_bytes <= size_of(paths) * 5 // 6
    assert statistics.direct_reads == 0


def test_the_doctor_tells_what_a_pipeline_waits_for(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    pipeline = wds.DataPipeline(
        wds.SimpleShardList([f"pipe:sleep 0.05; cat {path}" for path in paths]),
        wds.split_by_worker, wds.tarfile_to_samples(), wds.to_tuple("bin"), wds.map_tuple(len), wds.batched(SAMPLES),
    )  # fmt: skip
    report = prefeed.doctor(DataLoader(pipeline, batch_size=None), lambda batch: None, steps=4)
    assert report.costs is not None
    assert report.costs.reading is not None
    assert report.costs.reading >= 0.04  # a shard per batch
    assert report.shares["origin"] > 0
    assert "the origin's latency" in str(report)
    assert [finding.name for finding in report.findings if not finding.is_measured] == ["cache"]
    assert {trial.settings.num_workers for trial in report.trials} == {0, 1, 4}
