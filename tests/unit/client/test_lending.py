"""A large file that is lent: whether another open file has the very bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from prefeed.client.lending import Lent
from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key

LONG_AGO = 1_600_000_000


class Value:
    """Stands for an entry of the tier: of the file as it is now."""

    def __init__(self, path: Path) -> None:
        self.key = entry_key("/", str(path), version_of(path.stat(), str(path)))
        self.read = self.read_into = None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(b"before")
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def rewritten(path: Path) -> None:
    path.write_bytes(b"after!")


def touched(path: Path) -> None:
    os.utime(path, (LONG_AGO, LONG_AGO + 1))


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"after!")
    os.utime(other, (LONG_AGO, LONG_AGO))
    other.rename(path)


def grown(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")
    os.utime(path, (LONG_AGO, LONG_AGO))


@pytest.mark.parametrize("change", [rewritten, touched, replaced, grown])
def test_only_a_file_of_the_same_version_has_them(path: Path, change: Any) -> None:
    value: Any = Value(path)
    lent = Lent(value, str(path))
    with open(path, "rb") as before:
        assert lent.are_of(before.fileno())
    change(path)
    with open(path, "rb") as after:
        assert not lent.are_of(after.fileno())
