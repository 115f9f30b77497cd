"""Answers requests of the kernel, one at a time per thread.

Small objects are read with direct I/O, so that the kernel does not cache them a second time. Large objects are cached by the kernel, unless it
reads them from a local file.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable
from typing import Final

from prefeed.errors import AccessDeniedError, ObjectChangedError, ObjectNotFoundError, PrefeedError
from prefeed.fuse import wire
from prefeed.fuse.wire import Attributes, Feature, FileSystemSizes, FuseRequest, OpenFlag, Operation
from prefeed.mount.backing import LocalFiles
from prefeed.mount.objects import MountedObjects
from prefeed.mount.request import SMALL_BYTES
from prefeed.mount.tree import FIRST_FILE, File, Link, Tree, TreeDirectory
from prefeed.types import Buffer

_log = logging.getLogger("prefeed")

WANTED: Final = (
    Feature.ASYNC_READ
    | Feature.READ_DIRECTORY_PLUS
    | Feature.PARALLEL_LOOKUPS
    | Feature.MAX_PAGES
    | Feature.CACHE_LINKS
    | Feature.DIRECT_IO_MAPS
    | Feature.PASSTHROUGH
    | Feature.RESEND
)

_VALID_SECONDS: Final = 24 * 3600
"""Validity of names and attributes in the kernel. Long, because a listing does not change."""

_BLOCK: Final = 512
_IO_BYTES: Final = 128 * 1024
_MAX_LOGGED: Final = 20
_OPEN, _READ, _RELEASE = int(Operation.OPEN), int(Operation.READ), int(Operation.RELEASE)
_FILE_MODE, _DIRECTORY_MODE = stat.S_IFREG | 0o444, stat.S_IFDIR | 0o555
_SMALL, _CACHED, _PASSED = range(3)  # handles
_OPENED_SMALL: Final = wire.opened(_SMALL, OpenFlag.DIRECT_IO | OpenFlag.NO_FLUSH)
_OPENED_SMALL_CACHED: Final = wire.opened(_SMALL, OpenFlag.KEEP_CACHE | OpenFlag.NO_FLUSH)
_OPENED_DIRECTORY: Final = wire.opened(0, OpenFlag(0))
"""Not cached, because from a cached listing the kernel would request the attributes of each file separately."""

_OPENED_CACHED: Final = wire.opened(_CACHED, OpenFlag.KEEP_CACHE | OpenFlag.NO_FLUSH)


class Service:
    """Answers the requests of one mount.

    **Threads and processes.** Any thread. No state per open file is kept that the next daemon would miss.
    """

    def __init__(
        self, tree: Tree, objects: MountedObjects, files: LocalFiles, features: Feature, *, listed_ns: int
    ) -> None:
        """Answer with these sources of names and bytes.

        Args:
            tree: Names.
            objects: Bytes of objects.
            files: Bytes of large objects in local files.
            features: Features agreed on with the kernel.
            listed_ns: Time of directories and of files without a known time, in nanoseconds since 1970.
        """
        self._tree = tree
        self._objects = objects
        self._files = files
        self._opened_small = _OPENED_SMALL if Feature.DIRECT_IO_MAPS in features else _OPENED_SMALL_CACHED
        self._listed_ns = listed_ns
        self._uid, self._gid = os.geteuid(), os.getegid()
        self._stamps = tree.manifest.stamps
        self._num_logged = 0
        self._operations: dict[int, Callable[[FuseRequest], Buffer]] = {
            Operation.LOOKUP: self._look_up,
            Operation.GETATTR: self._get_attributes,
            Operation.READLINK: self._read_link,
            Operation.OPEN: self._open,
            Operation.READ: self._read,
            Operation.STATFS: self._file_system,
            Operation.RELEASE: self._release,
            Operation.OPENDIR: lambda request: _OPENED_DIRECTORY,
            Operation.RELEASEDIR: lambda request: b"",
            Operation.READDIR: lambda request: self._list_directory(request, plus=False),
            Operation.READDIRPLUS: lambda request: self._list_directory(request, plus=True),
        }

    def answer_at_once(self, operation: int, node: int, task: int, data: bytearray) -> Buffer | None:
        """Return the answer for a small file whose bytes are in the tier; None to leave the request to ``answer``.

        This fast path handles the most frequent requests.

        Args:
            operation: Number of the operation.
            node: Number of the node.
            task: Id of the requesting thread.
            data: Bytes of the request.
        """
        if operation == _READ:
            handle, offset, size_bytes = wire.READ_BODY.unpack_from(data, wire.HEADER_BYTES)
            return self._objects.read_at_once(node - FIRST_FILE, offset, size_bytes, task) if handle == _SMALL else None
        if operation == _OPEN:
            is_small = self._objects.is_at_most(node - FIRST_FILE, SMALL_BYTES)
            return self._opened_small if is_small and wire.opens_to_read(data, wire.HEADER_BYTES) else None
        if operation == _RELEASE and wire.parse_handle(data, wire.HEADER_BYTES) == _SMALL:
            return b""
        return None

    def answer(self, request: FuseRequest) -> Buffer | int:
        """Return the body of the answer, or an errno."""
        operation = self._operations.get(request.operation)
        if operation is None:
            return errno.ENOSYS
        try:
            return operation(request)
        except PrefeedError as err:
            return self._log_error(err)
        except OSError as err:
            return err.errno or errno.EIO

    def close(self) -> None:
        """Close files and connections."""
        self._files.close()
        self._objects.close()

    def _look_up(self, request: FuseRequest) -> bytes:
        directory = self._find_directory(request.node)
        number = self._tree.look_up(directory, wire.parse_name(request.body))
        if not number:
            return wire.no_entry(_VALID_SECONDS)
        return wire.entry(number, self._attributes(number), _VALID_SECONDS)

    def _get_attributes(self, request: FuseRequest) -> bytes:
        return wire.attributes(self._attributes(request.node), _VALID_SECONDS)

    def _read_link(self, request: FuseRequest) -> bytes:
        node = self._tree.node(request.node)
        if not isinstance(node, Link):
            raise OSError(errno.EINVAL, "not a link")
        return node.target

    def _list_directory(self, request: FuseRequest, *, plus: bool) -> bytes:
        """List a directory from the requested offset, as far as the answer's size allows."""
        self._find_directory(request.node)
        place = wire.parse_read(request.body)
        answer = bytearray()
        for number, name, next_offset in self._tree.list_entries(request.node, place.offset):
            if not plus:
                line = wire.directory_entry(name, number, self._mode(number), next_offset)
            elif name in (b".", b".."):
                line = wire.no_entry(0) + wire.directory_entry(name, number, _DIRECTORY_MODE, next_offset)
            else:
                line = wire.listed_entry(number, self._attributes(number), name, next_offset, _VALID_SECONDS)
            if len(answer) + len(line) > place.size_bytes:
                break
            answer += line
        return bytes(answer)

    def _file_system(self, request: FuseRequest) -> bytes:
        manifest = self._tree.manifest
        blocks = -(-manifest.total_bytes // _IO_BYTES)
        return wire.file_system(FileSystemSizes(blocks, 0, 0, manifest.num_objects, 0, _IO_BYTES, 255, _IO_BYTES))

    def _find_directory(self, number: int) -> TreeDirectory:
        node = self._tree.node(number)
        if node is None:
            raise OSError(errno.ESTALE, "unknown")
        if not isinstance(node, TreeDirectory):
            raise OSError(errno.ENOTDIR, "no directory")
        return node

    def _mode(self, number: int) -> int:
        node = self._tree.node(number)
        if isinstance(node, File):
            return _FILE_MODE
        return _DIRECTORY_MODE if isinstance(node, TreeDirectory) else stat.S_IFLNK | 0o777

    def _attributes(self, number: int) -> Attributes:
        node = self._tree.node(number)
        if node is None:
            raise OSError(errno.ESTALE, "unknown")
        size, mode, changed = 0, _DIRECTORY_MODE, self._listed_ns
        if isinstance(node, File):
            size, mode = self._objects.size(node.object_id) or 0, _FILE_MODE
            if self._stamps is not None:
                changed = int(self._stamps[0][node.object_id])
        elif isinstance(node, Link):
            size, mode = len(node.target), stat.S_IFLNK | 0o777
        blocks = -(-size // _BLOCK)
        return Attributes(
            number, size, blocks, changed, changed, changed, mode, 1, self._uid, self._gid, _IO_BYTES
        )  # fmt: skip

    def _open(self, request: FuseRequest) -> bytes:
        if not wire.opens_to_read(request.body):
            raise OSError(errno.EROFS, "read-only")
        object_id = self._find_object(request.node)
        size = self._objects.size(object_id)
        if size is None:
            return _OPENED_SMALL
        if size <= SMALL_BYTES:
            return self._opened_small
        number = self._files.record_open(object_id)
        if number:
            return wire.opened(_PASSED, OpenFlag.PASSTHROUGH | OpenFlag.NO_FLUSH, number)
        self._objects.large.record_open(object_id)
        return _OPENED_CACHED

    def _read(self, request: FuseRequest) -> Buffer:
        place = wire.parse_read(request.body)
        object_id = self._find_object(request.node)
        if place.handle != _SMALL:
            data = self._files.read(object_id, place.offset, place.size_bytes)
            if data is not None:
                return data
        return self._objects.read(object_id, place.offset, place.size_bytes, task=request.task)

    def _release(self, request: FuseRequest) -> bytes:
        handle = wire.parse_handle(request.body)
        if handle != _SMALL:
            object_id = self._find_object(request.node)
            self._files.record_release(object_id, is_passed=handle == _PASSED)
            if handle == _CACHED:
                self._objects.large.record_release(object_id)
        return b""

    def _find_object(self, number: int) -> int:
        object_id = self._tree.object_id(number)
        if object_id is None:
            is_directory = isinstance(self._tree.node(number), TreeDirectory)
            raise OSError(errno.EISDIR if is_directory else errno.ESTALE, "no file")
        return object_id

    def _log_error(self, err: PrefeedError) -> int:
        """Log the first errors, and return the errno for this one."""
        self._num_logged += 1
        if self._num_logged <= _MAX_LOGGED:
            more = "; further errors are not logged" if self._num_logged == _MAX_LOGGED else ""
            _log.warning("prefeed: %s%s", err, more)
        if isinstance(err, ObjectChangedError | ObjectNotFoundError):
            return errno.ESTALE
        return errno.EACCES if isinstance(err, AccessDeniedError) else errno.EIO
