"""A process that uses the store of a cache: run as a program, told by lines what to do, answers each with one line."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CacheUser:
    """The process, seen from the test."""

    def __init__(self, directory: Path | str, limit_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(directory), str(limit_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def put(self, first: int, count: int, size_bytes: int) -> int:
        """Return how many values of that size it stored, keys counted from ``first``."""
        return int(self._ask(f"put {first} {count} {size_bytes}"))

    def grow(self, limit_bytes: int) -> None:
        """Let the store take more."""
        self._ask(f"grow {limit_bytes}")

    def count(self, count: int) -> int:
        """Return how many of the keys 0 to count it finds, each with the right bytes."""
        return int(self._ask(f"count {count}"))

    def let_go(self) -> None:
        """Close the store."""
        self._ask("close")

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@contextmanager
def cache_user(directory: Path | str, limit_bytes: int) -> Iterator[CacheUser]:
    """Run a process that uses the store in a directory."""
    user = CacheUser(directory, limit_bytes)
    try:
        yield user
    finally:
        user.end()


def key_of(index: int) -> bytes:
    return hashlib.blake2b(index.to_bytes(8, "big"), digest_size=16).digest()


def value_of(index: int, size_bytes: int) -> bytes:
    return (index.to_bytes(8, "big") * (size_bytes // 8 + 1))[:size_bytes]


def main() -> None:
    from prefeed.store.shared import SharedTier

    tier = SharedTier(sys.argv[1], limit_bytes=int(sys.argv[2]))
    for line in sys.stdin:
        verb, *words = line.split()
        numbers = [int(word) for word in words]
        answer = 0
        if verb == "put":
            first, count, size = numbers
            answer = sum(tier.put_many([(key_of(i), value_of(i, size))]) for i in range(first, first + count))
        elif verb == "grow":
            tier.grow(numbers[0])
        elif verb == "count":
            found = [tier.get(key_of(i)) for i in range(numbers[0])]
            answer = sum(v is not None and v == value_of(i, len(v)) for i, v in enumerate(found))
        elif verb == "close":
            tier.close()
        print(answer, flush=True)
    tier.close()


if __name__ == "__main__":
    main()
