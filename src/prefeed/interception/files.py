"""File objects over cached bytes, which behave like files opened with ``"rb"``.

``ServedFile`` has a copy of all bytes. ``PartlyReadFile`` copies parts of a cached view on demand. Both open the real file if a
caller needs a descriptor.
"""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, Any, NoReturn

from prefeed.interception.asking import Answer, CachedFileView

if TYPE_CHECKING:
    from prefeed.types import Buffer

    _Base = io.BufferedIOBase
else:
    _Base = object


class _CachedFile(_Base):
    """Base class of cached files, with the interface of a file opened with ``"rb"``.

    The real file is opened on the first request for a descriptor, for example by ``mmap``, ``numpy.memmap`` or ``subprocess``.
    """

    name: str | bytes
    _path: str
    _file: io.FileIO | None
    _file_position: int

    def _is_of(self, name: str | bytes, path: str) -> None:
        """Set name and path. Must be called first."""
        self.name = name
        self._path = path
        self._file = None
        self._file_position = -1

    @property
    def mode(self) -> str:
        """Mode of the file, always ``"rb"``."""
        return "rb"

    @property
    def raw(self) -> io.FileIO:
        """The real file, at the position of this one."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        if self._file is None:
            self._file = self._real_file()
        position = self.tell()
        if position != self._file_position:  # Otherwise keep the position that the user of the descriptor has set.
            self._file.seek(position)
            self._file_position = position
        return self._file

    def _real_file(self) -> io.FileIO:
        return io.FileIO(self._path)

    def fileno(self) -> int:
        """Return a descriptor of the real file, at the position of this one."""
        return self.raw.fileno()

    def detach(self) -> Any:
        """Return the real file and close this one."""
        raw = self.raw
        self._file = None
        self.close()
        return raw

    def close(self) -> None:
        """Close this file and the real one."""
        if self._file is not None:
            self._file.close()
        super().close()

    def writable(self) -> bool:
        """Return False."""
        return False

    def write(self, data: Any, /) -> NoReturn:
        raise io.UnsupportedOperation("write")

    def writelines(self, lines: Any, /) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        for line in lines:
            self.write(line)

    def truncate(self, size: int | None = None, /) -> NoReturn:
        if self.closed:
            raise ValueError("truncate of closed file")
        raise io.UnsupportedOperation("truncate")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("cannot pickle '_io.BufferedReader' object")

    def __repr__(self) -> str:
        return f"<_io.BufferedReader name={self.name!r}>"


class ServedFile(_CachedFile, io.BytesIO):
    """Cached file whose bytes are all in memory.

    Args:
        data: Content of the file. ``bytes`` are shared, other buffers are copied.
        name: Path as given by the user.
        path: Absolute path, because the working directory may change.
    """

    def __init__(self, data: Buffer, name: str | bytes, path: str) -> None:
        super().__init__(data)
        self._is_of(name, path)

    def num_remaining(self) -> int:
        """Return how many bytes come after the position."""
        start = self.tell()
        end = super().seek(0, os.SEEK_END)
        super().seek(start)
        return max(0, end - start)

    def peek(self, size: int = 0, /) -> bytes:
        """Return some of the next bytes without moving the position."""
        start = self.tell()
        data = self.read(io.DEFAULT_BUFFER_SIZE)
        super().seek(start)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position. Unlike ``BytesIO``, raise ``OSError`` for positions before the start, as files do."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        if whence == os.SEEK_SET:
            if offset < 0:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return super().seek(offset)
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            return super().seek(os.lseek(self.fileno(), offset, whence))
        if whence not in (os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"whence value {whence} unsupported")
        start = self.tell()
        base = start if whence == os.SEEK_CUR else super().seek(0, os.SEEK_END)
        if base + offset < 0:
            super().seek(start)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().seek(base + offset)


class PartlyReadFile(_CachedFile, io.BufferedIOBase):
    """Large cached file, whose reads copy only the parts that they return.

    The first read, often the only one, copies its part directly. Later calls use a ``BufferedReader``, whose methods then replace
    those of this object. This class does not derive from ``BufferedReader``, because numpy requests the descriptor of those.

    Args:
        lent: View of the cached bytes.
        name: Path as given by the user.
        path: Absolute path, because the working directory may change.
    """

    def __init__(self, lent: CachedFileView, name: str | bytes, path: str) -> None:
        self._is_of(name, path)
        self._lent = lent
        self._position = 0
        self._has_given = False
        self._is_closed = False
        self._buffered: io.BufferedReader | None = None

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._is_closed

    def close(self) -> None:
        """Close this file and, if open, the real file."""
        self._is_closed = True
        if self._file is not None:
            self._file.close()
        if self._buffered is not None:
            self._buffered.close()
        self._lent.close()

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most ``size`` bytes; all remaining ones if ``size`` is None or negative."""
        if not self._has_given and not self._is_closed and type(size) is int and size > 0 and self._buffered is None:
            data = self._lent.read(self._position, size)
            if data is not None:
                self._has_given = True
                self._position += len(data)
                return data
        return self._reader().read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position."""
        if self._buffered is None and not self._is_closed and type(offset) is int and type(whence) is int:
            start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._lent)}.get(whence)
            if start is not None and start + offset >= 0:
                self._position = start + offset
                return self._position
        return self._reader().seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._reader().tell() if self._is_closed or self._buffered is not None else self._position

    def read1(self, size: int = -1, /) -> bytes:
        """Read as ``BufferedReader`` does, like the methods below."""
        return self._reader().read1(size)

    def readinto(self, target: Any, /) -> int:
        return self._reader().readinto(target)

    def readinto1(self, target: Any, /) -> int:
        return self._reader().readinto1(target)

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._reader().readline(size)

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        return self._reader().readlines(-1 if hint is None else hint)

    def peek(self, size: int = 0, /) -> bytes:
        return self._reader().peek(size)

    def flush(self) -> None:
        self._reader().flush()

    def seekable(self) -> bool:
        return self._reader().seekable()

    def readable(self) -> bool:
        return self._reader().readable()

    def num_remaining(self) -> int:
        """Return how many bytes come after the position."""
        reader = self._reader()
        source: Any = reader.raw
        left: int = source.size() - reader.tell()
        return max(0, left)

    def _real_file(self) -> io.FileIO:
        if self._buffered is None:
            return _open_real(self._lent, self._path, has_given=self._has_given)
        source: Any = self._buffered.raw
        found: io.FileIO = source.real_file()
        return found

    def _reader(self) -> io.BufferedReader:
        """Create the ``BufferedReader`` on first use, and replace the methods of this object by its methods in C."""
        if self._buffered is None:
            source = _RawCachedFile(self._lent, self._path, self._position, has_given=self._has_given)
            buffered = self._buffered = io.BufferedReader(source)
            vars(self).update({name: getattr(buffered, name) for name in _OF_BUFFERED})
            if self._is_closed:
                buffered.close()
        return self._buffered


_OF_BUFFERED = (
    "read", "read1", "readinto", "readinto1", "readline", "readlines", "peek", "seek", "tell", "flush", "seekable",
    "readable",
)  # fmt: skip


class _RawCachedFile(io.RawIOBase):
    """Raw file of a ``PartlyReadFile``: reads the cached view, or the real file if the cache has freed the bytes."""

    def __init__(self, lent: CachedFileView, path: str, position: int, *, has_given: bool) -> None:
        self._lent = lent
        self._path = path
        self._position = position
        self._has_given = has_given
        self._real: io.FileIO | None = None

    def readable(self) -> bool:
        self._require_open()
        return True

    def seekable(self) -> bool:
        self._require_open()
        return True

    def tell(self) -> int:
        self._require_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._require_open()
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += self.size()
        elif whence != os.SEEK_SET:
            offset = os.lseek(self._same_file(), offset, whence)
        if offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._position = offset
        return offset

    def readinto(self, target: Any, /) -> int:
        count = self._lent.read_into(self._position, target) if self._real is None else None
        if count is None:
            count = os.preadv(self._same_file(), [target], self._position)
        self._has_given |= count > 0
        self._position += count
        return count

    def readall(self) -> bytes:
        size = max(0, self.size() - self._position)
        data = self._lent.read(self._position, size) if self._real is None else None
        if data is None:
            data = os.pread(self._same_file(), size, self._position)
        self._has_given |= len(data) > 0
        self._position += len(data)
        return data if len(data) == size else data + super().readall()

    def real_file(self) -> io.FileIO:
        """Open the real file again, in the version that was read. Raises like ``_open_real``."""
        if self._real is not None:
            return io.FileIO(os.dup(self._real.fileno()))
        return _open_real(self._lent, self._path, has_given=self._has_given)

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return len(self._lent) if self._real is None else os.fstat(self._real.fileno()).st_size

    def close(self) -> None:
        if self._real is not None:
            self._real.close()
        super().close()

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def _same_file(self) -> int:
        """Switch to the real file, and return its descriptor.

        Raises:
            OSError: The file has changed since bytes of it were returned (``ESTALE``, as on network file systems).
        """
        if self._real is None:
            self._real = _open_real(self._lent, self._path, has_given=self._has_given)
        return self._real.fileno()


def _open_real(lent: CachedFileView, path: str, *, has_given: bool) -> io.FileIO:
    """Open the real file of a cached view.

    Raises:
        OSError: The file has changed since bytes of it were returned (``ESTALE``, as on network file systems).
    """
    real = io.FileIO(path)
    if has_given and not lent.are_of(real.fileno()):
        real.close()
        raise OSError(errno.ESTALE, "changed while it was open, and the node's cache has freed it", path)
    return real


def opened_file(answer: Answer, name: str | bytes, path: str) -> ServedFile | PartlyReadFile:
    """Create the file object for a reply of a reader.

    Args:
        answer: Bytes of the file, or a view of them.
        name: Path as given by the user.
        path: Absolute path.
    """
    if isinstance(answer, bytes | bytearray | memoryview):
        return ServedFile(answer, name, path)
    return PartlyReadFile(answer, name, path)


def as_text(
    file: ServedFile | PartlyReadFile, mode: str, encoding: str | None, errors: str | None, newline: str | None
) -> io.TextIOWrapper | None:
    """Wrap a file for a text mode; return None for wrong arguments, so that the original ``open`` raises the error."""
    try:
        text: Any = io.TextIOWrapper(file, encoding, errors, newline)
    except (LookupError, TypeError, ValueError):
        file.close()
        return None
    text.mode = mode
    return text  # type: ignore[no-any-return]
