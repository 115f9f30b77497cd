"""What goes into an entry comes out of it, type by type; what cannot go in is refused with its place."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import math
import pickle
import struct
import sys
import threading
import types
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import pytest

from prefeed.errors import CannotEncodeError, EntryFormatError
from prefeed.stage_cache.codec import Encoder, decode, note_of
from prefeed.stage_cache.layout import FIRST_OFFSET, HEADER_BYTES, MAX_DEPTH, unpack_header
from stage_samples import Bag, Colour, Point, Shape, Slotted, Steps, same

HERE = Path(__file__)


def encoded(sample: Any, **options: Any) -> memoryview:
    return memoryview(bytes(Encoder().encode(sample, **options)))


def round_trip(sample: Any, *, copy: bool = True) -> Any:
    return decode(encoded(sample), copy=copy)


def numbered(values: list[Any]) -> list[str]:
    return [f"{number}-{type(value).__name__}" for number, value in enumerate(values)]


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    -(10**40),
    0.0,
    -0.0,
    1e300,
    math.inf,
    struct.unpack("<d", b"\x01\x02\x03\x04\x05\x06\xf8\x7f")[0],  # a NaN with a payload
    complex(-0.0, math.nan),
    "",
    "naïve 図",
    "lone \udc80 surrogate",
    b"",
    b"x" * 511,
    b"x" * 100_000,
    bytearray(b"abc"),
    (),
    [],
    {},
    (1, (2, [3, {"a": (4,)}])),
    [1, 2.5, None, "a", b"b", True],
    [[1, 2], {"x": [3]}],
    [2**70, 1],
    list(range(1000)),
    {"b": 1, "a": 2},
    {1: "int", "1": "text", (1, 2): "tuple", None: 0, 2.5: 1, b"k": 2, True and 3: 4},
    {"ключ": 1},
    OrderedDict(z=1, a=np.int8(2)),
    np.float32(1.5),
    np.float64(-0.0),
    np.int64(7),
    np.longlong(7),
    np.bool_(True),
    np.datetime64("2026-01-02", "ns"),
    np.timedelta64(5, "D"),
    np.str_("text\0"),
    np.bytes_(b"bytes\0"),
    np.complex64(1 + 2j),
    np.array([(1, 2.0)], dtype=[("a", "<i4"), ("b", "<f8")])[0],
    Path("/a/b"),
    PurePosixPath("a"),
    PureWindowsPath("c:\\a"),
    Path("/not/utf8/\udcff"),
    Colour.RED,
    Steps.UP | Steps.DOWN,
    Steps(0),
    Point(1, (2, 3)),
    Shape("square", [Point(0, 0)], {"area": np.float32(4)}),
    Slotted(1, np.arange(3)),
]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("sample", VALUES, ids=numbered(VALUES))
def test_values_come_back_exactly(sample: Any, copy: bool) -> None:
    assert same(round_trip(sample, copy=copy), sample)
    assert same(round_trip((sample, [sample]), copy=copy), (sample, [sample]))


PLAIN_DTYPES = ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "g", "F", "D", "G"]
OTHER_DTYPES = ["<U5", "S7", ">f4", ">i8", "V9", "<M8[s]", "<m8[25us]"]
STRUCTURED = [
    np.dtype([("a", "<i4"), ("b", ">f8", (2, 3)), ("c", [("d", "U3")])]),
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    np.dtype({"names": ["late", "early"], "formats": ["<i4", "<i2"], "offsets": [8, 0], "itemsize": 24}),
]
DTYPES: list[np.dtype[Any]] = [*map(np.dtype, PLAIN_DTYPES + OTHER_DTYPES), *STRUCTURED]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=[f"{number}-{dtype.char}" for number, dtype in enumerate(DTYPES)])
def test_arrays_of_every_dtype_come_back_exactly(dtype: np.dtype[Any], copy: bool) -> None:
    data = np.random.default_rng(1).bytes(dtype.itemsize * 12)
    array = np.frombuffer(bytes(12 * dtype.itemsize) if dtype.kind == "U" or dtype.names else data, dtype).copy()
    if dtype.names:
        array[dtype.names[0]] = np.arange(12)
    if dtype == np.bool_:
        array = np.frombuffer(b"\0\1" * 6, dtype)
    for shaped in (array.reshape(3, 4), array.reshape(3, 4).T, array[::2], array[:0], array.reshape(3, 4, 1)[:, :0]):
        back = round_trip(shaped, copy=copy)
        assert (back.dtype, back.dtype.char, back.dtype.type) == (dtype, dtype.char, dtype.type)
        assert back.shape == shaped.shape
        assert (back == shaped).all() if dtype.names else back.tobytes() == shaped.tobytes()
        assert back.flags.c_contiguous


def test_arrays_without_dimensions_stay_so() -> None:
    back = round_trip(np.array(3, np.uint16))

    assert type(back) is np.ndarray
    assert (back.shape, back.dtype, back[()]) == ((), np.uint16, 3)


def test_a_mapped_array_comes_back_as_a_plain_one(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")

    back = round_trip(mapped[2:5])

    assert type(back) is np.ndarray
    assert back.tolist() == [2, 3, 4]


def test_copies_are_writable_and_own_their_memory() -> None:
    view = encoded(np.arange(1000))
    back = decode(view)

    back += 1
    assert back.base is None
    assert decode(view)[0] == 0


def test_views_are_read_only_and_lie_in_the_entry() -> None:
    entry = bytearray(encoded({"a": np.arange(1000), "b": [np.zeros(3)]}))
    back = decode(memoryview(entry), copy=False)

    assert not back["a"].flags.writeable
    assert np.shares_memory(back["a"], np.frombuffer(entry, np.uint8))
    assert np.shares_memory(back["b"][0], np.frombuffer(entry, np.uint8))


def test_blocks_are_aligned_where_the_store_puts_values() -> None:
    page = np.zeros(1 << 16, np.uint8)
    first = 16 - page.ctypes.data % 4096 + 4096
    entry = encoded([np.arange(5, dtype=np.uint8), "text", np.arange(7.0), np.arange(3)], note=b"abc")
    page[first : first + len(entry)] = np.frombuffer(entry, np.uint8)

    back = decode(memoryview(page)[first : first + len(entry)], copy=False)

    assert (page.ctypes.data + first) % 4096 == 16
    assert [array.ctypes.data % 64 for array in (back[0], back[2], back[3])] == [0, 0, 0]
    assert unpack_header(entry).payload_start % 64 == FIRST_OFFSET


def test_a_note_is_found_without_decoding() -> None:
    entry = encoded((1, np.zeros(3)), note=b"a note")

    assert note_of(entry) == b"a note"
    assert note_of(encoded(None)) == b""


def test_equal_samples_are_equal_bytes_whatever_was_encoded_before() -> None:
    used, fresh = Encoder(), Encoder()
    used.encode(np.full(5000, 255, np.uint8))
    sample = [np.zeros(3, np.uint8), b"a" * 600, np.ones(5, np.uint8)]

    assert bytes(used.encode(sample)) == bytes(fresh.encode(sample))


def test_gaps_between_fields_hold_nothing_of_an_earlier_entry() -> None:
    encoder = Encoder()
    encoder.encode(np.full(5000, 255, np.uint8))

    entry = encoder.encode(np.zeros(100, STRUCTURED[1]))

    assert b"\xff" not in bytes(entry)


def test_samples_that_differ_in_shapes_and_numbers_share_a_schema() -> None:
    entries = [encoded({"image": np.zeros((3, size, size)), "label": size, "boxes": [1.5] * size}) for size in (4, 9)]
    schemas = {
        bytes(entry[header.note_end : header.schema_end]) for entry in entries for header in [unpack_header(entry)]
    }

    assert len(schemas) == 1


def test_an_entry_outlives_a_larger_one_only_until_the_next_call() -> None:
    encoder = Encoder()
    first = encoder.encode(1)
    kept = bytes(first)
    encoder.encode(np.zeros(1 << 20))

    assert bytes(first) == kept  # the buffer was replaced; a view of the old one stays readable
    assert first.readonly


# ---------------------------------------------------------------- refused


class Odd:
    """Has no encoding."""


class Meters(float):
    pass


Local = collections.namedtuple("Local", "a")


def local_dataclass() -> Any:
    @dataclass
    class Inner:
        a: int = 1

    return Inner()


def structseq() -> Any:
    return sys.version_info


REFUSED: list[tuple[Any, str, str]] = [
    (Odd(), "sample", "Odd"),
    ((1, {"mask": Odd()}), "sample[1]['mask']", "Odd"),
    ([Point(1, Odd())], "sample[0].y", "Odd"),
    (Shape("a", [], {"b": Odd()}), "sample.facts['b']", "Odd"),
    ({1, 2}, "sample", "set"),
    (Meters(1.0), "sample", "Meters"),
    (collections.defaultdict(list), "sample", "defaultdict"),
    (dt.datetime(2026, 1, 1), "sample", "datetime"),  # noqa: DTZ001
    ([np.array([None])], "sample[0]", "Python objects"),
    (np.ma.masked_array([1]), "sample", "MaskedArray"),
    (np.zeros(3, np.dtype([])), "sample", "dtype"),
    (local_dataclass(), "sample", "import path"),
    (structseq(), "sample", "version_info"),
    (lambda: 1, "sample", "function"),
]


@pytest.mark.parametrize(("sample", "where", "words"), REFUSED, ids=numbered([sample for sample, _, _ in REFUSED]))
def test_what_cannot_be_encoded_is_refused_with_its_place(sample: Any, where: str, words: str) -> None:
    with pytest.raises(CannotEncodeError, match='codec="pickle"') as caught:
        encoded(sample)

    assert str(caught.value).startswith(f"{where} cannot be cached")
    assert words in str(caught.value)
    assert caught.value.details["where"] == where


def test_a_sample_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append((loop,))

    with pytest.raises(CannotEncodeError, match=f"more than {MAX_DEPTH} others, or holds itself") as caught:
        encoded(loop, allow_pickle=True)
    assert len(str(caught.value)) < 500


def test_deep_samples_come_back() -> None:
    sample: Any = np.arange(2)
    for _ in range(MAX_DEPTH // 2 - 1):
        sample = ([sample],)

    assert same(round_trip(sample), sample)


def test_attributes_beside_the_fields_of_a_named_tuple_are_refused() -> None:
    bag = Bag(1)
    bag.more = 2  # type: ignore[attr-defined]

    with pytest.raises(CannotEncodeError, match=r"attributes of its own besides its fields: more"):
        encoded(bag)


# ---------------------------------------------------------------- pickle


def test_pickle_is_for_the_values_that_need_it_and_for_readers_that_allow_it() -> None:
    sample = {"set": {1, 2}, "array": np.arange(1000), "objects": np.array([None, "a"])}
    entry = encoded(sample, allow_pickle=True)

    back = decode(entry, allow_pickle=True)
    assert back["set"] == {1, 2}
    assert back["objects"].tolist() == [None, "a"]
    assert same(back["array"], sample["array"])
    with pytest.raises(EntryFormatError, match='codec="pickle"'):
        decode(entry)


def test_an_entry_without_pickle_is_decoded_either_way() -> None:
    entry = encoded((1, "a"), allow_pickle=True)

    assert decode(entry) == decode(entry, allow_pickle=True) == (1, "a")


def test_a_flag_that_was_cleared_does_not_let_pickle_through() -> None:
    entry = bytearray(encoded({1}, allow_pickle=True))
    entry[5] = 0

    with pytest.raises(EntryFormatError, match="pickled values"):
        decode(memoryview(entry))


def test_what_cannot_be_pickled_either_says_so() -> None:
    with pytest.raises(
        CannotEncodeError, match=r"sample\['lock'\] cannot be cached: _thread.lock cannot be pickled either"
    ):
        encoded({"lock": threading.Lock()}, allow_pickle=True)


# ---------------------------------------------------------------- classes by path


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, by: Any) -> None:
    monkeypatch.setattr(sys.modules["stage_samples"], name, by)


@pytest.mark.parametrize("name", ["Point", "Shape", "Colour", "Steps"])
def test_a_class_that_became_something_else_is_not_touched(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sample = {"Point": Point(1, 2), "Shape": Shape("a", [], {}), "Colour": Colour.RED, "Steps": Steps.UP}[name]
    entry = encoded(sample)

    def never(*arguments: Any) -> Any:
        raise AssertionError("called")

    for other in (never, None, types.SimpleNamespace(__call__=never)):
        replaced(monkeypatch, name, other)
        with pytest.raises(EntryFormatError):
            decode(entry)


def test_a_dataclass_with_other_fields_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = encoded(Shape("a", [], {}))

    @dataclass
    class Changed:
        name: str
        facts: dict[str, Any] = field(default_factory=dict)

    replaced(monkeypatch, "Shape", Changed)
    with pytest.raises(EntryFormatError, match="no longer the same dataclass"):
        decode(entry)


def test_a_class_defined_again_is_the_one_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = encoded(Point(1, 2))
    assert type(decode(entry)) is Point

    class Again(NamedTuple):
        x: Any
        y: Any

    replaced(monkeypatch, "Point", Again)
    assert type(decode(entry)) is Again


def test_making_a_dataclass_runs_none_of_its_code() -> None:
    sample = Slotted(1, 2)
    Slotted.made = 0

    assert same(round_trip(sample), sample)
    assert Slotted.made == 0


def test_an_entry_of_an_unknown_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = bytes(encoded(Colour.RED)).replace(b"stage_samples", b"stage_nothing")

    with pytest.raises(EntryFormatError, match="stage_nothing"):
        decode(memoryview(entry))


# ---------------------------------------------------------------- foreign bytes


@pytest.mark.parametrize("data", [b"", b"x", bytes(HEADER_BYTES), b"\xff" * 40, pickle.dumps((1, 2))])
def test_foreign_bytes_are_no_entry(data: bytes) -> None:
    with pytest.raises(EntryFormatError, match="no stage entry"):
        decode(memoryview(data))
    with pytest.raises(EntryFormatError):
        note_of(memoryview(data))


def test_another_layout_version_is_said() -> None:
    entry = bytearray(encoded(1))
    entry[4] = 9

    with pytest.raises(EntryFormatError, match="layout version 9"):
        decode(memoryview(entry))


def test_an_entry_with_more_or_less_bytes_is_damaged() -> None:
    entry = bytes(encoded((1, np.arange(9))))

    for other in (entry + b"\0", entry[:-1]):
        with pytest.raises(EntryFormatError, match=f"names {len(entry)} bytes"):
            decode(memoryview(other))


def test_bytes_that_no_value_takes_are_damage() -> None:
    entry = bytearray(encoded([np.zeros(2**16, np.uint8)]))
    at = bytes(entry).index(b"\xce\x00\x01\x00\x00")
    entry[at : at + 5] = b"\xce\x00\x00\x00\x01"

    with pytest.raises(EntryFormatError, match="left over"):
        decode(memoryview(entry))


def test_a_shape_beyond_the_payload_is_refused_before_memory_is_taken() -> None:
    entry = bytearray(encoded(np.zeros(2**16, np.uint8)))
    at = bytes(entry).index(b"\xce\x00\x01\x00\x00")  # the length in the values, as msgpack has it
    entry[at : at + 5] = b"\xce\xff\xff\xff\xff"

    with pytest.raises(EntryFormatError, match="4294967295 bytes where 65536 are left"):
        decode(memoryview(entry))


class ShownEnum(enum.IntEnum):
    """Whose members are ints."""

    ONE = 1


def test_members_of_int_enums_stay_members() -> None:
    back = round_trip({"a": Colour.RED, "b": [Colour.BLUE]})

    assert back == {"a": Colour.RED, "b": [Colour.BLUE]}
    assert type(back["b"][0]) is Colour
