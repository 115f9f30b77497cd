"""Messages of the FUSE protocol have the layout of the kernel's header."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import pytest

from prefeed.fuse import wire
from prefeed.fuse.wire import Attributes, Feature, FileSystemSizes, Greeting, OpenFlag

ATTRIBUTES = Attributes(
    inode=7, size_bytes=1000, num_blocks=2, accessed_ns=1_000_000_001, modified_ns=2_000_000_002,
    changed_ns=3_000_000_003, mode=stat.S_IFREG | 0o444, num_links=1, uid=5, gid=6, block_bytes=4096,
)  # fmt: skip


def request(operation: int, body: bytes, *, node: int = 9, unique: int = 77, task: int = 1234) -> memoryview:
    head = struct.pack("<IIQQIIIHH", 40 + len(body), operation, unique, node, 0, 0, task, 0, 0)
    return memoryview(head + body)


def greeting(minor: int, flags: int, long_flags: int = 0) -> memoryview:
    return memoryview(struct.pack("<5I", 7, minor, 131072, flags, long_flags) + bytes(44))


def test_a_request_is_taken_apart() -> None:
    found = wire.parse_request(request(15, struct.pack("<QQI", 3, 8192, 4096) + bytes(20)))
    assert (found.operation, found.unique, found.node, found.task) == (wire.Operation.READ, 77, 9, 1234)
    assert wire.parse_read(found.body) == (3, 8192, 4096)
    assert wire.parse_handle(found.body) == 3


def test_names_are_bytes() -> None:
    assert wire.parse_name(request(1, b"\xff b\0")[wire.HEADER_BYTES :]) == b"\xff b"


@pytest.mark.parametrize("minor", [31, 36, 45])
def test_flags_beyond_32_bits_are_offered_and_taken_only_if_both_know_them(minor: int) -> None:
    offered = wire.parse_greeting(greeting(minor, int(Feature.ASYNC_READ) | 1 << 30, 1 << 5 | 1 << 7))
    wanted = Feature.ASYNC_READ | Feature.MAX_PAGES | Feature.PASSTHROUGH | Feature.RESEND
    answer, agreed = wire.greeting_answer(offered, wanted, stack_depth=1)
    assert len(answer) == 64
    major, told_minor, readahead, flags = struct.unpack_from("<4I", answer)
    _, _, write_bytes, granularity, pages, _, long_flags, depth = struct.unpack_from("<2H2I2H2I", answer, 16)
    assert (major, readahead, write_bytes, granularity, pages) == (7, 131072, 4096, 1, 256)
    if minor < 36:
        assert (agreed, told_minor, flags, long_flags, depth) == (Feature.ASYNC_READ, 31, 1, 0, 0)
    else:
        assert agreed == Feature.ASYNC_READ | Feature.PASSTHROUGH | Feature.RESEND
        assert (told_minor, flags, long_flags, depth) == (45, 1 | 1 << 30, 1 << 5 | 1 << 7, 1)


@pytest.mark.parametrize(("read_bytes", "pages"), [(wire.READ_BYTES, 256), (128 * 1024, 33)])
def test_a_request_has_pages_for_memory_that_begins_inside_one(read_bytes: int, pages: int) -> None:
    answer, _ = wire.greeting_answer(Greeting(4096, wire.PLAIN), read_bytes=read_bytes)
    assert struct.unpack_from("<H", answer, 28) == (pages,)


def test_a_plain_greeting_wants_no_long_flags() -> None:
    answer, agreed = wire.greeting_answer(Greeting(4096, Feature(2**40 - 1)))
    assert agreed == wire.PLAIN
    assert struct.unpack_from("<4I", answer) == (7, 31, 4096, int(wire.PLAIN))


def test_an_open_file_has_a_handle_flags_and_perhaps_a_backing_file() -> None:
    assert struct.unpack("<QIi", wire.opened(4, OpenFlag.PASSTHROUGH | OpenFlag.NO_FLUSH, 12)) == (
        4,
        1 << 7 | 1 << 5,
        12,
    )
    assert struct.unpack("<QIi", wire.opened(4)) == (4, 1 << 1, 0)


def test_attributes_have_times_in_two_parts() -> None:
    valid, _, _, *rest = struct.unpack("<QII6Q10I", wire.attributes(ATTRIBUTES, 60))
    assert valid == 60
    assert rest == [7, 1000, 2, 1, 2, 3, 1, 2, 3, stat.S_IFREG | 0o444, 1, 5, 6, 0, 4096, 0]


@pytest.mark.parametrize("name", [b"a", b"12345678", b"\xff" * 255])
def test_a_line_with_attributes_is_an_entry_and_a_line(name: bytes) -> None:
    apart = wire.entry(9, ATTRIBUTES, 60) + wire.directory_entry(name, 7, ATTRIBUTES.mode, 3)
    line = wire.listed_entry(9, ATTRIBUTES, name, 3, 60)
    assert line == apart
    assert len(line) % 8 == 0


def test_what_is_not_there_has_no_node() -> None:
    assert struct.unpack_from("<4Q", wire.no_entry(30)) == (0, 0, 30, 0)


def test_a_resend_is_a_message_of_the_server() -> None:
    assert struct.unpack("<IiQ", wire.resend()) == (16, 7, 0)


def test_attributes_and_file_systems_are_taken_from_the_machine(tmp_path: Path) -> None:
    status, space = os.stat(tmp_path), os.statvfs(tmp_path)
    assert Attributes.of(status)[:2] == (status.st_ino, status.st_size)
    assert FileSystemSizes.of(space)[5:] == (space.f_bsize, space.f_namemax, space.f_frsize)
    assert len(wire.file_system(FileSystemSizes.of(space))) == 80
