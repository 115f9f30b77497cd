"""The open file whose bytes are in memory."""

from __future__ import annotations

import errno
import io
import os
from typing import Any, NoReturn

from prefeed.types import Buffer


class ServedFile(io.BytesIO):
    """Bytes in memory that behave as the file of that name does when it is opened with ``"rb"``.

    Who asks for a descriptor (``mmap``, ``numpy.memmap``, a child's standard input) gets one of the real file, opened
    then and not before.

    Args:
        data: The file's bytes; ``bytes`` are shared, anything else is copied.
        name: As the user gave it.
        path: The same file, absolute: the working directory may change.
    """

    def __init__(self, data: Buffer, name: str | bytes, path: str) -> None:
        super().__init__(data)
        self.name = name
        self._path = path
        self._file: io.FileIO | None = None
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
            self._file = io.FileIO(self._path)
        position = self.tell()
        if position != self._file_position:  # else whoever holds the descriptor moves it
            self._file.seek(position)
            self._file_position = position
        return self._file

    def fileno(self) -> int:
        """Return a descriptor of the real file, positioned as this one when it was last moved."""
        return self.raw.fileno()

    def detach(self) -> Any:
        """Return the real file; this one is of no use afterwards."""
        raw = self.raw
        self._file = None
        super().close()
        return raw

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
        raise io.UnsupportedOperation("truncate")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("cannot pickle '_io.BufferedReader' object")

    def __repr__(self) -> str:
        return f"<_io.BufferedReader name={self.name!r}>"


def as_text(
    file: ServedFile, mode: str, encoding: str | None, errors: str | None, newline: str | None
) -> io.TextIOWrapper | None:
    """Return the file as ``open`` gives it in a text mode, or None: ``open`` knows what is wrong with the arguments."""
    try:
        text: Any = io.TextIOWrapper(file, encoding, errors, newline)
    except (LookupError, TypeError, ValueError):
        file.close()
        return None
    text.mode = mode
    return text  # type: ignore[no-any-return]
