"""A dataset is found again in the next run, and told from others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, Subset

from prefeed.sources.file_catalogues import directory_of, name_of_learned
from prefeed.torch.fingerprint import fingerprint

pytestmark = pytest.mark.usefixtures("sandbox")


class Files(Dataset[Any]):
    def __init__(self, root: Any = "/data", **attributes: Any) -> None:
        self.root = root
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


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
    assert fingerprint(Files(files=["a", "b"], size=3)) == fingerprint(Files(size=3, files=["a", "b"]))
    assert fingerprint(Files(Path("/data"))) == fingerprint(Files(Path("/data")))


@pytest.mark.parametrize(
    "other",
    [
        Others(),
        Longer(),
        Files("/other"),
        Files(split="train"),
        Files(split="val"),
        Files(files=["a", "b"]),
        Files(files=["a", "c"]),
        Files(files=["a", "x", "b"]),
        Files(files=("a", "b")),
        Files(inner=Files("/inner")),
        Files(inner=Files("/another")),
        Subset(Files(), [0, 1]),
        Subset(Files(), [0, 2]),
    ],
)
def test_other_datasets_have_others(other: Any) -> None:
    alike = [Files(), Files(split="test"), Files(files=["a", "d"]), Files(inner=Files("/third")), Subset(Files(), [0])]
    assert fingerprint(other) not in [fingerprint(dataset) for dataset in alike]


def test_it_does_not_depend_on_addresses_or_order_of_hashes() -> None:
    """Every rank, and the next run, gets the same."""
    code = (
        "from prefeed.torch.fingerprint import fingerprint\n"
        "from torch.utils.data import Dataset\n"
        "class Files(Dataset):\n"
        "    def __init__(self):\n"
        "        self.transform, self.classes, self.size = object(), set('abcdefgh'), {'x': 1}\n"
        "        self.read = lambda path: path\n"
        "    def __len__(self): return 3\n"
        "found = fingerprint(Files())\n"
    )
    command = [sys.executable, "-c", f"{code}print(found)"]
    ran = subprocess.run(command, env={"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True)
    here = {"__name__": "__main__"}  # where strings have another hash, unless it has the same seed by chance
    exec(compile(code, "<string>", "exec"), here)
    assert ran.stdout == f"{here['found']}\n"


def test_nothing_is_asked_that_raises() -> None:
    class Odd:
        def __len__(self) -> int:
            raise NotImplementedError

        def __repr__(self) -> str:
            raise AssertionError

    assert fingerprint(Files(odd=Odd())) == fingerprint(Files(odd=Odd()))


def test_a_dataset_that_holds_itself_comes_to_an_end() -> None:
    dataset = Files()
    dataset.itself = dataset  # type: ignore[attr-defined]
    assert len(fingerprint(dataset)) == 16


def test_names_that_are_not_utf8() -> None:
    assert fingerprint(Files("caf\udce9")) != fingerprint(Files("caf"))


def test_other_roots_are_another_dataset() -> None:
    assert fingerprint(Files(), ("/a",)) == fingerprint(Files(), ("/a",)) != fingerprint(Files(), ("/b",))
    assert fingerprint(Files(), None) == fingerprint(Files()) != fingerprint(Files(), ())
