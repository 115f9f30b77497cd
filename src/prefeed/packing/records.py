"""What writers and scanners of all formats have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple

from prefeed.types import Buffer


class Record(NamedTuple):
    """One object found in a data file: its path, where its bytes begin, and these bytes."""

    path: str
    offset: int
    data: Buffer


class ShardWriter(ABC):
    """Writes one data file.

    **Ownership.** Its maker closes it; a file that was not flushed is not whole.

    Attributes:
        suffix: Ending of the data file's name.
    """

    suffix: ClassVar[str]

    @abstractmethod
    def __init__(self, path: Path) -> None:
        """Begin the file."""

    @abstractmethod
    def add(self, path: str, data: Buffer) -> int:
        """Append an object; return where its bytes begin in the file."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Length of the file so far, in bytes."""

    @abstractmethod
    def flush(self) -> int:
        """Write what belongs at the end; return the descriptor, which the caller syncs."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""
