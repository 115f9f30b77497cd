"""``prefeed.resumable``: the samples of a pipeline of WebDataset's, resumed at every place; which shards that opens."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pickle
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from webdataset.gopen import gopen_schemes

import prefeed
from prefeed.errors import ResumeError
from prefeed.files.webdataset import KnownOrder, _has_own_randomness

pytestmark = pytest.mark.filterwarnings("ignore:WebDataset")
NUM_SHARDS = 6
opened: list[int] = []
sizes = {number: 4 + number for number in range(NUM_SHARDS)}
Make = Callable[..., Any]


@functools.cache
def tar_of(number: int, num_samples: int) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for sample in range(num_samples):
            member = tarfile.TarInfo(f"{number}-{sample}.bin")
            member.size = 2
            tar.addfile(member, io.BytesIO(bytes([number, sample])))
    return data.getvalue()


def open_shard(url: str, mode: str = "rb", bufsize: int = 8192, **_: Any) -> io.BytesIO:
    number = int(url.partition(":")[2])
    if number not in sizes:
        raise FileNotFoundError(url)
    opened.append(number)
    return io.BytesIO(tar_of(number, sizes[number]))


@pytest.fixture(autouse=True)
def shards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(gopen_schemes, "counted", open_shard)
    opened.clear()
    yield
    opened.clear()


def urls(*more: str) -> list[str]:
    return [f"counted:{number}" for number in range(NUM_SHARDS)] + list(more)


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def is_even(sample: dict[str, Any]) -> bool:
    return not sample["bin"][1] % 2


def dataset(shuffle: int = 0, initial: int = 10, sample_seed: int | None = 4, **options: Any) -> Any:
    found = wds.WebDataset(urls(), empty_check=False, seed=7, **options)
    return found.shuffle(shuffle, initial=initial, seed=sample_seed)


def stages(*between: Any) -> Any:
    order = wds.shardlists.SimpleShardList(urls(), seed=3)
    return wds.DataPipeline(order, wds.split_by_worker, wds.tarfile_to_samples(), *between, wds.map(key))


MAKES: dict[str, Make] = {
    "in order": lambda: dataset(shardshuffle=False).map(key),
    "shards shuffled": lambda: dataset(shardshuffle=4).map(key),
    "samples shuffled": lambda: dataset(20, shardshuffle=4, detshuffle=True).map(key),
    "without a seed": lambda: dataset(20, sample_seed=None, shardshuffle=False).map(key),
    "with a generator": lambda: stages(wds.filters.shuffle(20, rng=random.Random(5))),
    "shuffled twice": lambda: stages(wds.filters.shuffle(9, seed=1), wds.filters.detshuffle(5, seed=2)),
    "selected": lambda: dataset(20, shardshuffle=False).select(is_even).map(key),
    "batches": lambda: dataset(20, shardshuffle=False).select(is_even).map(key).batched(4, collation_fn=None),
    "lists": lambda: dataset(shardshuffle=False).listed(5).map(len),
    "resampled": lambda: dataset(20, resampled=True).map(key).with_epoch(60),
    "repeated": lambda: dataset(20, shardshuffle=4, detshuffle=True).map(key).repeat(2),
    "one without samples": lambda: wds.WebDataset(
        urls("counted:77", "counted:0"), shardshuffle=False, handler=wds.handlers.ignore_and_continue
    ).map(key),
}


def saved(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_it_resumes_at_any_place(make: Make) -> None:
    whole = prefeed.resumable(make())
    iterator, samples = iter(whole), []
    states = [saved(whole.state_dict())]
    for sample in iterator:
        samples.append(sample)
        states.append(saved(whole.state_dict()))
    assert len(samples) > 4
    for number, state in list(enumerate(states))[:: max(1, len(states) // 20)]:
        resumed = prefeed.resumable(make())
        resumed.load_state_dict(state)
        rest = iter(resumed)
        assert saved(resumed.state_dict())["num_yielded"] == number
        assert list(rest) == samples[number:]


@pytest.mark.parametrize(
    "name", ["in order", "shards shuffled", "samples shuffled", "shuffled twice", "batches", "repeated"]
)
def test_samples_and_epochs_are_those_of_the_pipeline(name: str) -> None:
    make = MAKES[name]
    plain, ours = make(), prefeed.resumable(make())
    epochs = [list(plain) for _ in range(3)]
    assert [list(ours) for _ in range(2)] == epochs[:2]
    later = prefeed.resumable(make())
    later.load_state_dict(saved(ours.state_dict()))
    assert list(later) == epochs[2]


@pytest.mark.parametrize("name", ["samples shuffled", "with a generator"])
def test_the_epoch_after_a_resumed_one_is_the_same(name: str) -> None:
    whole = prefeed.resumable(MAKES[name]())
    iterator = iter(whole)
    for _ in range(30):
        next(iterator)
    resumed = prefeed.resumable(MAKES[name]())
    resumed.load_state_dict(saved(whole.state_dict()))
    assert list(resumed) == list(iterator)
    assert list(resumed) == list(whole)


def test_an_epoch_that_was_resumed_can_be_saved_again() -> None:
    make = MAKES["batches"]
    samples = list(prefeed.resumable(make()))
    state = None
    for number in range(len(samples)):
        ours = prefeed.resumable(make())
        if state is not None:
            ours.load_state_dict(state)
            assert saved(ours.state_dict()) == state
        iterator = iter(ours)
        if state is not None:  # asked before its first sample, as torchdata does
            assert saved(ours.state_dict())["num_taken"] == state["num_taken"]
        assert next(iterator) == samples[number]
        state = saved(ours.state_dict())


def test_only_shards_with_samples_that_are_left_are_opened() -> None:
    def position(pipeline: Any, number: int) -> Any:
        ours = prefeed.resumable(pipeline)
        iterator = iter(ours)
        for _ in range(number):
            next(iterator)
        return saved(ours.state_dict())

    state = position(MAKES["in order"](), sizes[0] + sizes[1] + 3)
    opened.clear()
    resumed = prefeed.resumable(MAKES["in order"]())
    resumed.load_state_dict(state)
    iterator = iter(resumed)
    assert opened == []
    assert next(iterator) == "2-3"
    assert opened == [2]
    list(iterator)
    assert opened == [2, 3, 4, 5]

    small = dataset(4, shardshuffle=False).map(key)
    state = position(small, sizes[0] + sizes[1] + sizes[2] + 6)
    opened.clear()
    resumed = prefeed.resumable(dataset(4, shardshuffle=False).map(key))
    resumed.load_state_dict(state)
    list(resumed)
    assert opened == [3, 4, 5]  # a shuffle of four samples reaches no further back


def test_nothing_is_made_of_samples_that_were_seen() -> None:
    made: list[str] = []

    def note(sample: dict[str, Any]) -> str:
        made.append(key(sample))
        return made[-1]

    ours = prefeed.resumable(dataset(20, shardshuffle=False).map(note))
    iterator = iter(ours)
    for _ in range(30):
        next(iterator)
    state = saved(ours.state_dict())
    rest = list(iterator)
    made.clear()
    resumed = prefeed.resumable(dataset(20, shardshuffle=False).map(note))
    resumed.load_state_dict(state)
    assert list(resumed) == rest == made


def test_a_worker_gets_it_pickled() -> None:
    ours = prefeed.resumable(MAKES["samples shuffled"]())
    samples = list(ours)
    assert list(pickle.loads(pickle.dumps(prefeed.resumable(MAKES["samples shuffled"]())))) == samples
    next(iter(ours))
    pickle.loads(pickle.dumps(ours))


def test_an_error_ends_the_iterator_and_keeps_the_place() -> None:
    def fail(sample: dict[str, Any]) -> str:
        if key(sample) == "1-2":
            raise OSError("a bad sample")
        return key(sample)

    ours = prefeed.resumable(dataset(shardshuffle=False).map(fail).repeat(2))
    iterator, seen = iter(ours), []
    with pytest.raises(OSError, match="a bad sample"):
        seen.extend(iterator)
    assert list(iterator) == []
    assert len(seen) == sizes[0] + 2
    assert ours.state_dict()["num_yielded"] == len(seen)


def test_the_order_of_a_resumed_epoch_may_be_read_ahead() -> None:
    assert _has_own_randomness(KnownOrder(iter([])))


# ------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dataset(shardshuffle=False).batched(3).unbatched(), r"unbatched\(\): it may hold samples back"),
        (lambda: dataset(shardshuffle=False).batched(3).batched(3), r"batched\(3, True\): it may hold samples back"),
        (lambda: dataset(shardshuffle=False).map(key).shuffle(10), r"shuffle\(10\): .* put it right behind the tar files"),
        (lambda: dataset(shardshuffle=False).rsample(0.5), r"rsample\(0.5\): it may hold samples back, or draw"),
        (lambda: dataset(shardshuffle=False, nodesplitter=lambda stream: stream), "<lambda>: it is unknown whether"),
        (lambda: stages(wds.filters.shuffle(3, rng=random)), "give it a seed instead of rng"),
        (lambda: stages(wds.filters.shuffle(3, rng=random.random.__self__)), "give it a seed instead of rng"),  # type: ignore[attr-defined]
        (lambda: wds.DataPipeline(lambda: iter(urls()), wds.tarfile_to_samples()), "<lambda>: it is unknown whether"),
        (lambda: wds.DataPipeline(urls()), "no stage of the pipeline opens tar files"),
        (lambda: [1, 2], "a list is not a pipeline of WebDataset's"),
    ],
    ids=[
        "batches taken apart", "batches of batches", "shuffled late", "drawn", "another split", "random itself", "its generator",
        "a function", "no reader", "no pipeline",
    ],
)  # fmt: skip
def test_a_pipeline_that_cannot_be_resumed_exactly_is_refused(make: Make, message: str) -> None:
    with pytest.raises(ResumeError, match=message):
        prefeed.resumable(make())


def state_after(number: int, make: Make) -> Any:
    ours = prefeed.resumable(make())
    iterator = iter(ours)
    for _ in range(number):
        next(iterator)
    return saved(ours.state_dict())


def test_a_state_of_another_pipeline_is_refused() -> None:
    state = state_after(30, MAKES["samples shuffled"])
    other = prefeed.resumable(dataset(21, shardshuffle=4, detshuffle=True).map(key))
    with pytest.raises(
        ResumeError, match=r"saved with the stage shuffle\(20, 10\), and this pipeline's is shuffle\(21, 10\)"
    ):
        other.load_state_dict(state)
    with pytest.raises(ResumeError, match="its keys: loader"):
        other.load_state_dict({"loader": 1})

    def fewer() -> Any:
        return wds.WebDataset(urls()[1:], empty_check=False, seed=7, shardshuffle=False).map(key)

    ours = prefeed.resumable(fewer())
    ours.load_state_dict(
        state_after(30, lambda: wds.WebDataset(urls(), empty_check=False, seed=7, shardshuffle=False).map(key))
    )
    with pytest.raises(ResumeError, match="the first 5 shards differ from those of the state"):
        iter(ours)


def test_a_state_of_another_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = prefeed.resumable(MAKES["in order"]())
    ours.load_state_dict(state_after(3, MAKES["in order"]))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ResumeError, match="rank 0 of 1, worker 0 of 1, and this is rank 1 of 2, worker 0 of 1"):
        iter(ours)


def test_a_shard_that_has_lost_samples_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_after(14, MAKES["selected"])
    monkeypatch.setitem(sizes, 0, 1)
    monkeypatch.setitem(sizes, 1, 1)
    monkeypatch.setitem(sizes, 2, 1)
    ours = prefeed.resumable(MAKES["selected"]())
    ours.load_state_dict(state)
    with pytest.raises(ResumeError, match="has fewer samples than before"):
        list(ours)


@pytest.mark.parametrize("left", [0, 2])
def test_a_shard_that_lost_samples_which_were_read_is_an_error(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_after(3, MAKES["in order"])
    ours = prefeed.resumable(MAKES["in order"]())
    ours.load_state_dict(state)
    monkeypatch.setitem(sizes, 0, left)
    with pytest.raises(ResumeError, match="counted:0 has fewer samples than before"):
        list(ours)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """URLs of three shards on a disk, with three samples each; WebDataset does not close what it opens."""
    paths = [tmp_path / f"{number}.tar" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(tar_of(number, 3))
        os.utime(path, (1_600_000_000, 1_600_000_000))
    with contextlib.ExitStack() as stack:
        monkeypatch.setitem(
            gopen_schemes, "disk", lambda url, *_, **__: stack.enter_context(open(url.removeprefix("disk:"), "rb"))
        )
        yield [f"disk:{path}" for path in paths]


OF_FILES: dict[str, Make] = {
    "opened ahead": lambda paths, **options: prefeed.resumable(
        wds.WebDataset(paths, shardshuffle=False).map(key), **options
    ),
    "opened when they are read": lambda paths, **options: prefeed.resumable(
        wds.DataPipeline(wds.shardlists.SimpleShardList(paths), wds.tarfile_to_samples(), wds.map(key)), **options
    ),
}


@pytest.mark.parametrize("make", OF_FILES.values(), ids=OF_FILES)
def test_a_shard_with_other_content_and_as_many_samples_is_an_error(
    make: Make, files: list[str], tmp_path: Path
) -> None:
    plain = list(make(files))
    ours = make(files)
    samples = iter(ours)
    assert [next(samples) for _ in range(5)] == plain[:5]  # two samples of the second shard
    state = saved(ours.state_dict())

    (tmp_path / "0.tar").write_bytes(tar_of(4, 3))  # all its samples were taken: it is not read again
    again = make(files)
    again.load_state_dict(state)
    assert list(again) == plain[5:]

    (tmp_path / "1.tar").write_bytes(tar_of(5, 3))
    again = make(files)
    again.load_state_dict(state)
    with pytest.raises(ResumeError, match=r"1\.tar has changed since the state was saved.*same_versions=False"):
        list(again)

    again = make(files, same_versions=False)
    again.load_state_dict(state)
    assert list(again) == ["5-2", *plain[6:]]

    again = make(files)
    again.load_state_dict({name: value for name, value in state.items() if name != "versions"})  # of an earlier release
    assert list(again) == ["5-2", *plain[6:]]


def test_a_damaged_state_is_an_error() -> None:
    state = state_after(3, MAKES["in order"])
    ours = prefeed.resumable(MAKES["in order"]())
    ours.load_state_dict(state | {"num_taken": 4000})
    with pytest.raises(ResumeError, match="4000 samples were taken"):
        iter(ours)
