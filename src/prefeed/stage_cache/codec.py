"""Samples to bytes and back, without pickle: the layout is in ``layout.py``.

What comes back has the same types, dtypes, shapes and values, bit by bit. Not kept: that one object occurs twice in a
sample, strides (arrays come back contiguous), that an array was read-only, that a ``numpy.memmap`` was mapped.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import msgspec

from prefeed.errors import CannotEncodeError, EntryFormatError
from prefeed.stage_cache.decoding import Source, compile_schema
from prefeed.stage_cache.encoding import Parts, RefusedError, take_apart
from prefeed.stage_cache.layout import (
    HEADER_BYTES,
    MAX_PART_BYTES,
    Header,
    Node,
    pack_header,
    payload_start,
    unpack_header,
)
from prefeed.stage_cache.plug_ins import Reader

__all__ = ["Encoder", "decode", "note_of"]

_ZEROS: Final = bytes(64)
_SMALLEST_SCRATCH_BYTES: Final = 1 << 16
_MAX_COMPILED: Final = 1024

_values_encoder = msgspec.msgpack.Encoder()
_decode_msgpack = msgspec.msgpack.Decoder().decode
_compiled: dict[bytes, Reader] = {}


class Encoder:
    """Writes entries into one scratch buffer, which it keeps and which is as large as the largest entry so far.

    Threads and processes: one thread at a time. After fork each process has its own.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._address = 0

    def encode(self, sample: Any, *, note: bytes = b"", allow_pickle: bool = False) -> memoryview:
        """Return the sample as an entry; valid until the next call.

        Args:
            sample: Any nesting of numbers, texts, bytes, tuples, lists, dicts, named tuples, dataclasses, enum members,
                paths, numpy arrays and scalars, CPU tensors and PIL images.
            note: Bytes of the caller's own, found again with ``note_of``.
            allow_pickle: Pickle values that have no other encoding.

        Raises:
            CannotEncodeError: Something in the sample has no encoding. The message says what and where.
        """
        parts = Parts(allow_pickle=allow_pickle)
        try:
            schema = _values_encoder.encode(take_apart(sample, parts))
            values = _values_encoder.encode(parts.values)
        except RefusedError as err:
            raise _cannot_encode(err) from err
        if max(len(note), len(schema), len(values)) > MAX_PART_BYTES:
            raise CannotEncodeError(
                f"the sample's texts and numbers come to {len(values)} bytes; at most {MAX_PART_BYTES}"
            )
        return self._write(note, schema, values, parts)

    def _write(self, note: bytes, schema: bytes, values: bytes, parts: Parts) -> memoryview:
        values_end = HEADER_BYTES + len(note) + len(schema) + len(values)
        start = payload_start(values_end) if parts.payload_bytes else values_end
        end = start + parts.payload_bytes
        self._reserve(end)
        buffer = self._buffer
        pack_header(
            buffer,
            has_pickle=parts.has_pickle,
            note_bytes=len(note),
            schema_bytes=len(schema),
            values_bytes=len(values),
            payload_bytes=parts.payload_bytes,
        )
        # Gaps are zeroed: what an earlier entry left there would make equal samples unequal entries.
        buffer[HEADER_BYTES:start] = b"".join((note, schema, values, _ZEROS[: start - values_end]))
        last = start
        for offset, num_bytes, copy, value in parts.blocks:
            at = start + offset
            buffer[last:at] = _ZEROS[: at - last]
            copy(value, buffer, at, self._address + at)
            last = at + num_bytes
        return memoryview(buffer).toreadonly()[:end]

    def _reserve(self, num_bytes: int) -> None:
        if num_bytes > len(self._buffer):
            # A new one, since views of the old one may be about.
            self._buffer = bytearray(max(_SMALLEST_SCRATCH_BYTES, num_bytes + num_bytes // 8))
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))


def _cannot_encode(err: RefusedError) -> CannotEncodeError:
    where = f"sample{err.where}"
    advice = ': return tensors, arrays and plain values, or allow pickle with codec="pickle"' if err.can_pickle else ""
    return CannotEncodeError(
        f"{where} cannot be cached: {err.type_name} {err}{advice}", where=where, type=err.type_name
    )


def note_of(view: memoryview, header: Header | None = None) -> bytes:
    """Return the note of an entry.

    Args:
        view: A whole entry, contiguous.
        header: What ``unpack_header`` said of it; None: it is asked here.

    Raises:
        EntryFormatError: These bytes are no entry.
    """
    return bytes(view[HEADER_BYTES : (header or unpack_header(view)).note_end])


def decode(view: memoryview, header: Header | None = None, *, copy: bool = True, allow_pickle: bool = False) -> Any:
    """Return the sample that an entry holds.

    Args:
        view: A whole entry, contiguous.
        header: What ``unpack_header`` said of it; None: it is asked here.
        copy: True: everything in the sample owns its memory. False: arrays and tensors are views of the entry and valid
            as long as it is; arrays are read-only; tensors look writable, torch has no others, and must not be written.
        allow_pickle: Decode pickled values as well; they can run any code.

    Raises:
        EntryFormatError: The bytes are damaged, of another layout version, name classes that are not there, or hold
            pickled values without ``allow_pickle``.
    """
    if not view.readonly:
        view = view.toreadonly()
    if header is None:
        header = unpack_header(view)
    if header.has_pickle and not allow_pickle:
        raise EntryFormatError('the entry holds pickled values, which are decoded only with codec="pickle"')
    try:
        read = _reader_of(bytes(view[header.note_end : header.schema_end]))
        values = iter(_decode_msgpack(view[header.schema_end : header.values_end]))
        source = Source(view, header.payload_start, header.payload_end, values, copy=copy, allow_pickle=allow_pickle)
        sample = read(source)
        source.finish()
        return sample
    except Exception as err:  # pickled values, and the classes of others, may raise whatever they like
        raise EntryFormatError(f"the entry of {len(view)} bytes cannot be decoded: {err!r}") from err


def _reader_of(schema: bytes) -> Reader:
    read = _compiled.get(schema)
    if read is None:
        if len(_compiled) >= _MAX_COMPILED:
            _compiled.clear()
        node: Node = _decode_msgpack(schema)
        read = _compiled[schema] = compile_schema(node)
    return read
