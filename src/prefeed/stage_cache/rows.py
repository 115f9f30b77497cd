"""Rows: samples as bytes of pickle's protocol 5, whose arrays are buffers of their own.

::

    header (28 bytes) | sizes of buffers | note | pickled sample | zeros | buffer | zeros | buffer
                                                                          ^ each at a multiple of 64 bytes

A row is written from the sample's own memory with one ``pwritev``, and its arrays can be used where they lie.

Unpickling can run any code. So a row is loaded only from files that this user's own processes wrote: memfds of the user's
node server and files with mode 0600. The head has a checksum, so that damaged bytes are never unpickled.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import pickle
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from xxhash import xxh3_64, xxh3_64_digest

from prefeed.errors import CannotEncodeError, EntryFormatError
from prefeed.types import Buffer

ALIGNMENT: Final = 64

_MAGIC: Final = b"pfR1"
_HEADER: Final = struct.Struct("<4s8s4I")
"""Magic, checksum of the rest of the head, then bytes of the head, number of buffers, bytes of the note and of the pickle."""

_FACTS_START: Final = 12
_MOST_HEAD_BYTES: Final = 2**32 - 1
_MOST_INLINE_BYTES: Final = 512
"""Larger arrays are buffers of their own: at most a quarter of such a row is zeros."""

_PROTOCOL: Final = 5


class Layout(NamedTuple):
    """Sizes of the parts of a row, in bytes.

    Attributes:
        head_bytes: Size of everything before the first buffer.
        buffers: Offset and size of each buffer.
        row_bytes: Size of the row.
    """

    head_bytes: int
    buffers: tuple[tuple[int, int], ...]
    row_bytes: int


class Row(NamedTuple):
    """A row that was found.

    Attributes:
        layout: Sizes of its parts.
        note: Bytes of the caller's own.
        pickled: The sample without the contents of its arrays.
        buffers: The contents of its arrays.
    """

    layout: Layout
    note: bytes
    pickled: memoryview
    buffers: Sequence[Buffer]

    @classmethod
    def open(cls, view: memoryview) -> Row:
        """Return the row in these bytes.

        Raises:
            EntryFormatError: The bytes are no row, or not all of one, or a damaged one, or of another version.
        """
        view = view.toreadonly()
        layout, note, pickled = _open_head(view)
        if layout.row_bytes != len(view):
            raise EntryFormatError(
                f"the row is damaged: its head names {layout.row_bytes} bytes, there are {len(view)}"
            )
        return cls(layout, note, pickled, [view[offset : offset + size] for offset, size in layout.buffers])

    def load(self, *, copy: bool = True) -> Any:
        """Return the sample.

        Args:
            copy: The sample owns its memory. False: arrays and tensors are views of the buffers, and are valid as long as
                these are. Arrays over read-only buffers are read-only; torch has no read-only tensors, so tensors over such
                buffers must not be written to.

        Raises:
            EntryFormatError: The sample cannot be unpickled, for example because a class no longer exists.
        """
        buffers = [np.frombuffer(part, np.uint8).copy() for part in self.buffers] if copy else self.buffers
        try:
            return pickle.loads(self.pickled, buffers=buffers)  # noqa: S301 - written by this user's processes
        except Exception as err:  # any class may raise anything
            raise EntryFormatError(f"a row of {self.layout.row_bytes} bytes cannot be unpickled: {err!r}") from err

    def has_bytes_of(self, other: Row) -> bool:
        """Return whether both hold the same sample, byte for byte; their notes may differ."""
        if self.pickled != other.pickled or self.layout.buffers != other.layout.buffers:
            return False
        pairs = zip(self.buffers, other.buffers, strict=True)
        # numpy compares memory much faster than memoryview does.
        return all(np.array_equal(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8)) for a, b in pairs)


def _open_head(view: memoryview) -> tuple[Layout, bytes, memoryview]:
    """Return the layout, the note and the pickled sample of a row that begins here."""
    if len(view) < _HEADER.size or bytes(view[:4]) != _MAGIC:
        raise EntryFormatError(f"these bytes are no row of version 1: they begin with {bytes(view[:8]).hex()}")
    _, checksum, _, num_buffers, note_bytes, pickle_bytes = _HEADER.unpack_from(view)
    note_start = _HEADER.size + 8 * num_buffers
    pickle_start = note_start + note_bytes
    end = pickle_start + pickle_bytes
    if end > len(view) or xxh3_64_digest(view[_FACTS_START:end]) != checksum:
        raise EntryFormatError(f"the head of a row of {len(view)} bytes is damaged")
    return (
        _layout_of(bytes(view[_FACTS_START:note_start])),
        bytes(view[note_start:pickle_start]),
        view[pickle_start:end],
    )


@lru_cache(maxsize=1024)
def _layout_of(facts: bytes) -> Layout:
    """Return the layout that a head describes. Samples of one shape mostly have the same one."""
    head_bytes, _num_buffers, _, _, *sizes = struct.unpack(f"<4I{len(facts) // 8 - 2}Q", facts)
    buffers, end = [], head_bytes
    for size in sizes:
        offset = _aligned(end)
        buffers.append((offset, size))
        end = offset + size
    return Layout(head_bytes, tuple(buffers), end)


def encode(sample: Any, *, note: bytes = b"") -> list[Buffer]:
    """Return the parts of a row, to be written one after the other. Arrays are not copied.

    Args:
        sample: Anything that pickle takes. Dense CPU tensors, also those of subclasses, and Pillow's images are stored without
            pickle's own copy; an opened image comes back as ``PIL.Image.Image``, a mapped array as ``numpy.ndarray``.
        note: Bytes of the caller's own, found again in ``Row.note``.

    Raises:
        CannotEncodeError: The sample cannot be pickled.
    """
    stream = io.BytesIO()
    buffers: list[memoryview] = []

    def keep_inline(buffer: pickle.PickleBuffer) -> bool:
        data = buffer.raw()
        if len(data) <= _MOST_INLINE_BYTES:
            return True
        buffers.append(data)
        return False

    try:
        _Pickler(stream, _PROTOCOL, buffer_callback=keep_inline).dump(sample)
    except Exception as err:  # any class may raise anything
        kind = f"{type(sample).__module__}.{type(sample).__qualname__}".removeprefix("builtins.")
        raise CannotEncodeError(
            f"a sample of type {kind} cannot be cached, because it cannot be pickled: {err}", type=kind
        ) from err
    pickled = stream.getbuffer()
    sizes = [len(buffer) for buffer in buffers]
    end = _HEADER.size + 8 * len(sizes) + len(note) + len(pickled)
    facts = struct.pack(
        f"<4I{len(sizes)}Q", _aligned(end) if sizes else end, len(sizes), len(note), len(pickled), *sizes
    )
    checksum = xxh3_64(facts)
    checksum.update(note)
    checksum.update(pickled)
    parts: list[Buffer] = [b"".join((_MAGIC, checksum.digest(), facts, note)), pickled]
    for buffer in buffers:
        if end % ALIGNMENT:
            parts.append(bytes(-end % ALIGNMENT))
        parts.append(buffer)
        end = len(buffer)  # from a multiple of the alignment on
    return parts


def require_loadable(parts: Sequence[Buffer]) -> None:
    """Raise unless a row can be loaded again: some classes can be pickled and not unpickled.

    Raises:
        CannotEncodeError: The row cannot be loaded.
    """
    try:
        Row.open(memoryview(b"".join(parts))).load(copy=False)
    except EntryFormatError as err:
        raise CannotEncodeError(f"a sample cannot be cached: {err}") from err


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT


# ---------------------------------------------------------------- classes that pickle copies

Reduce = Callable[[Any], Any]


class _Reducers(dict[type, Reduce]):
    """Reducers by exact type, found when the first value of a type is pickled."""

    def __missing__(self, cls: type) -> Reduce:
        if issubclass(cls, type):
            raise KeyError(cls)  # a class is pickled by name
        packages = {base.__module__.partition(".")[0] for base in cls.__mro__}
        found: Reduce = copyreg.dispatch_table.get(cls, _reduce_itself)
        if "torch" in packages:
            found = importlib.import_module("prefeed.torch.tensors").reducer_of(cls) or found
        elif "PIL" in packages:
            is_opened = issubclass(cls, importlib.import_module("PIL.ImageFile").ImageFile)
            found = _reduce_image if is_opened or cls is importlib.import_module("PIL.Image").Image else found
        self[cls] = found
        return found


def reduce(value: Any) -> Any:
    """Reduce a value as ``object.__reduce_ex__`` does, in the way in which rows are pickled.

    Raises:
        Exception: The value cannot be pickled, or only by name.
    """
    return _reducers[type(value)](value)


def _reduce_itself(value: Any) -> Any:
    return value.__reduce_ex__(_PROTOCOL)


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    # numpy pickles dates, arrays of subclasses and arrays that are not contiguous inside the pickle, and swaps bytes.
    plain = np.asarray(array)
    if plain.dtype.hasobject or not plain.dtype.itemsize:
        return _reduce_itself(array)
    if plain.dtype.names:
        # Bytes between fields are undefined, and would differ in equal arrays.
        array, plain = plain, np.zeros(plain.shape, plain.dtype)
        plain[...] = array
    elif not plain.flags.forc:
        plain = plain.copy()
    order: Literal["C", "F"] = "C" if plain.flags.c_contiguous else "F"
    flat: Any = plain.reshape(-1, order=order).view(np.uint8)
    return make_array, (pickle.PickleBuffer(flat), plain.dtype, plain.shape, order)


def make_array(
    data: Buffer, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"]
) -> np.ndarray[Any, Any]:
    """Return an array over these bytes; rows name this function."""
    return np.ndarray(shape, dtype, data, order=order)


def _reduce_image(image: Any) -> Any:
    data = image.tobytes()  # also reads the palette
    palette = image.palette and (image.palette.mode, image.im.getpalette(image.palette.mode, image.palette.mode))
    return make_image, (image.mode, image.size, pickle.PickleBuffer(data), palette, image.info)


def make_image(
    mode: str, size: tuple[int, int], data: Buffer, palette: tuple[str, bytes] | None, info: dict[Any, Any]
) -> Any:
    """Return an image; rows name this function."""
    module = importlib.import_module("PIL.Image")
    image = module.frombytes(mode, size, data) if len(data) else module.new(mode, size)
    if palette:
        image.putpalette(palette[1], palette[0])
    image.info = info
    return image


_reducers: Final = _Reducers({np.ndarray: _reduce_array, np.memmap: _reduce_array})


class _Pickler(pickle.Pickler):
    dispatch_table = _reducers
