"""Messages survive any cut; bytes that are no message are refused and nothing worse."""

from __future__ import annotations

import itertools
import types
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefeed.errors import ServerError
from prefeed.wire import messages as m
from prefeed.wire.frames import MAX_FRAME_BYTES, FrameReader, decode_body, encode
from profiles import examples

ALL_MESSAGES: tuple[type[m.Message], ...] = typing.get_args(m.AnyMessage)

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
STRATEGIES: dict[typing.Any, st.SearchStrategy[typing.Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: TEXT,
    bytes: st.binary(),
    bool: st.booleans(),
    type(None): st.none(),
    float: st.floats(allow_nan=False),
}


def any_of(kind: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Return a strategy of a type that occurs in messages, or of a message."""
    if kind in STRATEGIES:
        return STRATEGIES[kind]
    if isinstance(kind, types.UnionType):
        return st.one_of([any_of(part) for part in typing.get_args(kind)])
    if typing.get_origin(kind) is dict:
        return st.dictionaries(*map(any_of, typing.get_args(kind)), max_size=3)
    if typing.get_origin(kind) is tuple and typing.get_args(kind)[-1] is not ...:
        return st.tuples(*map(any_of, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return st.lists(any_of(typing.get_args(kind)[0]), max_size=3).map(tuple)
    return st.builds(kind, **{name: any_of(field) for name, field in typing.get_type_hints(kind).items()})


MESSAGES = st.one_of([any_of(kind) for kind in ALL_MESSAGES])


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(point % (len(data) + 1) for point in points)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=examples(300))
@given(sent=st.lists(MESSAGES, max_size=6), points=st.lists(st.integers(0, 10**6), max_size=12))
def test_messages_come_out_as_they_went_in_wherever_the_stream_is_cut(sent: list[m.Message], points: list[int]) -> None:
    reader = FrameReader()
    stream = b"".join(map(encode, sent))
    received = [message for part in cut(stream, points) for message in reader.feed(part)]
    assert received == sent
    assert list(map(type, received)) == list(map(type, sent))


@pytest.mark.parametrize("kind", ALL_MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_round_trips(kind: type[m.Message]) -> None:
    @settings(max_examples=examples(20))
    @given(message=any_of(kind))
    def round_trip(message: m.Message) -> None:
        assert decode_body(encode(message)[4:]) == message

    round_trip()


@settings(max_examples=examples(500))
@given(garbage=st.binary(max_size=200), points=st.lists(st.integers(0, 200), max_size=4))
def test_garbage_is_refused_and_nothing_worse(garbage: bytes, points: list[int]) -> None:
    feed_all(cut(garbage, points))


@settings(max_examples=examples(500))
@given(body=st.binary(max_size=100))
def test_a_frame_of_garbage_is_refused_and_nothing_worse(body: bytes) -> None:
    feed_all([len(body).to_bytes(4, "little") + body])


@settings(max_examples=examples(300))
@given(message=MESSAGES, at=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_changed_byte_is_another_message_or_refused(message: m.Message, at: int, value: int) -> None:
    data = bytearray(encode(message))
    data[4 + at % (len(data) - 4)] = value
    feed_all([bytes(data)])


@settings(max_examples=examples(200))
@given(value=st.recursive(st.none() | st.integers(-5, 5) | TEXT | st.binary(), st.lists, max_leaves=20))
def test_any_msgpack_that_is_no_message_is_refused(value: object) -> None:
    with pytest.raises(ServerError):
        decode_body(msgspec.msgpack.encode(value))


def test_nesting_without_end_is_refused() -> None:
    deep = b"\x91" * 100_000 + b"\x00"
    in_a_message = bytes([0x95]) + msgspec.msgpack.encode("Hello") + b"\x01\xa0\x01" + deep
    for body in (deep, in_a_message):
        with pytest.raises(ServerError):
            decode_body(body)


def test_a_frame_that_is_announced_too_long_is_refused_before_it_comes() -> None:
    with pytest.raises(ServerError, match="announced a frame"):
        list(FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))


def feed_all(parts: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for part in parts:
            for message in reader.feed(part):
                assert isinstance(message, ALL_MESSAGES)
    except ServerError:
        pass
