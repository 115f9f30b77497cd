"""Stage caches are sound because they are checked: samples made twice, audits, files that a process has kept something of."""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import leaks
import prefeed
from cover import crossed
from e2e.stages import Files, Log, values, write_file, write_files
from prefeed.client.node import NodeClient
from prefeed.config import current
from prefeed.errors import RandomStageError
from prefeed.stage_cache.auditing import ON_CREDIT
from prefeed.stage_cache.files_seen import Standing
from prefeed.stage_cache.making import is_checking
from prefeed.stage_cache.parts import FilledParts

NUM_SAMPLES = 24


class Numbers:
    """Sample i is what a function makes of i."""

    def __init__(self, make: Callable[[int], Any], count: int = NUM_SAMPLES) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has read for other tests, and what their samples filled, is no part of a sample here."""
    begin_a_process(monkeypatch)


def begin_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on it is as if another process had begun."""
    remembered.cache_clear()
    of_module.clear()
    monkeypatch.setattr(sys.modules[__name__], "of_all", None)
    monkeypatch.setattr("prefeed.stage_cache.making.standing", Standing())
    monkeypatch.setattr("prefeed.stage_cache.stage.filled", FilledParts())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "made")


@pytest.fixture
def files(tmp_path: Path, log: Log) -> Files:
    return Files(write_files(tmp_path / "data", NUM_SAMPLES), NUM_SAMPLES, log)


# ---------------------------------------------------------------- chance


class Overtaken(Files):
    """Somebody replaces the file of sample 0 just before it is made for the second time."""

    def __getitem__(self, index: int) -> Any:
        if index == 0 and is_checking():
            write_file(self.root, 0, 99, seconds=2)
        return super().__getitem__(index)


def test_a_file_that_changes_between_two_makings_is_no_chance(tmp_path: Path, log: Log) -> None:
    cached = prefeed.CachedDataset(Overtaken(write_files(tmp_path / "data", NUM_SAMPLES), NUM_SAMPLES, log))
    assert [int(cached[0][0][0]), int(cached[1][0][0])] == [0, 1]
    assert int(cached[0][0][0]) == 99
    assert log.take() == ["0", "1", "0"]


class Seeded:
    """Draws by a seed that is none."""

    seed: int | None = None

    def numpys(self, index: int) -> Any:
        return np.random.default_rng(self.seed).random(3)

    def pythons(self, index: int) -> Any:
        return random.Random(self.seed).random()


def of_opencv(index: int) -> Any:
    cv2 = pytest.importorskip("cv2")
    return cv2.randu(np.zeros((4, 4), np.uint8), 0, 255)


def of_skimage(index: int) -> Any:
    util = pytest.importorskip("skimage.util")
    return util.random_noise(np.full((8, 8), 0.5))


def of_torchs_generator(index: int) -> Any:
    generator = torch.Generator()
    getattr(generator, "seed")()  # noqa: B009 - named, it would be found without running it
    return torch.zeros(3).uniform_(generator=generator)


def of_sobol(index: int) -> Any:
    return torch.quasirandom.SobolEngine(2, scramble=True, seed=None).draw(2)


RANDOM = [Seeded().numpys, Seeded().pythons, of_opencv, of_skimage, of_torchs_generator, of_sobol]


@pytest.mark.parametrize(("make", "workers"), crossed(RANDOM, [0, 2]))
def test_a_stage_whose_samples_differ_is_refused(make: Any, workers: int) -> None:
    def read() -> None:
        iterator: Any = iter(DataLoader(prefeed.CachedDataset(Numbers(make)), batch_size=None, num_workers=workers))
        try:
            list(iterator)
        finally:
            if workers:  # an error that torch raises anew keeps the iterator: its workers would end after 5 s each
                iterator._shutdown_workers()

    with pytest.raises(RandomStageError, match=r"Numbers|draws") as caught:
        read()
    with pytest.raises(RandomStageError):  # nor is anything left of it
        read()
    assert "prefeed.not_random" in str(caught.value)


class Flipped:
    """Flips a coin, from a generator of its own that nobody can see."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        return index if os.getpid() == 0 or __import__("sec" + "rets").randbelow(2) else -index


def test_a_coin_is_found_out_sooner_or_later(caplog: pytest.LogCaptureFixture) -> None:
    cached = prefeed.CachedDataset(Flipped(), version="1")
    with pytest.raises(RandomStageError):
        for _ in range(50):
            cached.samples(range(1, 200))
            cached = prefeed.CachedDataset(Flipped(), version=f"{random.random()}")


def test_making_twice_moves_no_generator_and_is_no_sample_more(files: Files, log: Log) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = (torch.get_rng_state().tolist(), np.random.get_state(legacy=False), random.getstate())
    marked = prefeed.not_random(Numbers(lambda index: int(torch.zeros(()).normal_() * 0) + index))
    cached = prefeed.CachedDataset(files)
    assert values(cached[index] for index in range(8)) == [(index, index) for index in range(8)]
    after = (torch.get_rng_state().tolist(), np.random.get_state(legacy=False), random.getstate())
    assert str(before) == str(after)
    expected = torch.Generator().manual_seed(1)
    drawn = prefeed.CachedDataset(marked)
    assert [drawn[index] for index in range(3)] == [0, 1, 2]
    for _ in range(3):
        torch.zeros(()).normal_(generator=expected)
    assert torch.get_rng_state().equal(expected.get_state())  # as if each had been made once


def test_what_is_not_a_number_is_equal_to_itself() -> None:
    cached = prefeed.CachedDataset(
        Numbers(lambda index: {"x": np.full(3, np.nan), "y": float("nan"), "z": torch.tensor(-0.0)})
    )
    for _ in range(2):
        assert np.isnan(cached[0]["x"]).all()
    assert cached.get_stat().num_mem_cached == 1


# ---------------------------------------------------------------- audits


factor = {"of": 1}  # changed behind everybody's back


class Hidden:
    """Depends on something that nobody can see."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Any:
        return {"image": np.full(3, index * vars(sys.modules[type(self).__module__])["fac" + "tor"]["of"])}


@pytest.mark.parametrize(
    ("loader", "workers"),
    [(DataLoader, {"num_workers": 0}), (DataLoader, {"num_workers": 2}), (prefeed.DataLoader, {"num_workers": 2})],
    ids=["torch's", "torch's with workers", "prefeed's with workers"],
)
def test_an_audit_empties_a_cache_that_is_wrong(
    loader: Any, workers: dict[str, Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def read() -> list[int]:
        return [
            int(sample["image"][0])
            for sample in loader(prefeed.CachedDataset(Hidden(), version="1"), batch_size=None, **workers)
        ]

    factor["of"] = 1
    try:
        assert read() == list(range(NUM_SAMPLES))
        assert audits()[1] == 0
        factor["of"] = 3
        read()  # finds it: of the samples before that, some may be old ones
        assert read() == [3 * index for index in range(NUM_SAMPLES)]
    finally:
        factor["of"] = 1
    made, failed = audits()
    assert made > failed >= 1
    if not workers["num_workers"]:
        assert "sample[0]" not in caplog.text
        assert (
            "stage-audit-failed: sample 1 of Hidden differs from the cached one (sample['image'][0]: 1, now 3 (3 of 3"
            in caplog.text
        )


def audits() -> tuple[int, int]:
    with NodeClient.connect(current()) as node:
        found = node.statistics()
    assert found.errors.get("stage-audit-failed", 0) == found.sessions.audits_failed
    return found.sessions.audits, found.sessions.audits_failed


def test_an_audit_is_nothing_that_a_loop_can_see(files: Files, log: Log) -> None:
    cached = prefeed.CachedDataset(files)
    assert len(values(cached)) == NUM_SAMPLES
    log.take()
    random.seed(3)
    before = random.getstate()
    assert len(values(cached)) == NUM_SAMPLES
    assert random.getstate() == before
    assert log.take() == []
    os.rename(files.root / "0.bin", files.root / "x")  # an audit that cannot be made is none
    os.rename(files.root / "x", files.root / "0.bin")
    cached.close()
    assert audits()[0] > 0


class Told:
    """Notes which process makes or gets a sample; these are counted also where they are made to be compared."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what

    def __call__(self, sample: Any) -> Any:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{os.getpid()} {self.what}\n".encode())
        os.close(descriptor)
        return sample

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []


@pytest.mark.parametrize("below", ["files", "objects"])
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle workers", "busy workers"])
def test_audits_wait_until_a_worker_has_nothing_to_do(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str, is_busy: bool
) -> None:
    made_from = files if below == "files" else prefeed.datasets.Objects(str(files.root))
    told = Told(tmp_path / "told", "got")
    monkeypatch.setattr("prefeed.stage_cache.auditing.SHARE", 0.0)  # no others than the first ones
    if is_busy:
        monkeypatch.setattr("prefeed.torch.samples._IDLE_SECONDS", 60.0)  # as if there were always something to do

    def loader() -> Any:
        cached = prefeed.CachedDataset(prefeed.mapped(made_from, Told(told.path, "made"), version="1"))
        return prefeed.DataLoader(prefeed.mapped(cached, told), batch_size=2, num_workers=2, collate_fn=len)

    assert sum(loader()) == NUM_SAMPLES
    os.unlink(told.path)
    iterator = iter(loader())
    assert next(iterator) == 2
    if not is_busy:  # the loop asks for nothing meanwhile
        assert leaks.wait_until(lambda: [what for _, what in told.lines()].count("made") >= 2, timeout_seconds=60)
    assert 2 + sum(iterator) == NUM_SAMPLES
    del iterator
    of_workers: dict[str, list[str]] = {}
    for process, what in told.lines():
        of_workers.setdefault(process, []).append(what)
    for whats in of_workers.values():
        assert whats[:2] == ["got", "got"]  # the loop does not wait for an audit
        assert whats.count("got") == NUM_SAMPLES // 2
        if is_busy:
            assert set(whats[NUM_SAMPLES // 2 :]) == {"made"}
    num_audits = sum(whats.count("made") for whats in of_workers.values())
    assert 2 <= num_audits <= ON_CREDIT
    assert audits() == (num_audits, 0)


def of_many_numbers(index: int) -> Any:
    return torch.arange(300_000).mul(0.1 + index).sum()


def test_sums_of_more_threads_are_no_failed_audits() -> None:
    threads = torch.get_num_threads()
    try:
        for at_first, later in ((1, 2), (2, 1)):
            torch.set_num_threads(at_first)
            cached = prefeed.CachedDataset(Numbers(of_many_numbers), version=f"{at_first}")
            first = [float(cached[index]) for index in range(NUM_SAMPLES)]
            torch.set_num_threads(later)
            assert [float(cached[index]) for index in range(NUM_SAMPLES)] == first
            assert torch.get_num_threads() == later
    finally:
        torch.set_num_threads(threads)
    made, failed = audits()
    assert (made > 0, failed) == (True, 0)


# ---------------------------------------------------------------- files that are kept


class Late(Files):
    """Opens a file of annotations when the first sample asks for it, and keeps what it says."""

    annotations: Any = None

    def said(self, index: int) -> Any:
        if self.annotations is None:
            with open(self.root / "annotations.json") as file:
                self.annotations = json.load(file)
        return self.annotations["all"]

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return super().__getitem__(index)[0], self.said(index)


@functools.lru_cache(8)
def remembered(path: str) -> Any:
    return json.loads(Path(path).read_text())


class Remembered(Late):
    def said(self, index: int) -> Any:
        return remembered(str(self.root / "annotations.json"))["all"]


of_module: dict[str, Any] = {}


of_all: Any = None


class OfModule(Late):
    def said(self, index: int) -> Any:
        path = str(self.root / "annotations.json")
        if path not in of_module:
            of_module[path] = np.loadtxt(path.replace(".json", ".txt"))
        return int(of_module[path])


class OfGlobal(Late):
    def said(self, index: int) -> Any:
        global of_all
        if of_all is None:
            of_all = json.loads((self.root / "annotations.json").read_text())
        return of_all["all"]


class OfEachClass(Late):
    """One file for each five samples, opened when the first of them is made."""

    def said(self, index: int) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        number = index // 5
        if number not in kept:
            kept[number] = json.loads((self.root / f"annotations-{number}.json").read_text())
        return kept[number]["all"]


def annotate(root: Path, value: int, *, seconds: int) -> None:
    paths = [root / "annotations.json", *(root / f"annotations-{number}.json" for number in range(5))]
    for path in paths:
        path.write_text(json.dumps({"all": value}))
        os.utime(path, (seconds, seconds))
    (root / "annotations.txt").write_text(str(value))
    os.utime(root / "annotations.txt", (seconds, seconds))


@pytest.mark.parametrize(
    ("kind", "loader_and_workers"),
    crossed(
        [Late, Remembered, OfModule, OfGlobal, OfEachClass],
        {
            "in the process": (DataLoader, None),
            "forked": (DataLoader, "fork"),
            "prefeed's": (prefeed.DataLoader, "fork"),
            "spawned": (DataLoader, "spawn"),
        },
    ),
)
def test_a_file_that_is_opened_late_counts_for_all_samples_after_it(
    files: Files,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Late],
    loader_and_workers: tuple[Any, str | None],
) -> None:
    loader, workers = loader_and_workers
    annotate(files.root, 1, seconds=1)

    def read() -> list[int]:
        begin_a_process(monkeypatch)
        cached = prefeed.CachedDataset(kind(files.root, NUM_SAMPLES, log))
        settings = {"multiprocessing_context": workers, "num_workers": 2} if workers else {}
        batches = loader(cached, batch_size=2, **settings)
        return [int(label) for _, labels in batches for label in labels]

    assert read() == [1] * NUM_SAMPLES
    log.take()
    assert read() == [1] * NUM_SAMPLES
    assert log.take() == []
    annotate(files.root, 2, seconds=2)
    assert read() == [2] * NUM_SAMPLES


@pytest.mark.parametrize("kind", [Late, Remembered, OfModule, OfGlobal, OfEachClass])
def test_a_file_that_was_opened_for_an_audit_counts_for_what_is_made_afterwards(
    files: Files, log: Log, monkeypatch: pytest.MonkeyPatch, kind: type[Late]
) -> None:
    def process() -> prefeed.CachedDataset:
        begin_a_process(monkeypatch)
        return prefeed.CachedDataset(kind(files.root, NUM_SAMPLES, log))

    monkeypatch.setattr("prefeed.stage_cache.auditing.SHARE", 0.0)  # the last pass audits samples 0, 1, 3, 7, ...
    annotate(files.root, 1, seconds=1)
    cached = process()
    assert [cached[index][1] for index in range(NUM_SAMPLES)] == [1] * NUM_SAMPLES
    write_file(files.root, 6, 100, seconds=2)
    cached = process()
    log.take()
    assert cached[2] is not None  # found, and audited: that opens the file, and keeps what it says
    assert log.take() == []
    assert cached[6][1] == 1
    assert log.take() == ["6"]
    annotate(files.root, 2, seconds=2)
    cached = process()
    assert [cached[index][1] for index in range(NUM_SAMPLES)] == [2] * NUM_SAMPLES


def test_what_was_filled_before_a_sample_raises_is_no_change(files: Files, log: Log) -> None:
    annotate(files.root, 1, seconds=1)
    cached = prefeed.CachedDataset(Late(files.root, NUM_SAMPLES, log))
    with pytest.raises(IndexError):
        cached.samples((0, NUM_SAMPLES))
    assert [cached[index][1] for index in range(NUM_SAMPLES)] == [1] * NUM_SAMPLES
    assert log.take() == [str(index) for index in range(NUM_SAMPLES)]


class Tabled(Files):
    """Its samples depend on what is inside an attribute."""

    def __init__(self, root: Path, num_samples: int, log: Log) -> None:
        super().__init__(root, num_samples, log)
        self.table = {"of": 1}

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return super().__getitem__(index)[0], index * self.table["of"]


def test_what_the_user_changes_before_an_audit_is_not_taken_for_what_the_audit_fills(files: Files, log: Log) -> None:
    assert len([*prefeed.CachedDataset(Tabled(files.root, NUM_SAMPLES, log))]) == NUM_SAMPLES
    tabled = Tabled(files.root, NUM_SAMPLES, log)
    cached = prefeed.CachedDataset(tabled)
    assert cached[0][1] == 0
    tabled.table["of"] = 2
    log.take()
    assert cached[1][1] == 2  # found, audited, and so looked at
    assert log.take() == ["1"]
    assert audits()[1] == 0
    assert [label for _, label in prefeed.CachedDataset(Tabled(files.root, NUM_SAMPLES, log))] == [*range(NUM_SAMPLES)]


def test_python_is_asked_to_tell_of_opens_only_where_samples_are_made(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be taken back, and slows down ``id`` and ``copy.deepcopy``, is no matter of the training process."""
    told = Told(tmp_path / "told", "watches")
    monkeypatch.setattr("prefeed.interception.events._is_watching", False)
    monkeypatch.setattr("sys.addaudithook", told)
    in_use = []
    for _ in range(2):  # makes samples, then finds and audits them
        for loader in (DataLoader, prefeed.DataLoader):
            times = 1 if loader is DataLoader else 2  # makes them samples of another stage
            cached = prefeed.CachedDataset(Files(files.root, NUM_SAMPLES, files.log, times=times))
            in_use.append(cached)  # so that neither cache gives way to the other
            assert len([*loader(cached, batch_size=8, num_workers=2, collate_fn=len)]) == 3
        watching = {process for process, _ in told.lines()}
        assert 2 <= len(watching) <= 4
        assert str(os.getpid()) not in watching
    cached = prefeed.CachedDataset(files)
    assert len([cached[index] for index in range(NUM_SAMPLES)]) == NUM_SAMPLES
    cached.close()
    assert audits()[0] > 0
    assert {process for process, _ in told.lines()} == watching


class Linked:
    """Opens labels by way of a link, in each way that there is."""

    def __init__(self, root: Path, how: str) -> None:
        self.root = root
        self.how = how

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        path = f"{self.root}/images/../labels/{index}.txt"
        match self.how:
            case "open":
                with open(path) as file:
                    return int(file.read())
            case "loadtxt":
                return int(np.loadtxt(path))
            case "os.open":
                descriptor = os.open(path, os.O_RDONLY)
                with os.fdopen(descriptor) as file:
                    return int(file.read())
            case "dir_fd":
                directory = os.open(f"{self.root}/images/../labels", os.O_RDONLY)
                try:
                    descriptor = os.open(f"{index}.txt", os.O_RDONLY, dir_fd=directory)
                finally:
                    os.close(directory)
                with open(descriptor) as file:
                    return int(file.read())
        raise AssertionError(self.how)


@pytest.mark.parametrize("how", ["open", "loadtxt", "os.open", "dir_fd"])
def test_files_that_are_opened_past_every_replacement(tmp_path: Path, how: str) -> None:
    (tmp_path / "elsewhere" / "images").mkdir(parents=True)
    (tmp_path / "elsewhere" / "labels").mkdir()
    (tmp_path / "labels").mkdir()  # where it would be if the link were a directory
    (tmp_path / "images").symlink_to("elsewhere/images")

    def write(value: int) -> None:
        for index in range(6):
            path = tmp_path / "elsewhere" / "labels" / f"{index}.txt"
            path.write_text(f"{value + index}")
            os.utime(path, (value, value))

    write(10)
    cached = prefeed.CachedDataset(Linked(tmp_path, how))
    assert [cached[index] for index in range(6)] == [10 + index for index in range(6)]
    assert [cached[index] for index in range(6)] == [10 + index for index in range(6)]
    assert cached.get_stat().num_mem_cached == (0 if how == "dir_fd" else 6)
    write(20)
    assert [cached[index] for index in range(6)] == [20 + index for index in range(6)]


def test_many_files_that_are_kept_end_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefeed.stage_cache.files_seen._MAX_FILES", 3)
    kept: dict[int, str] = {}

    def make(index: int) -> str:
        if index not in kept:
            kept[index] = (tmp_path / str(index)).read_text()
        return kept[index]

    for index in range(8):
        (tmp_path / str(index)).write_text(str(index))
    cached = prefeed.CachedDataset(Numbers(make, 8), version="1")
    assert [cached[index] for index in range(8)] == [str(index) for index in range(8)]
    assert cached.get_stat().num_mem_cached == 3
    assert caplog.text.count("keeps data of more than 3 files") == 1
