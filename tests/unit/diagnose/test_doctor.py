"""A loop is fed: what it gets, in which order, and what is left as it was."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import prefeed
from leaks import wait_until
from prefeed.config import resolve
from prefeed.diagnose import trials
from prefeed.diagnose.costs import TimedFiles
from prefeed.diagnose.doctor import Examination, doctor, of_rank_0
from prefeed.diagnose.loader_clone import clone_loader
from prefeed.diagnose.report import AS_IS, CACHE, COMPUTE, FIRST, STAGE_CACHE, LoaderReport
from prefeed.diagnose.search import Settings, Trial
from prefeed.errors import CannotExamineError

pytestmark = pytest.mark.usefixtures("sandbox")


class Files(Dataset[torch.Tensor]):
    """Each sample is a file, opened by path."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(map(str, root.iterdir()))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.paths[index], "rb") as file:
            number = int(file.read())
        return torch.tensor([number, 0])


class RandomFiles(Files):
    """With augmentation, as it were."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.randint(2, (2,))


@pytest.fixture(autouse=True)
def _one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many workers are tried as there are processors, and four times as many: 1 and 4."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "files"
    directory.mkdir()
    for index in range(40):
        (directory / f"{index:03}").write_bytes(str(index).encode())
    return directory


def examined(loader: DataLoader[Any], *, steps: int = 3) -> tuple[list[torch.Tensor], LoaderReport]:
    """Return all batches that a loop was fed with, and the report."""
    examination = Examination(loader=loader, steps=steps, device=None, say=lambda text: None)
    with closing(examination.feed()) as feed:
        fed = list(feed)
    assert examination.report is not None
    return fed, examination.report


def trial(report: LoaderReport, name: str) -> Trial:
    return next(trial for trial in report.trials if trial.name == name)


def workers_tried(report: LoaderReport) -> set[int]:
    return {trial.settings.num_workers for trial in report.trials if trial.steps} - {report.loader.settings.num_workers}


def numbers(batch: torch.Tensor) -> list[int]:
    return batch[:, 0].tolist()


def test_first_as_it_is_then_the_same_batch(root: Path) -> None:
    loader = DataLoader(Files(root), batch_size=4)
    fed, measured = examined(loader, steps=3)
    warm = 2
    as_is = [numbers(batch) for batch in fed[: warm + 3]]
    assert as_is == [[4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3] for k in range(5)]
    again = fed[warm + 3 : 2 * (warm + 3)]
    assert all(numbers(batch) == [20, 21, 22, 23] for batch in again)
    assert len(set(map(id, again))) == 5  # the first ones show whether steps change them
    assert trial(measured, AS_IS).steps == trial(measured, COMPUTE).steps == 3
    assert measured.loader.batch_size == 4
    assert measured.loader.samples == 40


def test_queues_of_workers_are_filled_first(root: Path) -> None:
    loader = DataLoader(Files(root), batch_size=2, num_workers=2, prefetch_factor=3)
    fed, measured = examined(loader, steps=2)
    assert len(fed) >= 2 * (2 * 3 + 2 + 2)
    assert measured.loader.settings.num_workers == 2
    assert measured.costs is not None
    assert measured.costs.transferring > 0


def test_files_are_timed_and_counted(root: Path) -> None:
    _, measured = examined(DataLoader(Files(root), batch_size=4))
    costs = measured.costs
    assert costs is not None
    assert costs.opening is not None
    assert costs.opening > 0
    assert costs.file_bytes in range(4, 9)  # four numbers of one or two digits
    assert costs.transferring == 0


def test_cures_are_tried_on_a_job_that_waits(root: Path) -> None:
    """Nobody works on the batches here, so all that is left is waiting."""
    fed, measured = examined(DataLoader(Files(root), batch_size=4))
    for name in (FIRST, CACHE, STAGE_CACHE):
        assert trial(measured, name).samples_s > 0
    assert workers_tried(measured) == {1, 4}
    assert {number for batch in fed for number in numbers(batch)} <= set(range(40))


def test_random_samples_are_kept_in_no_stage_cache(root: Path) -> None:
    _, measured = examined(DataLoader(RandomFiles(root), batch_size=4))
    assert "random" in (trial(measured, STAGE_CACHE).reason or "")


def test_nothing_is_left_of_the_trials(root: Path, sandbox: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Files(root), batch_size=4, shuffle=True, generator=generator, num_workers=1)
    before = dict(vars(loader))
    examined(loader)
    assert vars(loader) == before
    assert prefeed.statistics().reads == 0  # the user's own cache was not touched
    assert not list(sandbox.memory_dir.glob("*"))


def test_where_prefeed_is_in_use_a_later_epoch_counts(root: Path) -> None:
    loader: DataLoader[Any] = DataLoader(prefeed.CachedDataset(Files(root)), batch_size=4)
    fed, measured = examined(loader, steps=3)
    assert trial(measured, f"{AS_IS}, first epoch").steps == 3
    assert [numbers(batch) for batch in fed[:5]] == [numbers(batch) for batch in fed[5:10]]
    assert "in use already" in (trial(measured, CACHE).reason or "")
    assert "from one already" in (trial(measured, STAGE_CACHE).reason or "")


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


class Waiting(Stream):
    """Waits for each of its samples, as long as a remote file would take."""

    def __iter__(self) -> Iterator[int]:
        for number in range(12):
            time.sleep(0.005)
            yield number


def test_a_stream_is_told_what_it_waits_for_and_more_workers_are_tried() -> None:
    fed, measured = examined(DataLoader(Waiting(), batch_size=2), steps=3)
    assert measured.costs is not None
    assert measured.costs.reading is not None
    assert measured.costs.reading >= 0.009  # of 2 x 5 ms; one clock is not the other
    assert (measured.costs.opening, measured.loader.samples, measured.loader.batch_size) == (None, None, 2)
    assert fed[0].tolist() == [0, 1]
    assert workers_tried(measured) == {1}
    assert "each worker yields the same samples" in (trial(measured, "4 workers x 2").reason or "")


class Divided(Waiting):
    """Each worker has its part."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(start, 48, step):
            time.sleep(0.005)
            yield number


def test_workers_of_a_stream_that_is_split_are_measured() -> None:
    _, measured = examined(DataLoader(Divided(), batch_size=2), steps=3)
    assert workers_tried(measured) == {1, 4}
    assert not any(trial.reason for trial in measured.trials)


class Empty(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


def test_an_epoch_shorter_than_a_trial_begins_again(root: Path) -> None:
    loader = DataLoader(torch.utils.data.Subset(Files(root), range(4)), batch_size=2)
    fed, _ = examined(loader, steps=5)
    assert [numbers(batch) for batch in fed[:4]] == [[0, 1], [2, 3], [0, 1], [2, 3]]


def test_a_loader_without_batches() -> None:
    for dataset in ([], Empty()):
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=2)  # type: ignore[arg-type]
        with pytest.raises(CannotExamineError, match="no batches"):
            doctor(loader, lambda batch: None)


def test_a_loop_that_fails_fails_as_it_would(root: Path) -> None:
    def step(batch: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        doctor(DataLoader(Files(root), batch_size=4), step)


def test_too_few_steps(root: Path) -> None:
    with pytest.raises(ValueError, match="at least 2 steps"):
        doctor(DataLoader(Files(root)), lambda batch: None, steps=1)


def test_public_name(root: Path) -> None:
    verdict = prefeed.doctor(DataLoader(Files(root), batch_size=4), lambda batch: None, steps=2)
    assert 0.0 <= verdict.waiting <= 1.0
    assert "waits for data" in str(verdict)


class Words(Dataset[int]):
    """Takes what its sampler gives, and does not say how much there is."""

    def __getitem__(self, word: tuple[str, int]) -> int:
        return len(word[0])


def test_samples_by_name(root: Path) -> None:
    names = [(letter * 3, 1) for letter in "abcdefgh"]
    _, measured = examined(DataLoader(Words(), batch_size=4, sampler=names))
    assert measured.loader.samples is None
    assert measured.loader.batch_size == 4


class OfOneProcess(Files):
    """As one over a database that must not be used after a fork."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.process = os.getpid()

    def __getitem__(self, index: int) -> torch.Tensor:
        if os.getpid() != self.process:
            raise RuntimeError("opened in another process")
        return super().__getitem__(index)


class OfWorkers(Files):
    """Opened by ``worker_init_fn``."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is None:
            raise RuntimeError("not in a worker")
        return super().__getitem__(index)


def test_a_trial_that_fails_is_no_failure_of_the_program(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch waits so long for workers of an iterator that the collector finds, in vain, and then ends them.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    _, measured = examined(DataLoader(OfOneProcess(root), batch_size=4))
    assert trial(measured, "1 worker x 2").reason == "RuntimeError: opened in another process"
    assert measured.costs is not None
    _, measured = examined(DataLoader(OfWorkers(root), batch_size=4, num_workers=1))
    assert trial(measured, "one batch").reason == "RuntimeError: not in a worker"
    assert measured.costs is None
    assert workers_tried(measured)
    gc.collect()  # iterators, which the tracebacks' frames held
    assert wait_until(lambda: not multiprocessing.active_children(), timeout_seconds=60)


def test_what_a_step_does_to_a_batch_is_undone(root: Path) -> None:
    class Labelled(Files):
        def __getitem__(self, index: int) -> Any:
            return {"image": super().__getitem__(index), "label": torch.tensor(1)}

    def step(batch: dict[str, torch.Tensor]) -> None:
        assert batch.pop("label").sub_(1).eq(0).all()

    doctor(DataLoader(Labelled(root), batch_size=4), step, steps=2)


class Clock:
    """Stands in for ``time``: each look takes a millisecond."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now


def test_time_between_two_epochs_is_no_steps(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(trials, "time", clock)
    examination = Examination(
        loader=DataLoader(Files(root), batch_size=4), steps=4, device=None, say=lambda text: None
    )  # fmt: skip
    for number, _ in enumerate(examination.feed()):
        if number % 3 == 2:
            clock.now += 1000.0  # the loop is elsewhere
            examination.trials.was_elsewhere = True
    assert examination.report is not None
    as_is = trial(examination.report, AS_IS)
    assert as_is.steps == 4
    assert as_is.seconds < 1.0


def test_a_clone_has_the_settings_of_its_loader(root: Path) -> None:
    config = resolve({"enabled": False})
    none = Settings(num_workers=0)
    loader: Any = prefeed.DataLoader(Files(root), batch_size=4, config=config)
    assert vars(clone_loader(loader, none, [[0, 1]]))["_prefeed_config"] == config
    assert "_prefeed_config" not in vars(clone_loader(DataLoader(Files(root), batch_size=4), none, [[0, 1]]))


def test_files_that_are_not_read_whole(tmp_path: Path) -> None:
    files = TimedFiles()
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(tmp_path / "pipe")
    for path in (large, tmp_path / "pipe", Path("/dev/zero"), tmp_path / "none"):
        assert files.read_file(str(path)) is None
    assert files.paths == []


def _decide(rank: int, store: str, told: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    told.put((rank, of_rank_0(f"what rank {rank} thinks")))
    torch.distributed.destroy_process_group()


def test_ranks_do_what_the_first_one_decides(tmp_path: Path) -> None:
    context = torch.multiprocessing.get_context("fork")
    told = context.Queue()
    ranks = [context.Process(target=_decide, args=(rank, str(tmp_path / "store"), told)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    seen = dict(told.get(timeout=60) for _ in ranks)
    for rank in ranks:
        rank.join()
        rank.close()
    told.close()
    told.join_thread()
    assert seen == {0: "what rank 0 thinks", 1: "what rank 0 thinks"}


def test_a_process_alone_decides_by_itself() -> None:
    assert of_rank_0(7) == 7
