"""Reads large files whole into an array, in pieces of 1 MiB, by ``open``: two passes.

Prints a line of JSON per pass: bytes, seconds, processor seconds of this process, and a checksum.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Sequence

import numpy as np

_PIECE_BYTES = 1 << 20


def read(path: str, piece: memoryview) -> tuple[int, int]:
    """Return the number of bytes of a file, and a checksum of the first ones of each piece."""
    size, checksum = 0, 0
    with open(path, "rb") as file:
        while count := file.readinto(piece):
            size += count
            checksum = zlib.crc32(piece[:64], checksum)
    return size, checksum


def forget(path: str) -> None:
    """Have the kernel drop what it has of a file in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the files twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="directory of the files")
    parser.add_argument("--forget", action="store_true", help="between the passes the kernel forgets the files")
    options = parser.parse_args(arguments)
    paths = sorted(entry.path for entry in os.scandir(options.data))
    piece = np.empty(_PIECE_BYTES, np.uint8).data
    for _ in range(2):
        began, began_cpu = time.perf_counter(), time.process_time()
        found = [read(path, piece) for path in paths]
        line = {
            "bytes": sum(size for size, _ in found),
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - began_cpu,
            "checksum": sum(checksum for _, checksum in found),
        }
        sys.stdout.write(json.dumps(line) + "\n")
        for path in paths if options.forget else ():
            forget(path)


if __name__ == "__main__":
    main()
