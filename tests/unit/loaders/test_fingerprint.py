"""A dataset is found again in the next run, and told from others."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import uuid
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from prefeed.loaders.access import fingerprint
from prefeed.sources.catalogue import name_of_learned
from prefeed.sources.catalogue_writer import directory_of

pytestmark = pytest.mark.usefixtures("sandbox")


class Files(Dataset[Any]):
    def __init__(self, root: Any = "/data", **attributes: Any) -> None:
        self.root = root
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


def mark(dataset: Any) -> str:
    return fingerprint(dataset, ("/data", "/other", "/inner", "/another", "/third"))


class Named:
    def __init__(self, path: str) -> None:
        self.path = path


class Reader:
    """As timm's: no dataset of torch."""

    def __init__(self, samples: list[str]) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> str:
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)


@dataclass
class Settings:
    rank: int
    out: str


class Others(Files):
    pass


class Longer(Files):
    __qualname__ = Files.__qualname__

    def __len__(self) -> int:
        return 4


def test_it_is_a_name_of_a_catalogue() -> None:
    assert len(fingerprint(Files())) == 16
    directory_of(Path("/home"), name_of_learned(fingerprint(Files())))


def test_equal_datasets_have_the_same() -> None:
    assert mark(Files(files=["a", "b"], size=3)) == mark(Files(size=3, files=["a", "b"]))
    assert mark(Files(Path("/data"))) == mark(Files(Path("/data"))) == mark(Files("/data"))


@pytest.mark.parametrize(
    "other",
    [
        Others(),
        Longer(),
        Files("/other"),
        Files("/data/part"),
        Files(split="train"),
        Files(split="val"),
        Files(files=["a", "b"]),
        Files(files=["a", "c"]),
        Files(files=["a", "x", "b"]),
        Files(files=[("a1", 0), ("b1", 1), ("c1", 2)]),
        Files(files={0: "a1", 1: "b1", 2: "c1"}),
        Files(files=[f"/data/{index}" for index in range(100)]),
        Files(files=np.array(["/data/0", "/data/1"])),
        Files(files=[{"image": "/data/0"}, {"image": "/data/1"}, {"image": "/data/2"}]),
        Files(files=[Named("/data/0"), Named("/data/1"), Named("/data/2")]),
        Files(order=[2, 1, 0]),
        Files(order=np.array([2, 0, 1])),
        Files(order=torch.tensor([1, 0, 2])),
        Files(inner=Files("/inner")),
        Files(inner=Files("/another")),
        Files(settings={"data": {"root": "/inner"}}),
        Files(settings=SimpleNamespace(root="/another")),
        Files(parts=[Files("/inner"), Files("/another")]),
        Files(parts=[Files("/another"), Files("/inner")]),
        Files(reader=Reader(["a1", "b1", "c1"])),
        Subset(Files(), [0, 1]),
        Subset(Files(), [0, 2]),
    ],
)
def test_other_datasets_have_others(other: Any) -> None:
    alike = [Files(), Files(split="test"), Files(files=["a", "d"]), Files(inner=Files("/third")), Subset(Files(), [0])]
    alike += [Files(files=["a1", "b1", "d1"]), Files(order=[0, 1, 2]), Files(reader=Reader(["a1", "b1", "d1"]))]
    assert mark(other) not in [mark(dataset) for dataset in alike]


@pytest.mark.parametrize(
    "attributes",
    [
        {"rank": 1, "world_size": 2, "seed": 17, "epoch": 3, "ratio": 0.5, "training": True},
        {"started": "2026-11-22 23:17:33", "clock": 1795389453.4},
        {"run": "/home/somebody/runs/2026-11-22"},
        {"run": Path("/scratch/run7"), "log": Path("/scratch/run7/log.txt")},
        {"out": "/scratch/output", "log": Path("/scratch/output/log.txt"), "temporary": "/tmp"},  # /tmp is there
        {"run": "runs/exp17", "name": "exp17-2026", "host": "node017", "device": "cuda:1"},
        {"id": str(uuid.uuid4())},
        {"id": uuid.uuid4()},
        {"log": logging.getLogger("a.logger"), "rng": np.random.RandomState(3), "lock": threading.Lock()},
        {"generator": torch.Generator(), "transform": torch.nn.Sequential(torch.nn.ReLU()), "cache": {}},
        {"weights": [0.1, 0.2, 0.3], "pictures": np.zeros((3, 32, 32), np.uint8), "losses": torch.zeros(3)},
        {"history": [1, 2], "counts": deque([1, 2, 3]), "read": lambda path: path, "nothing": None},
        {"settings": {"rank": 3, "out": "/scratch/run8", "nested": {"time": "12:00", "seeds": [1, 2]}}},
        {"settings": SimpleNamespace(rank=3, out="/scratch/run8", nested=Settings(rank=5, out="/scratch/9"))},
    ],
)
def test_what_chooses_no_file_does_not_count(attributes: dict[str, Any]) -> None:
    """It differs between ranks and runs: each would learn for itself."""
    assert mark(Files(**attributes)) == mark(Files())
    assert mark(Subset(Files(**attributes), [0, 1])) == mark(Subset(Files(), [0, 1]))


@dataclass(slots=True)
class Slotted:
    split: str
    rank: int = 0


def test_attributes_in_slots_count_as_others_do() -> None:
    assert mark(Files(settings=Slotted("train"))) != mark(Files(settings=Slotted("val")))
    assert mark(Files(settings=Slotted("train"))) == mark(Files(settings=Slotted("train", rank=1)))
    assert mark(Files(samples=[Slotted("/data/a")] * 3)) != mark(Files(samples=[Slotted("/data/b")] * 3))


def test_an_open_file_does_not_count(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        assert mark(Files(log=log)) == mark(Files())


def test_a_word_with_a_digit_counts_where_a_file_has_that_name(tmp_path: Path) -> None:
    """As in COCO's folders, which are named after a split and a year."""
    root = str(tmp_path)
    (tmp_path / "train2017").mkdir()
    plain = fingerprint(Files(root), (root,))
    assert fingerprint(Files(root, split="train2017"), (root,)) != plain
    assert fingerprint(Files(root, split="val2017"), (root,)) == plain


def test_few_entries_of_a_long_list_are_looked_at() -> None:
    class Long(list[str]):
        asked = 0

        def __getitem__(self, index: Any) -> Any:
            Long.asked += 1
            return super().__getitem__(index)

    mark(Files(files=Long(f"/data/{index}" for index in range(100_000))))
    assert 0 < Long.asked <= 80


def test_it_does_not_depend_on_addresses_or_order_of_hashes() -> None:
    """Every rank, and the next run, gets the same."""
    code = (
        "from prefeed.loaders.access import fingerprint\n"
        "from torch.utils.data import Dataset\n"
        "class Files(Dataset):\n"
        "    def __init__(self):\n"
        "        self.transform, self.classes, self.size = object(), set('abcdefgh'), {'x': 1}\n"
        "        self.read = lambda path: path\n"
        "    def __len__(self): return 3\n"
        "found = fingerprint(Files())\n"
    )
    command = [sys.executable, "-c", f"{code}print(found)"]
    ran = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True)
    here = {"__name__": "__main__"}  # where strings have another hash, unless it has the same seed by chance
    exec(compile(code, "<string>", "exec"), here)
    assert ran.stdout == f"{here['found']}\n"


def test_nothing_is_asked_that_raises() -> None:
    class Odd:
        def __len__(self) -> int:
            raise NotImplementedError

        def __getitem__(self, index: int) -> str:
            raise AssertionError

        def __repr__(self) -> str:
            raise AssertionError

        @property
        def path(self) -> str:
            raise AssertionError

    class Lazy(list[str]):
        def __getitem__(self, index: Any) -> Any:
            raise RuntimeError

    assert mark(Files(odd=Odd(), lazy=Lazy(["a"] * 20))) == mark(Files(odd=Odd(), lazy=Lazy(["a"] * 20)))


def test_a_dataset_that_holds_itself_comes_to_an_end() -> None:
    dataset = Files()
    dataset.itself = dataset  # type: ignore[attr-defined]
    assert len(fingerprint(dataset)) == 16


def test_names_that_are_not_utf8() -> None:
    assert mark(Files("/data/caf\udce9")) != mark(Files("/data/caf"))


def test_other_roots_are_another_dataset() -> None:
    assert fingerprint(Files(), ("/a",)) == fingerprint(Files(), ("/a",)) != fingerprint(Files(), ("/b",))
    assert fingerprint(Files(), None) == fingerprint(Files()) != fingerprint(Files(), ())
