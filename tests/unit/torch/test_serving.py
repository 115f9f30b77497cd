"""While a sample is made, its files come from the cache; batches are made as torch makes them."""

from __future__ import annotations

import builtins
import copy
import io
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch.multiprocessing
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import ConcatDataset, StackDataset, Subset

from leaks import wait_until
from prefeed.client.access import AccessMap
from prefeed.client.files import SampleFiles
from prefeed.client.readers import active_reader
from prefeed.config import resolve
from prefeed.errors import ObjectNotFoundError
from prefeed.interception import uninstall
from prefeed.sources.learned import LearnedMap, LearnedMapWriter
from prefeed.sources.mounts import Roots
from prefeed.torch.samples import Lent, SharedState, WorkerStart, _end_orphan
from prefeed.torch.serving import Served

CACHED = b"from the cache"


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    uninstall()


class Cache:
    """Stands in for the reader: holds every object, or none, and remembers what it is told."""

    def __init__(self, answer: bytes | Exception | None = CACHED) -> None:
        self.answer = answer
        self.asked: list[int] = []
        self.asked_by_path: list[str] = []
        self.told: list[Any] = []
        self.last_key = b""
        self.waited_seconds = 0.0
        self.dataset: Any = None

    def pass_by(self, object_id: int | None) -> None:
        """Count nothing."""

    def try_read(self, object_id: int) -> bytes | None:
        self.asked.append(object_id)
        if isinstance(self.answer, Exception):
            raise copy.copy(self.answer)  # the parameter of a test stays, and would keep all that its traceback shows
        return self.answer

    def try_read_file(self, path: str) -> tuple[bytes | None, int | None]:
        self.asked_by_path.append(path)
        return self.answer, 10 + int(Path(path).stem)  # type: ignore[return-value]

    def learn(self, sample: int, ids: list[int]) -> None:
        self.told.append((sample, list(ids)))

    def for_thread(self) -> Any:
        return nullcontext(self)

    def passed_in_own_threads(self, num_files: int) -> None:
        self.told.append(("own threads", num_files))

    def sample_made(self) -> tuple[()]:
        return ()

    def report(self) -> None:
        self.told.append("report")

    def take_counts(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        self.told.append("close")


class Files:
    """A dataset that does with the file of each sample what it is told."""

    def __init__(self, paths: list[Path], act: Any) -> None:
        self.paths = paths
        self.act = act

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.act(self.paths[index])


class Batches(Files):
    """Makes a batch in one go, and notes which."""

    made: list[list[int]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.__dict__.setdefault("made", []).append(list(indices))
        return [self[index] for index in indices]


def served(inner: Any, paths: list[Path], cache: Any, *, files: bool = True, **columns: Any) -> Served:
    manifest = SimpleNamespace(
        path=lambda i: str(paths[i]), num_declared=len(paths), num_objects=len(paths), grows=False, directory=Path("/m")
    )
    cache.dataset = SimpleNamespace(manifest=manifest, num_samples=len(paths))
    access = AccessMap(dataset=cache.dataset, **columns)
    made = Served.__new__(Served)
    made.writes = None
    roots = Roots.of(resolve({"roots": [str(paths[0].parent)]}))
    made.__dict__.update(
        inner=inner,
        reader=cache,
        lent=Lent(),
        _access=access,
        _files=SampleFiles(cache, access, roots) if files else None,
        _epoch=0,
        shared=SharedState(),
    )
    return made


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{i}.bin" for i in range(3)]
    for index, path in enumerate(paths):
        path.write_bytes(b"on disk %d" % index)
    return paths


def read(path: Any) -> bytes:
    with open(path, "rb") as file:
        return bytes(file.read())


def test_another_thread_gets_a_reader_and_a_view_of_its_own(paths: list[Path], tmp_path: Path) -> None:
    """What was learned is mapped anew as it grows, and a reader is one thread's."""
    LearnedMapWriter.open_or_create(tmp_path / "map", len(paths)).close()
    learned = LearnedMap.open(tmp_path / "map", len(paths))
    made = served(Files(paths, read), paths, Cache(), learned=learned)
    made.reader.consumer = 7
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "prefeed.torch.serving.ObjectReader", lambda dataset, consumer: SimpleNamespace(consumer=consumer)
        )
        patch.setattr("prefeed.torch.serving.written_files", lambda dataset: None)
        again = made.again()
    assert again.inner is made.inner
    assert again.reader is not made.reader
    assert again.reader.consumer == 7
    assert again._access.learned is not learned
    assert again._access.learned is not None
    assert again._access.learned.directory == learned.directory


# ------------------------------------------------------------ one sample


def test_own_file_is_served(paths: list[Path]) -> None:
    cache = Cache()
    made = served(Files(paths, read), paths, cache)
    assert [made[i] for i in (2, 0, -1)] == [CACHED] * 3
    assert (cache.asked, cache.asked_by_path) == ([2, 0, 2], [])
    assert len(made) == 3
    assert builtins.open is io.open


@pytest.mark.parametrize(
    "act",
    [lambda path: path.read_bytes(), lambda path: np.fromfile(path, np.uint8).tobytes()],
    ids=["Path.read_bytes", "numpy.fromfile"],
)
def test_ways_past_open_are_served_too(paths: list[Path], act: Any) -> None:
    cache = Cache()
    assert served(Files(paths, act), paths, cache)[1] == CACHED
    assert cache.asked == [1]


def test_other_files_below_the_roots_are_asked_for_by_path(paths: list[Path]) -> None:
    cache = Cache()
    assert served(Files(paths, lambda path: read(path.with_name("2.bin"))), paths, cache)[0] == CACHED
    assert (cache.asked, cache.asked_by_path) == ([], [str(paths[2])])


@pytest.mark.parametrize("answer", [None, ObjectNotFoundError("gone")])
def test_what_the_cache_does_not_have_is_opened(paths: list[Path], answer: Any) -> None:
    """The real ``open`` says what is wrong in the words that the user knows, or succeeds."""
    made = served(Files(paths, read), paths, Cache(answer))
    assert made[1] == b"on disk 1"
    paths[1].unlink()
    with pytest.raises(FileNotFoundError) as caught:
        made[1]
    assert type(caught.value) is FileNotFoundError


def test_index_without_an_object(paths: list[Path]) -> None:
    """A sample that the map does not have is the dataset's own affair."""
    made = served(Files(paths, read), paths, Cache(), ids=np.array([0, 1]))
    with pytest.raises(IndexError, match="list index"):
        made[7]


@pytest.mark.usefixtures("sandbox")
def test_other_threads_are_left_alone(paths: list[Path]) -> None:
    """While one thread makes a sample, a thread of the program's opens the same file as it is."""
    seen: list[bytes] = []
    asked = threading.Event()
    other = threading.Thread(target=lambda: (asked.wait(), seen.append(read(paths[0]))))
    other.start()

    def act(path: Path) -> bytes:
        asked.set()
        other.join()
        return read(path)

    assert served(Files(paths, act), paths, Cache())[0] == CACHED
    assert seen == [b"on disk 0"]


@pytest.mark.usefixtures("sandbox")
def test_a_thread_that_outlives_its_sample_opens_files_as_they_are(paths: list[Path]) -> None:
    """What it opens is no file of the next sample."""
    seen: list[bytes] = []
    is_made, other_is_made = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def late() -> None:
        seen.append(read(paths[0]))
        is_made.wait()
        seen.append(read(paths[1]))
        other_is_made.set()

    def act(path: Path) -> bytes:
        if path == paths[0]:
            threads.append(threading.Thread(target=late))
            threads[0].start()
            assert wait_until(lambda: len(seen) == 1, timeout_seconds=60)
        else:
            is_made.set()
            other_is_made.wait()
        return read(path)

    cache = Cache()
    made = served(Files(paths, act), paths, cache)
    assert [made[0], made[2]] == [CACHED] * 2
    threads[0].join()
    assert seen == [CACHED, b"on disk 1"]
    assert sorted(cache.asked) == [0, 2]
    assert threading.Thread.start.__module__ == "threading"
    assert not hasattr(threading.Thread.start, "_prefeed_original")


def test_after_the_sample_files_are_as_ever(paths: list[Path]) -> None:
    made = served(Files(paths, read), paths, Cache())
    assert made[0] == CACHED
    assert read(paths[0]) == b"on disk 0"


def test_reader_is_in_charge_only_inside(paths: list[Path]) -> None:
    """Prefeed's own datasets, which open no files, ask who serves them."""
    cache = Cache()
    made = served(Files(paths, lambda path: active_reader(Path("/m"))), paths, cache, files=False)
    assert made[0] is cache
    assert made.__getitems__([0]) == [cache]
    assert active_reader(Path("/m")) is None
    assert served(Files(paths, lambda path: active_reader(Path("/x"))), paths, cache, files=False)[0] is None


# ------------------------------------------------------------ batches


@pytest.mark.parametrize("inside", [torch.inference_mode, lambda: torch.device("meta")], ids=["inference", "device"])
def test_what_the_loop_is_inside_of_changes_nothing(paths: list[Path], inside: Any) -> None:
    cache = Cache()
    with inside():
        made = served(Files(paths, read), paths, cache)
        assert made.__getitems__([0]) == [CACHED]
    made.epoch_begins()
    made.shared.count_reads(1, 2)
    assert made.__getitems__([0]) == [CACHED]
    assert made.shared.epoch == 1
    assert made.shared.num_reads() == (1, 2)


def test_batch_is_made_sample_by_sample_and_then_reported(paths: list[Path]) -> None:
    cache = Cache()
    made = served(Files(paths, read), paths, cache)
    assert made.__getitems__([2, 0]) == [CACHED, CACHED]
    assert (cache.asked, cache.told) == ([2, 0], ["report"])


def test_batch_method_of_the_dataset_is_used(paths: list[Path]) -> None:
    cache, inner = Cache(), Batches(paths, read)
    assert served(inner, paths, cache).__getitems__([2, 0]) == [CACHED, CACHED]
    assert (inner.made, cache.asked, cache.told) == ([[2, 0]], [2, 0], ["report"])


def test_subset_passes_batches_on(paths: list[Path]) -> None:
    cache, inner = Cache(), Batches(paths, read)
    made = served(Subset(inner, [2, 1]), paths, cache, indices=np.array([2, 1]))  # type: ignore[arg-type]
    assert made.__getitems__([0, 1]) == [CACHED, CACHED]
    assert (inner.made, cache.asked) == ([[2, 1]], [2, 1])


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Of a catalogue, nothing of whose samples is known."""
    writer = LearnedMapWriter.open_or_create(tmp_path / "catalogue", 3)
    yield writer.directory
    writer.close()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: inner,
        lambda inner: Subset(inner, [0, 1, 2]),
        lambda inner: Subset(Subset(inner, [0, 1, 2]), [0, 1, 2]),
        lambda inner: ConcatDataset([inner]),
    ],
    ids=["plain", "Subset", "Subset of a Subset", "ConcatDataset"],
)
def test_samples_of_what_makes_them_one_by_one_are_learned(paths: list[Path], directory: Path, wrap: Any) -> None:
    cache = Cache()
    made = served(wrap(Files(paths, read)), paths, cache, learned=LearnedMap.open(directory, 3))
    assert made.__getitems__([2, 0]) == [CACHED, CACHED]
    assert cache.told == [(2, [12]), (0, [10]), "report"]


def test_samples_of_what_makes_batches_are_not_learned(paths: list[Path], directory: Path) -> None:
    cache = Cache()
    made = served(Batches(paths, read), paths, cache, learned=LearnedMap.open(directory, 3))
    made.__getitems__([2, 0])
    assert cache.told == ["report"]
    made.__getitems__([1])  # there is no doubt whose files these are
    assert cache.told == ["report", (1, [11]), "report"]


def test_parts_of_a_stack_are_made_in_torch_s_order(paths: list[Path]) -> None:
    """A stack makes the batch of one part after the other: random numbers are drawn in this order."""
    drawn: list[tuple[str, str]] = []

    def part(name: str) -> Files:
        return Files(paths, lambda path: drawn.append((name, path.name)))

    stack: Any = StackDataset(part("a"), part("b"))  # type: ignore[arg-type]
    served(stack, paths, Cache()).__getitems__([2, 0])
    as_served = drawn.copy()
    drawn.clear()
    stack.__getitems__([2, 0])
    assert as_served == drawn


@pytest.mark.parametrize("in_subset", [False, True], ids=["stack", "Subset of a stack"])
def test_samples_of_a_stack_are_learned_with_the_files_of_all_parts(
    paths: list[Path], directory: Path, in_subset: bool
) -> None:
    first, second = Files(paths, read), Files(paths[::-1], read)
    stack: Any = StackDataset(image=first, label=second)  # type: ignore[arg-type]
    cache = Cache()
    made = served(Subset(stack, [0, 1, 2]) if in_subset else stack, paths, cache, learned=LearnedMap.open(directory, 3))
    assert made.__getitems__([2, 1]) == [{"image": CACHED, "label": CACHED}] * 2
    assert cache.told == [(2, [12, 10]), (1, [11]), "report"]


def test_error_in_a_batch_passes_and_is_reported_after(paths: list[Path]) -> None:
    def act(path: Path) -> bytes:
        if path is paths[0]:
            raise ZeroDivisionError("the user's own")
        return read(path)

    for inner in (Files(paths, act), Batches(paths, act)):
        cache = Cache()
        made = served(inner, paths, cache)
        with pytest.raises(ZeroDivisionError, match="the user's own"):
            made.__getitems__([2, 0, 1])
        assert (cache.asked, cache.told) == ([2], ["report"])
        assert read(paths[2]) == b"on disk 2"
        with pytest.raises(ZeroDivisionError):
            made[0]


def test_what_was_learned_meanwhile_is_used_in_the_next_batch(paths: list[Path], tmp_path: Path) -> None:
    writer = LearnedMapWriter.open_or_create(tmp_path / "later", 3)
    cache = Cache()
    made = served(Files(paths, read), paths, cache, learned=LearnedMap.open(writer.directory, 3))
    writer.record(1, [1] * 10_000)  # it has to be mapped anew
    made.__getitems__([1])
    assert (cache.asked, cache.asked_by_path) == ([1], [])
    writer.close()


# ------------------------------------------------------------ what is said of it


def test_samples_that_open_nothing_are_noticed(paths: list[Path], tmp_path: Path) -> None:
    writer = LearnedMapWriter.open_or_create(tmp_path / "catalogue", 3)
    cache = Cache()
    made = served(Files(paths, read), paths, cache, learned=LearnedMap.open(writer.directory, 3))
    assert not made.opens_nothing()  # none was made yet
    writer.record(1, [])
    assert made.opens_nothing()
    writer.suppose(2, [0])
    assert made.opens_nothing()  # what was guessed was not opened
    writer.record(2, [0])
    assert not made.opens_nothing()
    declared = served(Files(paths, read), paths, cache)
    cache.dataset.manifest.num_objects = 0
    assert not declared.opens_nothing()
    writer.close()


@pytest.mark.parametrize("files", [True, False])
def test_a_worker_shows_the_users_dataset_and_runs_the_users_function(
    paths: list[Path], files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Files(paths, read)
    made = served(inner, paths, Cache(), files=files)
    info = torch_worker.WorkerInfo(id=1, num_workers=2, seed=3, dataset=made)
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    called: list[Any] = []
    finalized: list[Any] = []
    monkeypatch.setattr("prefeed.torch.samples.util.Finalize", lambda *args, **kwargs: finalized.append(args))

    def then(worker_id: int) -> None:
        shown = torch_worker.get_worker_info()
        assert shown is not None
        called.append((worker_id, shown.dataset, shown.id, shown.num_workers, shown.seed))

    start = WorkerStart(then)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("prefeed.torch.samples.os.getpid", lambda: 1)  # of a worker; it was made in another process
        start(1)
    assert called == [(1, inner, 1, 2, 3)]
    assert finalized == [(None, _end_orphan), (made, made.reader.close)]
    assert made.opens_files is files


def test_a_worker_of_another_loader_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=3, dataset="theirs")
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    WorkerStart(None)(0)
    assert torch_worker._worker_info is info
