"""The FUSE protocol of a read-only file system: numbers, requests, replies.

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
"""Protocol version of a server that uses no ``Feature`` flag above 32 bits."""

MINOR_OF_LONG_FLAGS: Final = 45
ROOT_NODE: Final = 1
REQUEST_BYTES: Final = 128 * 1024
"""Size of the buffer for a request. The kernel refuses less than 8192."""

READ_BYTES: Final = 1024 * 1024
"""Maximum size of a read request: 256 pages, the limit of the kernel."""

HEADER_BYTES: Final = 40
ANSWER_HEADER: Final = struct.Struct("<IiQ")
"""Length, negative errno, unique."""

REQUEST_HEADER: Final = struct.Struct("<4xIQQ8xI")
"""Operation, unique, node and task of a ``FuseRequest``."""

_ATTRIBUTES: Final = struct.Struct("<6Q10I")
_ENTRY: Final = struct.Struct("<4Q2I")
_ATTRIBUTES_VALID: Final = struct.Struct("<QII")
_OPENED: Final = struct.Struct("<QIi")
READ_BODY: Final = struct.Struct("<QQI")
"""Handle, offset and number of bytes of a ``ReadRange``."""

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
    """Features that kernel and server negotiate during ``INIT``."""

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
    """Operations of the kernel's requests. Any other operation is answered with ``ENOSYS``."""

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


class FuseRequest(NamedTuple):
    """A request of the kernel.

    Attributes:
        operation: Number of the operation, which may be unknown.
        unique: Identifies the request in its reply.
        node: Node of the request.
        task: Thread id of the caller in the PID namespace of the mount; 0 if the caller is outside it.
        body: Remaining bytes, valid until the next request is read.
    """

    operation: int
    unique: int
    node: int
    task: int
    body: memoryview


class Greeting(NamedTuple):
    """``INIT`` request: the features that the kernel offers."""

    max_readahead: int
    features: Feature


class Attributes(NamedTuple):
    """Attributes of a node, as in ``stat``. Times are in nanoseconds since 1970, ``num_blocks`` counts 512 bytes."""

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
        """Convert the result of ``os.stat``."""
        return cls(
            found.st_ino, found.st_size, found.st_blocks, found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns,
            found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_blksize,
        )  # fmt: skip


class FileSystemSizes(NamedTuple):
    """Sizes of a file system, as in ``statfs``."""

    num_blocks: int
    free_blocks: int
    available_blocks: int
    num_files: int
    free_files: int
    block_bytes: int
    name_bytes: int
    fragment_bytes: int

    @classmethod
    def of(cls, found: os.statvfs_result) -> FileSystemSizes:
        """Convert the result of ``os.statvfs``."""
        return cls(
            found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree,
            found.f_bsize, found.f_namemax, found.f_frsize,
        )  # fmt: skip


class ReadRange(NamedTuple):
    """Range of an open file or listing: handle, offset and size."""

    handle: int
    offset: int
    size_bytes: int


def parse_request(data: memoryview) -> FuseRequest:
    """Parse a request of the kernel."""
    operation, unique, node, task = REQUEST_HEADER.unpack_from(data)
    return FuseRequest(operation, unique, node, task, data[HEADER_BYTES:])


def parse_name(body: memoryview) -> bytes:
    """Parse the name of a ``LOOKUP``."""
    return bytes(body).rstrip(b"\0")


def parse_read(body: memoryview) -> ReadRange:
    """Parse the range of a ``READ`` or ``READDIR``."""
    return ReadRange(*READ_BODY.unpack_from(body))


def parse_handle(body: memoryview | bytearray, at: int = 0) -> int:
    """Parse the handle of a ``RELEASE``. The body begins at offset ``at``."""
    handle: int = _HANDLE.unpack_from(body, at)[0]
    return handle


def opens_to_read(body: memoryview | bytearray, at: int = 0) -> bool:
    """Return whether an ``OPEN`` is read-only. The body begins at offset ``at``."""
    flags: int = _FLAGS.unpack_from(body, at)[0]
    return flags & os.O_ACCMODE == os.O_RDONLY


def parse_greeting(body: memoryview) -> Greeting:
    """Parse an ``INIT`` request."""
    _, minor, max_readahead, features = _INIT.unpack_from(body)
    if features & _HAS_LONG_FLAGS and minor >= MINOR_OF_LONG_FLAGS - 9:
        features |= _LONG_FLAGS.unpack_from(body, _INIT.size)[0] << 32
    return Greeting(max_readahead, Feature(features))


def greeting_answer(
    greeting: Greeting, wanted: Feature = PLAIN, *, stack_depth: int = 0, read_bytes: int = READ_BYTES
) -> tuple[bytes, Feature]:
    """Return the reply to ``INIT`` and the negotiated features.

    Args:
        greeting: Offer of the kernel.
        wanted: Features that the server supports.
        stack_depth: Maximum number of stacked file systems below a passthrough file; 0 without passthrough.
        read_bytes: Maximum size of a read request, in bytes, also into memory that is not aligned to pages.
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
    """Return the message that makes the kernel resend all requests that were read and not answered."""
    return ANSWER_HEADER.pack(ANSWER_HEADER.size, _RESEND_CODE, 0)


def opened(handle: int, flags: OpenFlag = OpenFlag.KEEP_CACHE, backing: int = 0) -> bytes:
    """Return the reply to ``OPEN``. By default, pages in the kernel's cache stay valid."""
    return _OPENED.pack(handle, flags, backing)


def attributes(found: Attributes, valid_seconds: int) -> bytes:
    """Return the reply to ``GETATTR``."""
    return _ATTRIBUTES_VALID.pack(valid_seconds, 0, 0) + _attributes(found)


def entry(node: int, found: Attributes, valid_seconds: int) -> bytes:
    """Return the reply to ``LOOKUP``."""
    return _ENTRY.pack(node, 0, valid_seconds, valid_seconds, 0, 0) + _attributes(found)


def no_entry(valid_seconds: int) -> bytes:
    """Return the reply to ``LOOKUP`` for a missing name, which the kernel may cache."""
    return _ENTRY.pack(0, 0, valid_seconds, 0, 0, 0) + bytes(_ATTRIBUTES.size)


def directory_entry(name: bytes, inode: int, mode: int, next_offset: int) -> bytes:
    """Return an entry of a listing. ``next_offset`` is the offset of the following entry."""
    head = _DIRECTORY_ENTRY.pack(inode, next_offset, len(name), stat.S_IFMT(mode) >> 12)
    return head + name + bytes(-(len(head) + len(name)) % 8)


def listed_entry(node: int, found: Attributes, name: bytes, next_offset: int, valid_seconds: int) -> bytes:
    """Return an entry of a listing with attributes.

    Equals ``entry`` and ``directory_entry`` together, in a third of the time.
    """
    (inode, size, blocks, accessed_ns, modified_ns, changed_ns, mode, links, uid, gid, block_bytes) = found
    accessed, modified, changed = divmod(accessed_ns, _NS), divmod(modified_ns, _NS), divmod(changed_ns, _NS)
    head = _LINE.pack(
        node, 0, valid_seconds, valid_seconds, 0, 0,
        inode, size, blocks, accessed[0], modified[0], changed[0], accessed[1], modified[1], changed[1],
        mode, links, uid, gid, 0, block_bytes, 0,
        inode, next_offset, len(name), stat.S_IFMT(mode) >> 12,
    )  # fmt: skip
    return head + name + bytes(-len(name) % 8)


def file_system(found: FileSystemSizes) -> bytes:
    """Return the reply to ``STATFS``."""
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
