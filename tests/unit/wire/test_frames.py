"""A stream of bytes, cut into messages."""

from __future__ import annotations

import pytest

from prefeed.errors import ServerError
from prefeed.wire import messages as m
from prefeed.wire.frames import FrameReader, decode_body, encode


def test_a_frame_is_the_length_and_then_the_body() -> None:
    data = encode(m.GetStatus())
    assert int.from_bytes(data[:4], "little") == len(data) - 4


def test_several_messages_in_one_piece_and_one_in_many() -> None:
    reader = FrameReader()
    stream = encode(m.Stop()) + encode(m.EndConsumer(7))
    assert list(reader.feed(stream[:-1])) == [m.Stop()]
    assert list(reader.feed(b"")) == []
    assert list(reader.feed(stream[-1:])) == [m.EndConsumer(7)]


def test_bytes_go_through_as_they_are() -> None:
    data = bytes(range(256)) * 1000
    (message,) = FrameReader().feed(encode(m.Answered(1, 2, data=data)))
    assert isinstance(message, m.Answered)
    assert message.data == data


def test_what_is_no_message_is_named_as_such() -> None:
    with pytest.raises(ServerError, match="no message of this protocol"):
        decode_body(b"\xff\xff")


def test_messages_before_the_broken_one_still_count() -> None:
    reader = FrameReader()
    received: list[m.Message] = []
    with pytest.raises(ServerError):
        received.extend(reader.feed(encode(m.Stop()) + b"\x01\x00\x00\x00\xc1"))
    assert received == [m.Stop()]
