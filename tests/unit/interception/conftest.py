from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefeed.interception import uninstall


class KeptFiles:
    """A reader that has the files it was given, and counts what it was asked."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.asked: list[str] = []

    def keep(self, *paths: Path) -> None:
        for path in paths:
            self.kept[os.path.abspath(path)] = path.read_bytes()

    def keep_and_remove(self, *paths: Path) -> None:
        """Nobody but this reader has them from now on."""
        self.keep(*paths)
        for path in paths:
            path.unlink()

    def may_have(self, path: str) -> bool:
        return True

    def read_file(self, path: str) -> Any:
        self.asked.append(path)
        return self.kept.get(path)


class LentBytes:
    """Bytes that are lent, until they are ``gone``; ``copied`` is how many were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.is_gone = False
        self.copied = 0

    def __len__(self) -> int:
        return len(self.data)

    def read_into(self, start: int, target: memoryview) -> int | None:
        part = self.read(start, len(target))
        if part is None:
            return None
        target[: len(part)] = part
        return len(part)

    def read(self, start: int, size: int) -> bytes | None:
        part = self.data[start : start + size]
        self.copied += 0 if self.is_gone else len(part)
        return None if self.is_gone else part

    def close(self) -> None:
        """As of what is lent."""

    def are_of(self, descriptor: int) -> bool:
        return os.pread(descriptor, len(self.data) + 1, 0) == self.data


class LendingFiles(KeptFiles):
    """The same, and lends them instead of giving all their bytes away."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: list[LentBytes] = []

    def read_file(self, path: str) -> Any:
        data = super().read_file(path)
        if data is None:
            return None
        self.lent.append(LentBytes(data))
        return self.lent[-1]


@pytest.fixture
def reader() -> KeptFiles:
    return KeptFiles()


@pytest.fixture
def lending() -> LendingFiles:
    return LendingFiles()


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    uninstall()
