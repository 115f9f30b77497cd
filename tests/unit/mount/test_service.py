"""What is answered on the short way: small files that the tier holds, and nothing else."""

from __future__ import annotations

import os
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from prefeed.fuse import wire
from prefeed.fuse.wire import Feature, OpenFlag, Operation
from prefeed.mount.request import SMALL_BYTES
from prefeed.mount.service import Service
from prefeed.mount.tree import FIRST_FILE, ROOT

SIZES = [100, SMALL_BYTES, SMALL_BYTES + 1]
SMALL, CACHED, PASSED = range(3)


class Objects:
    """Holds the first object, and says what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def is_at_most(self, object_id: int, size_bytes: int) -> bool:
        return 0 <= object_id < len(SIZES) and SIZES[object_id] <= size_bytes

    def read_at_once(self, *asked: int) -> bytes | None:
        self.asked.append(asked)
        return None if asked[0] else b"bytes"


def answers(features: Feature = Feature.DIRECT_IO_MAPS) -> tuple[Objects, Any]:
    """Return objects, and what answers for them an operation on an object with a body."""
    objects: Any = Objects()
    tree: Any = SimpleNamespace(manifest=SimpleNamespace(stamps=None))
    service = Service(tree, objects, SimpleNamespace(), features, listed_ns=0)  # type: ignore[arg-type]

    def answer(operation: int, node: int, body: bytes) -> object:
        return service.answer_at_once(operation, node, 7, bytearray(wire.HEADER_BYTES) + body)

    return objects, answer


def read(handle: int) -> bytes:
    return struct.pack("<QQI", handle, 4096, 8192)


def test_bytes_of_a_small_file_that_the_tier_holds() -> None:
    objects, answer = answers()
    assert answer(Operation.READ, FIRST_FILE, read(SMALL)) == b"bytes"
    assert answer(Operation.READ, FIRST_FILE + 1, read(SMALL)) is None
    assert objects.asked == [(0, 4096, 8192, 7), (1, 4096, 8192, 7)]
    assert answer(Operation.READ, FIRST_FILE, read(CACHED)) is None
    assert len(objects.asked) == 2


@pytest.mark.parametrize(
    ("features", "flags"), [(Feature.DIRECT_IO_MAPS, OpenFlag.DIRECT_IO), (Feature(0), OpenFlag.KEEP_CACHE)]
)
def test_small_files_are_opened_for_reading(features: Feature, flags: OpenFlag) -> None:
    _, answer = answers(features)
    to_read, to_write = struct.pack("<II", os.O_RDONLY | os.O_CLOEXEC, 0), struct.pack("<II", os.O_RDWR, 0)
    assert answer(Operation.OPEN, FIRST_FILE + 1, to_read) == wire.opened(SMALL, flags | OpenFlag.NO_FLUSH)
    assert answer(Operation.OPEN, FIRST_FILE + 1, to_write) is None
    for other in (ROOT, FIRST_FILE - 1, FIRST_FILE + 2, FIRST_FILE + 3, (1 << 40) + FIRST_FILE):
        assert answer(Operation.OPEN, other, to_read) is None


def test_nothing_is_noted_of_a_small_file_that_is_closed() -> None:
    _, answer = answers()
    assert answer(Operation.RELEASE, FIRST_FILE, struct.pack("<QIIQ", SMALL, 0, 0, 0)) == b""
    for handle in (CACHED, PASSED):
        assert answer(Operation.RELEASE, FIRST_FILE, struct.pack("<QIIQ", handle, 0, 0, 0)) is None
    assert answer(Operation.GETATTR, FIRST_FILE, bytes(16)) is None
