from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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

    def read_file(self, path: str) -> bytes | None:
        self.asked.append(path)
        return self.kept.get(path)


@pytest.fixture
def reader() -> KeptFiles:
    return KeptFiles()


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    uninstall()
