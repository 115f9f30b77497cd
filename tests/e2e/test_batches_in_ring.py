"""Batches in recycled memory: those of torch, whatever the loop does with them."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

import prefeed
from cover import crossed
from e2e.automatic import auto
from e2e.steps import Setup, assert_same, digest, observe, seed_all
from leaks import wait_until

TorchLoader = torch.utils.data.DataLoader
NUM_SAMPLES = 26
BATCH = 4


class Pictures(Dataset[Any]):
    """A picture that is large in a batch, one that is not, and a label; each sample knows a file."""

    size = 64

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.files = [str(root / f"{i}") for i in range(NUM_SAMPLES)]
        for name in self.files:
            Path(name).write_bytes(b"x")

    def train_data_list(self) -> list[str]:
        return self.files

    def __len__(self) -> int:
        return len(self.files)

    def picture(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, self.size, self.size, generator=generator)

    def __getitem__(self, index: int) -> Any:
        mask = (self.picture(index) > 0.5).repeat(1, 2, 2)
        return {"picture": self.picture(index), "mask": mask, "label": index, "name": self.files[index][-2:]}


class Sizes(Pictures):
    """Batches of other shapes: each two are alike, and some are too small for a slot."""

    def __getitem__(self, index: int) -> Any:
        side = (8, 64, 100, 32)[index // BATCH % 4]
        return self.picture(index).repeat(1, 3, 3)[:, :side, :side]


class Failing(Pictures):
    """One sample cannot be read, and one is of another shape."""

    bad = -1
    ragged = -1

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise KeyError(f"no sample {index}")
        picture = self.picture(index)
        return picture, (picture[1:] if index == self.ragged else picture)


class Killed(Pictures):
    """A worker ends itself the first time that it is asked for a sample."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "files")
        self.mark = root / "killed"

    def __getitem__(self, index: int) -> Any:
        if index == 13 and get_worker_info() is not None and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _only_these_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))


def loader_of(dataset: Any, loader_class: Any = prefeed.DataLoader, **kwargs: Any) -> Any:
    return loader_class(dataset, **{"batch_size": BATCH, "num_workers": 2, **kwargs})


def lies_in_ring(tensor: torch.Tensor) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return "memfd:prefeed-batches" in line
    raise AssertionError("the tensor has no memory")


def ring_bytes() -> int:
    """Return how much the rings of this process take."""
    sizes: dict[tuple[int, int], int] = {}
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.lexists(path) and "memfd:prefeed-batches" in os.readlink(path):
            status = os.stat(path)
            sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def batch_bytes(batch: Any) -> int:
    return int(batch["picture"].nbytes + batch["mask"].nbytes)


def compare(dataset: Any, **kwargs: Any) -> None:
    """Fail unless three epochs are those of torch, and pictures are in a ring."""
    seed_all()
    expected = observe(loader_of(dataset, TorchLoader, **kwargs), Setup({}))
    seed_all()
    loader = loader_of(dataset, **kwargs)
    assert_same(expected, observe(loader, Setup({})))
    assert lies_in_ring(next(iter(loader))["picture"])


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_same_batches(root: Path, persistent_workers: bool) -> None:
    compare(Pictures(root), shuffle=True, persistent_workers=persistent_workers)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_same_batches_of_other_start_methods(root: Path, start_method: str) -> None:
    expected = [digest(batch) for batch in loader_of(Pictures(root), TorchLoader)]
    kwargs = {"num_workers": 1, "persistent_workers": True}  # a worker imports torch, which takes seconds
    loader = loader_of(Pictures(root), multiprocessing_context=start_method, **kwargs)
    for _ in range(3):
        for batch, digest_of_torch in zip(loader, expected, strict=True):
            assert digest(batch) == digest_of_torch
            assert lies_in_ring(batch["picture"])


@pytest.mark.parametrize(
    "kwargs",
    [
        {"num_workers": 1},
        {"num_workers": 3, "prefetch_factor": 5},
        {"drop_last": True},
        {"collate_fn": default_collate},
    ],
    ids=" ".join,
)
def test_same_batches_of_other_loaders(root: Path, kwargs: dict[str, Any]) -> None:
    compare(Pictures(root), **kwargs)


def test_auto(root: Path) -> None:
    dataset = Pictures(root)
    expected = [digest(batch) for batch in loader_of(dataset, TorchLoader)]
    with auto():
        batches = list(loader_of(dataset, TorchLoader))
    assert [digest(batch) for batch in batches] == expected
    assert lies_in_ring(batches[0]["picture"])


def test_shapes_that_change(root: Path) -> None:
    dataset = Sizes(root)
    expected = [digest(batch) for batch in loader_of(dataset, TorchLoader)]
    loader = loader_of(dataset, persistent_workers=True)
    for _ in range(3):
        where = []
        for batch, digest_of_torch in zip(loader, expected, strict=True):
            assert digest(batch) == digest_of_torch
            where.append(lies_in_ring(batch))
        assert where == [False, True, True, False, False, True, True]


def test_one_sample_batches(root: Path) -> None:
    dataset = Pictures(root)
    dataset.size = 100
    expected = [digest(batch) for batch in loader_of(dataset, TorchLoader, batch_size=1)]
    assert [digest(batch) for batch in loader_of(dataset, batch_size=1)] == expected


# ---------------------------------------------------------------- what the loop holds


def test_all_batches_of_all_epochs_are_held(root: Path) -> None:
    dataset = Pictures(root)
    expected = [digest(batch) for batch in loader_of(dataset, TorchLoader)]
    loader = loader_of(dataset)
    held = [batch for _ in range(4) for batch in loader]
    assert [digest(batch) for batch in held] == expected * 4
    where = [lies_in_ring(batch["picture"]) for batch in held]
    assert set(where) == {True, False}
    assert 7 <= where.count(True) <= 14, "about six a worker"
    del held
    assert all(lies_in_ring(batch["picture"]) for batch in loader), "slots are used again when they are free"


def test_labels_that_are_kept_hold_nothing(root: Path) -> None:
    loader = loader_of(Pictures(root))
    labels = []
    for _ in range(4):
        for batch in loader:
            assert lies_in_ring(batch["picture"])
            labels.append(batch["label"])
    assert torch.cat(labels).tolist() == list(range(NUM_SAMPLES)) * 4


def test_the_loop_changes_its_batches(root: Path) -> None:
    dataset = Pictures(root)
    expected = [digest(batch) for batch in loader_of(dataset, TorchLoader)]
    loader = loader_of(dataset)
    for _ in range(3):
        seen = []
        for batch in loader:
            seen.append(digest(batch))
            batch["picture"].fill_(-1)
            batch["mask"].resize_(2, 2).fill_(True)
            batch["label"] += 1
            batch["extra"] = batch["picture"]
        assert seen == expected


def test_copies_of_a_batch(root: Path) -> None:
    loader = loader_of(Pictures(root))
    batch = next(iter(loader))
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    copies = [copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), torch.load(file)]
    expected = digest(batch)
    batch["picture"].zero_()
    for copied in copies:
        assert digest(copied) == expected
        assert not lies_in_ring(copied["picture"])


def test_shared_memory_of_its_own(root: Path) -> None:
    loader = loader_of(Pictures(root))
    batches = [batch["picture"].share_memory_() for batch in loader]
    assert all(batch.is_shared() and not lies_in_ring(batch) for batch in batches)
    expected = [digest(batch["picture"]) for batch in loader_of(Pictures(root), TorchLoader)]
    assert [digest(batch) for batch in batches] == expected


def answer_digests(batches: Any, answers: Any) -> None:
    while (batch := batches.get()) is not None:
        answers.put(digest(batch))
        del batch


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_batches_sent_to_another_process(root: Path, start_method: str) -> None:
    expected = [digest(batch) for batch in loader_of(Pictures(root), TorchLoader)]
    loader = loader_of(Pictures(root))
    context = torch.multiprocessing.get_context(start_method)
    batches, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=answer_digests, args=(batches, answers))
    process.start()
    seen = []
    for batch in loader:
        batches.put(batch)
        seen.append(answers.get())
    batches.put(None)
    process.join()
    process.close()
    assert seen == expected
    torch.multiprocessing.reductions.shared_cache.free_dead_references()
    import multiprocessing.resource_sharer

    multiprocessing.resource_sharer.stop()
    for queue in (batches, answers):
        queue._reader.close()
        queue._writer.close()


def test_a_forked_process_reads_what_it_was_given(root: Path) -> None:
    """The loop goes on meanwhile, and its own tensors are gone."""
    loader = loader_of(Pictures(root))
    context = torch.multiprocessing.get_context("fork")
    batches, answers = context.SimpleQueue(), context.SimpleQueue()
    iterator = iter(loader)
    batch = next(iterator)
    expected = digest(batch)
    process = context.Process(target=answer_later, args=(batch, batches, answers))
    process.start()
    del batch
    for _ in iterator:
        pass
    for _ in range(2):
        for _ in loader:
            pass
    batches.put(None)
    assert answers.get() == expected
    process.join()
    process.close()
    for queue in (batches, answers):
        queue._reader.close()
        queue._writer.close()


def answer_later(batch: Any, told: Any, answers: Any) -> None:
    told.get()
    answers.put(digest(batch))


def test_a_batch_outlives_its_loader(root: Path) -> None:
    expected = digest(next(iter(loader_of(Pictures(root), TorchLoader))))
    batch = next(iter(loader_of(Pictures(root))))
    other = list(loader_of(Pictures(root)))
    assert lies_in_ring(batch["picture"])
    assert digest(batch) == expected
    del other


# ---------------------------------------------------------------- epochs that do not end


def test_early_break(root: Path) -> None:
    """What was on its way is not lost: the rings do not grow, and batches go on lying in them."""
    loader = loader_of(Pictures(root))
    most_bytes = 0
    for epoch in range(12):
        for step, batch in enumerate(loader):
            assert lies_in_ring(batch["picture"])
            if step == epoch % 4:
                break
        most_bytes = max(most_bytes, ring_bytes())
    assert most_bytes <= 2 * 6 * batch_bytes(batch) * 1.1


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_early_break_while_the_last_batch_is_held(root: Path, persistent_workers: bool) -> None:
    dataset = Pictures(root)
    expected = [digest(batch) for batch in loader_of(dataset, TorchLoader)]
    loader = loader_of(dataset, persistent_workers=persistent_workers)
    held: list[Any] = []
    for _ in range(5):
        for step, batch in enumerate(loader):
            assert digest(batch) == expected[step]
            if step == 3:
                held = [*held[-1:], batch]
                break
        assert [digest(batch) for batch in held] == [expected[3]] * len(held)


def test_iterators_that_are_thrown_away(root: Path) -> None:
    loader = loader_of(Pictures(root))
    for _ in range(4):
        iterator = iter(loader)
        next(iterator)
        del iterator
        iter(loader)
    assert all(lies_in_ring(batch["picture"]) for batch in loader)


def test_two_iterators_of_one_loader(root: Path) -> None:
    dataset = Pictures(root)
    expected = [digest(pair) for pair in zip(*[loader_of(dataset, TorchLoader)] * 2, strict=True)]
    loader = loader_of(dataset)
    assert [digest(pair) for pair in zip(loader, loader, strict=True)] == expected
    assert all(lies_in_ring(batch["picture"]) for batch in loader)


def test_several_loaders(root: Path) -> None:
    datasets = [Pictures(root / str(size)) for size in (64, 80, 90)]
    for dataset, size in zip(datasets, (64, 80, 90), strict=True):
        dataset.size = size
    expected = [digest(three) for three in zip(*(loader_of(d, TorchLoader) for d in datasets), strict=True)]
    loaders = [loader_of(dataset) for dataset in datasets]
    for _ in range(2):
        assert [digest(three) for three in zip(*loaders, strict=True)] == expected


def test_a_killed_worker(root: Path) -> None:
    dataset = Killed(root)
    loader = loader_of(dataset)
    with pytest.raises(RuntimeError, match=r"killed|exited unexpectedly"):
        for _ in loader:
            pass
    expected = [digest(batch) for batch in loader_of(dataset, TorchLoader)]
    for _ in range(2):
        batches = list(loader)
        assert [digest(batch) for batch in batches] == expected
        assert lies_in_ring(batches[0]["picture"])
        del batches


@pytest.mark.parametrize(("attribute", "persistent_workers"), crossed(["bad", "ragged"], [False, True]))
def test_a_sample_that_fails(root: Path, attribute: str, persistent_workers: bool) -> None:
    """The exception is torch's; the loop may go on after it."""
    dataset = Failing(root)
    setattr(dataset, attribute, 9)

    def run(loader: Any) -> list[str]:
        seen = []
        iterator = iter(loader)
        while len(seen) <= len(loader):
            try:
                seen.append(digest(next(iterator)))
            except StopIteration:
                seen.append("end")
            except (KeyError, RuntimeError) as err:
                seen.append(f"{type(err).__name__}: {str(err).splitlines()[-1]}")
                err.__traceback__ = None  # torch's has a cycle, which keeps the iterator
        return seen

    expected = run(loader_of(dataset, TorchLoader))
    loader = loader_of(dataset, persistent_workers=persistent_workers)
    for _ in range(4):
        assert run(loader) == expected
    assert expected[-1] == "end"
    assert sum(":" in step for step in expected) == 1
    assert lies_in_ring(next(iter(loader))[0])


# ---------------------------------------------------------------- batches of the user's own functions


class Kinds(Pictures):
    """Samples of bytes, text, arrays and tensors, for a function of the user's."""

    size = 80

    def __getitem__(self, index: int) -> Any:
        picture = self.picture(index)
        data = picture.numpy().tobytes()
        return {"raw": data, "text": data.hex(), "rows": picture.numpy() * 2, "picture": picture, "label": index}


def as_tuple(samples: list[Any]) -> Any:
    return tuple(samples)


def test_batches_of_a_function_of_the_users(root: Path) -> None:
    dataset = Kinds(root)
    expected = [digest(batch) for batch in loader_of(dataset, TorchLoader, collate_fn=as_tuple)]
    loader = loader_of(dataset, collate_fn=as_tuple)
    held = list(loader)
    assert [digest(batch) for batch in held] == expected
    first = held[0][0]
    assert lies_in_ring(first["picture"])
    assert lies_in_ring(torch.from_numpy(first["rows"]))
    assert first["rows"].flags.writeable
    assert all(np.array_equal(sample["rows"], sample["picture"].numpy() * 2) for batch in held for sample in batch)
    for _ in range(3):
        assert [digest(batch) for batch in loader] == expected
    assert [digest(batch) for batch in held] == expected, "what is held does not change"
    del held, first
    assert all(lies_in_ring(batch[0]["picture"]) for batch in loader), "slots are used again when they are free"


# ---------------------------------------------------------------- when rings are not used


def not_large(samples: list[Any]) -> Any:
    return [{"picture": sample["picture"][:, :4, :4].clone(), "label": sample["label"]} for sample in samples]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"collate_fn": not_large},
        {"batch_size": None},
        {"num_workers": 0},
    ],
    ids=["collate_fn", "no batches", "no workers"],
)
def test_as_torch_sends_it(root: Path, kwargs: dict[str, Any]) -> None:
    require_as_torch_sends_it(root, kwargs)


@pytest.mark.parametrize("most_bytes", [0, 200 * 1024], ids=["off", "too large"])
def test_a_ring_without_memory(root: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    monkeypatch.setattr("prefeed.torch.attachment._BATCH_BUFFER_BYTES", most_bytes)
    require_as_torch_sends_it(root, {})


def require_as_torch_sends_it(root: Path, kwargs: dict[str, Any]) -> None:
    dataset = Pictures(root)
    expected = [digest(batch) for batch in loader_of(dataset, TorchLoader, **kwargs)]
    loader = loader_of(dataset, **kwargs)
    for _ in range(2):
        batches = list(loader)
        assert [digest(batch) for batch in batches] == expected
        first = batches[0]["picture"] if isinstance(batches[0], dict) else batches[0][0]["picture"]
        assert not lies_in_ring(first)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
def test_pinned_memory(root: Path) -> None:
    compare(Pictures(root), pin_memory=True)


def test_nothing_is_left_when_the_loader_is_gone(root: Path) -> None:
    loader = loader_of(Pictures(root), persistent_workers=True)
    held = list(loader)
    assert ring_bytes() > 0
    del loader
    assert wait_until(lambda: 0 < ring_bytes() <= 2 * sum(map(batch_bytes, held)), timeout_seconds=60)
    held.clear()
    assert wait_until(lambda: ring_bytes() == 0, timeout_seconds=60)


@pytest.mark.cold
def test_memory_that_escapes(tmp_path: Path) -> None:
    """What keeps the memory, crossed with what torch does with the tensor meanwhile: nothing changes, nothing crashes."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    line = [sys.executable, "-m", "e2e.escapes", str(tmp_path / "data")]
    job = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert (job.returncode, job.stderr) == (0, ""), job.stderr
    assert json.loads(job.stdout) == []


@pytest.mark.whole
def test_kept_batches_take_no_more_descriptors_than_with_torch(tmp_path: Path) -> None:
    program = Path(__file__).parent / "descriptors.py"
    done = subprocess.run(
        [sys.executable, program, tmp_path / "file"],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    (torchs, error), (ours, our_error) = json.loads(done.stdout)
    assert torchs <= ours
    assert "ulimit -n" in error
    assert our_error == error
