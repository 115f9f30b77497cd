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
"""Protocol of a server that wants none of the ``Feature`` flags beyond 32 bits."""

MINOR_OF_LONG_FLAGS: Final = 45
ROOT_NODE: Final = 1
REQUEST_BYTES: Final = 128 * 1024
"""Room for one request; the kernel refuses less than 8192."""

READ_BYTES: Final = 1024 * 1024
"""Most bytes that the kernel asks for at once: 256 pages, its own limit."""

HEADER_BYTES: Final = 40
ANSWER_HEADER: Final = struct.Struct("<IiQ")
"""Length, negative errno, unique."""

REQUEST_HEADER: Final = struct.Struct("<4xIQQ8xI")
"""Operation, unique, node and task, as ``Request`` has them."""

_ATTRIBUTES: Final = struct.Struct("<6Q10I")
_ENTRY: Final = struct.Struct("<4Q2I")
_ATTRIBUTES_VALID: Final = struct.Struct("<QII")
_OPENED: Final = struct.Struct("<QIi")
READ_BODY: Final = struct.Struct("<QQI")
"""Handle, offset and number of bytes, as ``Place`` has them."""

_HANDLE: Final = struct.Struct("<Q")
_FLAGS: Final = struct.Struct("<I")
_DIRECTORY_ENTRY: Final = struct.Struct("<QQII")
_LINE: Final = struct.Struct(_ENTRY.format + _ATTRIBUTES.format[1:] + _DIRECTORY_ENTRY.format[1:])
_INIT: Final = struct.Struct("<4I")
_LONG_FLAGS: Final = struct.Struct("<I")
_INIT_ANSWER: Final = struct.Struct("<4I2H2I2H2I24x")
_FILE_SYSTEM: Final = struct.Struct("<5Q4I24x")

_PAGE_BYTES: Final = 4096
_MOST_PAGES: Final = 256
_BACKGROUND: Final = 1024
_NS: Final = 1_000_000_000
_WRITE_BYTES: Final = 4096
_HAS_LONG_FLAGS: Final = 1 << 30
_RESEND_CODE: Final = 7


class Feature(enum.IntFlag):
    """What kernel and server agree on when they greet."""

    ASYNC_READ = 1 << 0
    AUTO_INVALIDATE_DATA = 1 << 12
    READ_DIRECTORY_PLUS = 1 << 13
    PARALLEL_LOOKUPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_LINKS = 1 << 23
    DIRECT_IO_MAPS = 1 << 36
    PASSTHROUGH = 1 << 37
    RESEND = 1 << 39


PLAIN: Final = (
    Feature.ASYNC_READ
    | Feature.AUTO_INVALIDATE_DATA
    | Feature.READ_DIRECTORY_PLUS
    | Feature.PARALLEL_LOOKUPS
    | Feature.MAX_PAGES
)


class OpenFlag(enum.IntFlag):
    """How the kernel treats an open file."""

    DIRECT_IO = 1 << 0
    KEEP_CACHE = 1 << 1
    NO_FLUSH = 1 << 5
    PASSTHROUGH = 1 << 7


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
        task: Thread that asks, by its number in the namespace of the mount; 0: of none there.
        body: The rest; valid until the next request is read.
    """

    operation: int
    unique: int
    node: int
    task: int
    body: memoryview


class Greeting(NamedTuple):
    """What the kernel offers."""

    max_readahead: int
    features: Feature


class Attributes(NamedTuple):
    """What ``stat`` shows; times in nanoseconds since 1970, ``num_blocks`` of 512 bytes."""

    inode: int
    size_bytes: int
    num_blocks: int
    accessed_ns: int
    modified_ns: int
    changed_ns: int
    mode: int
    num_links: int
    uid: int
    gid: int
    block_bytes: int

    @classmethod
    def of(cls, found: os.stat_result) -> Attributes:
        """Return those of a file."""
        return cls(
            found.st_ino, found.st_size, found.st_blocks, found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns,
            found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_blksize,
        )  # fmt: skip


class FileSystem(NamedTuple):
    """What ``statfs`` shows."""

    num_blocks: int
    free_blocks: int
    available_blocks: int
    num_files: int
    free_files: int
    block_bytes: int
    name_bytes: int
    fragment_bytes: int

    @classmethod
    def of(cls, found: os.statvfs_result) -> FileSystem:
        """Return that of a directory."""
        return cls(
            found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree,
            found.f_bsize, found.f_namemax, found.f_frsize,
        )  # fmt: skip


class Place(NamedTuple):
    """A piece of an open file or listing: its handle, where it begins, how much is wanted."""

    handle: int
    offset: int
    size_bytes: int


def parse_request(data: memoryview) -> Request:
    """Return the request that the kernel wrote."""
    operation, unique, node, task = REQUEST_HEADER.unpack_from(data)
    return Request(operation, unique, node, task, data[HEADER_BYTES:])


def parse_name(body: memoryview) -> bytes:
    """Return the name that is looked up."""
    return bytes(body).rstrip(b"\0")


def parse_place(body: memoryview) -> Place:
    """Return what is to be read."""
    return Place(*READ_BODY.unpack_from(body))


def parse_handle(body: memoryview | bytearray, at: int = 0) -> int:
    """Return the handle that is released; ``at``: where the body begins."""
    handle: int = _HANDLE.unpack_from(body, at)[0]
    return handle


def opens_to_read(body: memoryview | bytearray, at: int = 0) -> bool:
    """Return whether a file is opened for reading alone; ``at``: where the body begins."""
    flags: int = _FLAGS.unpack_from(body, at)[0]
    return flags & os.O_ACCMODE == os.O_RDONLY


def parse_greeting(body: memoryview) -> Greeting:
    """Return what the kernel offers when it greets."""
    _, minor, max_readahead, features = _INIT.unpack_from(body)
    if features & _HAS_LONG_FLAGS and minor >= MINOR_OF_LONG_FLAGS - 9:
        features |= _LONG_FLAGS.unpack_from(body, _INIT.size)[0] << 32
    return Greeting(max_readahead, Feature(features))


def greeting_answer(
    greeting: Greeting, wanted: Feature = PLAIN, *, stack_depth: int = 0, read_bytes: int = READ_BYTES
) -> tuple[bytes, Feature]:
    """Return the answer to the kernel's greeting, and what is agreed on.

    Args:
        greeting: What the kernel offers.
        wanted: What the server can do.
        stack_depth: How many file systems may lie below files that are passed through; 0: none are.
        read_bytes: Most bytes that the kernel asks for at once, also into memory that does not begin with a page.
    """
    agreed = greeting.features & wanted
    flags, long_flags = int(agreed) & 0xFFFFFFFF, int(agreed) >> 32
    minor = MINOR
    if long_flags:
        minor, flags = MINOR_OF_LONG_FLAGS, flags | _HAS_LONG_FLAGS
    answer = _INIT_ANSWER.pack(
        MAJOR, minor, greeting.max_readahead, flags, _BACKGROUND, _BACKGROUND, _WRITE_BYTES, 1, min(read_bytes // _PAGE_BYTES + 1, _MOST_PAGES), 0,
        long_flags, stack_depth if Feature.PASSTHROUGH in agreed else 0,
    )  # fmt: skip
    return answer, agreed


def resend() -> bytes:
    """Return the message that has the kernel send every request again that was read and not answered."""
    return ANSWER_HEADER.pack(ANSWER_HEADER.size, _RESEND_CODE, 0)


def opened(handle: int, flags: OpenFlag = OpenFlag.KEEP_CACHE, backing: int = 0) -> bytes:
    """Return the answer to an open; pages in the kernel's cache stay valid unless flags say otherwise."""
    return _OPENED.pack(handle, flags, backing)


def attributes(found: Attributes, valid_seconds: int) -> bytes:
    """Return the answer to a request for attributes."""
    return _ATTRIBUTES_VALID.pack(valid_seconds, 0, 0) + _attributes(found)


def entry(node: int, found: Attributes, valid_seconds: int) -> bytes:
    """Return the answer to a look-up."""
    return _ENTRY.pack(node, 0, valid_seconds, valid_seconds, 0, 0) + _attributes(found)


def no_entry(valid_seconds: int) -> bytes:
    """Return the answer to a look-up that finds nothing; the kernel may remember it."""
    return _ENTRY.pack(0, 0, valid_seconds, 0, 0, 0) + bytes(_ATTRIBUTES.size)


def directory_entry(name: bytes, inode: int, mode: int, next_offset: int) -> bytes:
    """Return one line of a listing; ``next_offset`` is where the one after it begins."""
    head = _DIRECTORY_ENTRY.pack(inode, next_offset, len(name), stat.S_IFMT(mode) >> 12)
    return head + name + bytes(-(len(head) + len(name)) % 8)


def listed_entry(node: int, found: Attributes, name: bytes, next_offset: int, valid_seconds: int) -> bytes:
    """Return one line of a listing with attributes: what ``entry`` and ``directory_entry`` return, in a third of the time."""
    (inode, size, blocks, accessed_ns, modified_ns, changed_ns, mode, links, uid, gid, block_bytes) = found
    accessed, modified, changed = divmod(accessed_ns, _NS), divmod(modified_ns, _NS), divmod(changed_ns, _NS)
    head = _LINE.pack(
        node, 0, valid_seconds, valid_seconds, 0, 0,
        inode, size, blocks, accessed[0], modified[0], changed[0], accessed[1], modified[1], changed[1],
        mode, links, uid, gid, 0, block_bytes, 0,
        inode, next_offset, len(name), stat.S_IFMT(mode) >> 12,
    )  # fmt: skip
    return head + name + bytes(-len(name) % 8)


def file_system(found: FileSystem) -> bytes:
    """Return the answer to ``statfs``."""
    return _FILE_SYSTEM.pack(*found, 0)


def _attributes(found: Attributes) -> bytes:
    return _ATTRIBUTES.pack(
        found.inode, found.size_bytes, found.num_blocks, *_times(found),
        found.mode, found.num_links, found.uid, found.gid, 0, found.block_bytes, 0,
    )  # fmt: skip


def _times(found: Attributes) -> Iterator[int]:
    """Yield the seconds of last access, modification and change, then their nanoseconds."""
    times = [divmod(time_ns, _NS) for time_ns in (found.accessed_ns, found.modified_ns, found.changed_ns)]
    yield from (seconds for seconds, _ in times)
    yield from (nanoseconds for _, nanoseconds in times)
