"""Frames: four bytes of length, little-endian, then one msgpack message. No pickle."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from prefeed.errors import ServerError
from prefeed.wire.messages import AnyMessage, Message

MAX_FRAME_BYTES = 1 << 30
"""A longer frame is a broken peer."""

MAX_INLINE_BYTES = MAX_FRAME_BYTES - 4096
"""A larger object does not fit into an answer."""

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """Return the message as one frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_body(body: bytes | bytearray | memoryview) -> AnyMessage:
    """Return the message of a frame's body.

    Raises:
        ServerError: Not a message of this protocol.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise ServerError(f"the peer sent {len(body)} bytes that are no message of this protocol: {err}") from err


class FrameReader:
    """Cuts a byte stream into messages.

    Attributes:
        is_new: It was given nothing yet.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.is_new: bool = True

    def feed(self, data: bytes) -> Iterator[AnyMessage]:
        """Yield every message that the data completes.

        Raises:
            ServerError: The stream is not of this protocol; the connection is to be closed.
        """
        self.is_new = False
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise ServerError(f"the peer announced a frame of {length} bytes; at most {MAX_FRAME_BYTES} are read")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[start + _LENGTH.size : end])
            start = end
            yield decode_body(body)
        del self._buffer[:start]
