"""The part of the kernel's FUSE protocol that a read-only directory needs: numbers, requests, answers.

Layouts and numbers are those of ``include/uapi/linux/fuse.h``, protocol 7.31 (Linux 5.4) and later.
"""

from __future__ import annotations

import enum
import os
import stat
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

MAJOR: Final = 7
MINOR: Final = 31
ROOT_NODE: Final = 1
REQUEST_BYTES: Final = 128 * 1024
"""Room for one request; the kernel refuses less than 8192."""

HEADER_BYTES: Final = 40
ANSWER_HEADER: Final = struct.Struct("<IiQ")
"""Length, negative errno, unique."""

_REQUEST_HEADER: Final = struct.Struct("<IIQQ")
_ATTRIBUTES: Final = struct.Struct("<6Q10I")
_ENTRY: Final = struct.Struct("<4Q2I")
_ATTRIBUTES_VALID: Final = struct.Struct("<QII")
_OPENED: Final = struct.Struct("<QIi")
_READ: Final = struct.Struct("<QQI")
_HANDLE: Final = struct.Struct("<Q")
_FLAGS: Final = struct.Struct("<I")
_DIRECTORY_ENTRY: Final = struct.Struct("<QQII")
_INIT: Final = struct.Struct("<4I")
_INIT_ANSWER: Final = struct.Struct("<4I2H2I2HI28x")
_FILE_SYSTEM: Final = struct.Struct("<5Q4I24x")

_ASYNC_READ: Final = 1 << 0
_AUTO_INVALIDATE_DATA: Final = 1 << 12
_READ_DIRECTORY_PLUS: Final = 1 << 13
_PARALLEL_LOOKUPS: Final = 1 << 18
_MAX_PAGES: Final = 1 << 22
_WANTED: Final = _ASYNC_READ | _AUTO_INVALIDATE_DATA | _READ_DIRECTORY_PLUS | _PARALLEL_LOOKUPS | _MAX_PAGES
_KEEP_PAGES: Final = 1 << 1
_READ_PAGES: Final = 256
_BACKGROUND: Final = 1024
_WRITE_BYTES: Final = 4096


class Operation(enum.IntEnum):
    """What the kernel asks for; whatever is not here is answered with ``ENOSYS``."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    READLINK = 5
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    READDIRPLUS = 44


UNANSWERED: Final = frozenset({Operation.FORGET, Operation.BATCH_FORGET, Operation.INTERRUPT, Operation.DESTROY})


class Request(NamedTuple):
    """One request.

    Attributes:
        operation: Number of the operation, known or not.
        unique: Names the request in its answer.
        node: What it is about.
        body: The rest; valid until the next request is read.
    """

    operation: int
    unique: int
    node: int
    body: memoryview


class Place(NamedTuple):
    """A piece of an open file or listing: its handle, where it begins, how much is wanted."""

    handle: int
    offset: int
    size_bytes: int


def parse_request(data: memoryview) -> Request:
    """Return the request that the kernel wrote."""
    _, operation, unique, node = _REQUEST_HEADER.unpack_from(data)
    return Request(operation, unique, node, data[HEADER_BYTES:])


def parse_name(body: memoryview) -> bytes:
    """Return the name that is looked up."""
    return bytes(body).rstrip(b"\0")


def parse_place(body: memoryview) -> Place:
    """Return what is to be read."""
    return Place(*_READ.unpack_from(body))


def parse_handle(body: memoryview) -> int:
    """Return the handle that is released."""
    handle: int = _HANDLE.unpack_from(body)[0]
    return handle


def parse_open_flags(body: memoryview) -> int:
    """Return the flags of ``open(2)``."""
    flags: int = _FLAGS.unpack_from(body)[0]
    return flags


def init_answer(body: memoryview) -> bytes:
    """Return the answer to the kernel's greeting: reads up to 1 MiB, look-ups side by side, attributes with listings."""
    _, _, max_readahead, offered = _INIT.unpack_from(body)
    flags = offered & _WANTED
    return _INIT_ANSWER.pack(
        MAJOR, MINOR, max_readahead, flags, _BACKGROUND, _BACKGROUND, _WRITE_BYTES, 1, _READ_PAGES, 0, 0
    )


def opened(handle: int) -> bytes:
    """Return the answer to an open: pages in the kernel's cache stay valid."""
    return _OPENED.pack(handle, _KEEP_PAGES, 0)


def attributes(found: os.stat_result, valid_seconds: int) -> bytes:
    """Return the answer to a request for attributes."""
    return _ATTRIBUTES_VALID.pack(valid_seconds, 0, 0) + _attributes(found)


def entry(node: int, found: os.stat_result, valid_seconds: int) -> bytes:
    """Return the answer to a look-up."""
    return _ENTRY.pack(node, 0, valid_seconds, valid_seconds, 0, 0) + _attributes(found)


def no_entry(valid_seconds: int) -> bytes:
    """Return the answer to a look-up that finds nothing; the kernel may remember it."""
    return _ENTRY.pack(0, 0, valid_seconds, 0, 0, 0) + bytes(_ATTRIBUTES.size)


def directory_entry(name: bytes, inode: int, mode: int, next_offset: int) -> bytes:
    """Return one line of a listing; ``next_offset`` is where the one after it begins."""
    head = _DIRECTORY_ENTRY.pack(inode, next_offset, len(name), stat.S_IFMT(mode) >> 12)
    return head + name + bytes(-(len(head) + len(name)) % 8)


def file_system(found: os.statvfs_result) -> bytes:
    """Return the answer to ``statfs``."""
    return _FILE_SYSTEM.pack(
        found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree,
        found.f_bsize, found.f_namemax, found.f_frsize, 0,
    )  # fmt: skip


def _attributes(found: os.stat_result) -> bytes:
    return _ATTRIBUTES.pack(
        found.st_ino, found.st_size, found.st_blocks, *_times(found),
        found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, found.st_blksize, 0,
    )  # fmt: skip


def _times(found: os.stat_result) -> Iterator[int]:
    """Yield the seconds of last access, modification and change, then their nanoseconds."""
    times = [divmod(time_ns, 1_000_000_000) for time_ns in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
    yield from (seconds for seconds, _ in times)
    yield from (nanoseconds for _, nanoseconds in times)
