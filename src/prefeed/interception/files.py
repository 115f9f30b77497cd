"""Open files whose bytes are in memory: a copy of all of them, or parts of what a ``FileReader`` lends."""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, Any, NoReturn

from prefeed.interception.asking import Answer, LentFile

if TYPE_CHECKING:
    from prefeed.types import Buffer

    _Base = io.BufferedIOBase
else:
    _Base = object


class _AsOpened(_Base):
    """What a file in memory has in common with the file of that name, opened with ``"rb"``.

    Who asks for a descriptor (``mmap``, ``numpy.memmap``, a child's standard input) gets one of the real file, opened
    then and not before.
    """

    name: str | bytes
    _path: str
    _file: io.FileIO | None
    _file_position: int

    def _is_of(self, name: str | bytes, path: str) -> None:
        """Take name and path; the first thing that is done."""
        self.name = name
        self._path = path
        self._file = None
        self._file_position = -1

    @property
    def mode(self) -> str:
        """As an open file says."""
        return "rb"

    @property
    def raw(self) -> io.FileIO:
        """The real file, where this one stands."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        if self._file is None:
            self._file = self._real_file()
        position = self.tell()
        if position != self._file_position:  # else the holder of the descriptor moves it
            self._file.seek(position)
            self._file_position = position
        return self._file

    def _real_file(self) -> io.FileIO:
        return io.FileIO(self._path)

    def fileno(self) -> int:
        """Return a descriptor of the real file, positioned as this one when it was last moved."""
        return self.raw.fileno()

    def detach(self) -> Any:
        """Return the real file; this one is of no use afterwards."""
        raw = self.raw
        self._file = None
        self.close()
        return raw

    def close(self) -> None:
        """Close both."""
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


class ServedFile(_AsOpened, io.BytesIO):
    """Bytes in memory that behave as the file of that name does when it is opened with ``"rb"``.

    Args:
        data: The file's bytes; ``bytes`` are shared, anything else is copied.
        name: As the user gave it.
        path: The same file, absolute: the working directory may change.
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
        """Return some of what comes next without moving on."""
        start = self.tell()
        data = self.read(io.DEFAULT_BUFFER_SIZE)
        super().seek(start)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move; before the start is an error, as in a file and unlike in memory."""
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


class PartlyReadFile(_AsOpened, io.BufferedIOBase):
    """A large file that a ``FileReader`` lends, as the file of that name opened with ``"rb"``: reads cost what they read.

    The first read, often the only one, copies its part and nothing else. Whatever comes after goes through a
    ``BufferedReader``, whose methods then stand in for these. This is none itself: numpy takes those for files that have a
    descriptor.

    Args:
        lent: The file's bytes.
        name: As the user gave it.
        path: The same file, absolute: the working directory may change.
    """

    def __init__(self, lent: LentFile, name: str | bytes, path: str) -> None:
        self._is_of(name, path)
        self._lent = lent
        self._position = 0
        self._has_given = False
        self._is_closed = False
        self._buffered: io.BufferedReader | None = None

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def close(self) -> None:
        """Close it, and the real file if there is one."""
        self._is_closed = True
        if self._file is not None:
            self._file.close()
        if self._buffered is not None:
            self._buffered.close()
        self._lent.close()

    def read(self, size: int | None = -1, /) -> bytes:
        """Return that many bytes, fewer at the end; all that are left if it is None or negative."""
        if not self._has_given and not self._is_closed and type(size) is int and size > 0 and self._buffered is None:
            data = self._lent.read(self._position, size)
            if data is not None:
                self._has_given = True
                self._position += len(data)
                return data
        return self._reader().read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move."""
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
        """As of a ``BufferedReader``, like all that follow."""
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
        """Return what stands in for this from now on: C from end to end."""
        if self._buffered is None:
            source = _LentBytes(self._lent, self._path, self._position, has_given=self._has_given)
            buffered = self._buffered = io.BufferedReader(source)
            vars(self).update({name: getattr(buffered, name) for name in _OF_BUFFERED})
            if self._is_closed:
                buffered.close()
        return self._buffered


_OF_BUFFERED = (
    "read", "read1", "readinto", "readinto1", "readline", "readlines", "peek", "seek", "tell", "flush", "seekable",
    "readable",
)  # fmt: skip


class _LentBytes(io.RawIOBase):
    """What a ``PartlyReadFile`` is buffered from: lent bytes, or the real file when they are there no more."""

    def __init__(self, lent: LentFile, path: str, position: int, *, has_given: bool) -> None:
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
        """Return the real file, opened again, in the version that was read; raises as ``_open_real``."""
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
        """Change to the real file, and return its descriptor.

        Raises:
            OSError: Some bytes were given, and it is another file by now: as a network file system answers.
        """
        if self._real is None:
            self._real = _open_real(self._lent, self._path, has_given=self._has_given)
        return self._real.fileno()


def _open_real(lent: LentFile, path: str, *, has_given: bool) -> io.FileIO:
    """Open the file that is lent.

    Raises:
        OSError: Some bytes were given, and it is another file by now: as a network file system answers.
    """
    real = io.FileIO(path)
    if has_given and not lent.are_of(real.fileno()):
        real.close()
        raise OSError(errno.ESTALE, "changed while it was open, and the node's cache has freed it", path)
    return real


def opened_file(answer: Answer, name: str | bytes, path: str) -> ServedFile | PartlyReadFile:
    """Return the file of that name, opened with ``"rb"``.

    Args:
        answer: Its bytes.
        name: As the user gave it.
        path: The same file, absolute.
    """
    if isinstance(answer, bytes | bytearray | memoryview):
        return ServedFile(answer, name, path)
    return PartlyReadFile(answer, name, path)


def as_text(
    file: ServedFile | PartlyReadFile, mode: str, encoding: str | None, errors: str | None, newline: str | None
) -> io.TextIOWrapper | None:
    """Return the file as ``open`` gives it in a text mode, or None: ``open`` knows what is wrong with the arguments."""
    try:
        text: Any = io.TextIOWrapper(file, encoding, errors, newline)
    except (LookupError, TypeError, ValueError):
        file.close()
        return None
    text.mode = mode
    return text  # type: ignore[no-any-return]
