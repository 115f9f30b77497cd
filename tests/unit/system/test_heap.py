"""The heap keeps what is freed: its end stays where it was."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("sandbox")

PROGRAM = """
import ctypes
import sys

from prefeed.system.heap import keep_freed

end_of_heap = ctypes.CDLL(None).sbrk
end_of_heap.restype = ctypes.c_size_t
if sys.argv[1] == "keep":
    keep_freed(8_000_000)
before = end_of_heap(0)
blocks = [bytearray(100_000) for _ in range(40)]
most = end_of_heap(0)
blocks.clear()
print(most - before, end_of_heap(0) - before)
"""


def heap_bytes(*arguments: str) -> list[int]:
    """Return by how much the heap had grown with 4 MB, and when they were freed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    return [int(text) for text in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such limit")
def test_freed_memory_is_kept() -> None:
    most, kept = heap_bytes("keep")
    assert min(most, kept) > 3_000_000
    most, kept = heap_bytes("give back")
    assert kept < 1_000_000 < 3_000_000 < most
