"""Any sample comes back as it was; any damage is an error of ours and nothing worse."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from prefeed.errors import EntryFormatError
from prefeed.stage_cache.codec import Encoder, decode, note_of
from profiles import examples
from stage_samples import Colour, Point, Shape, Steps, same

TEXT = st.text(alphabet=st.characters(exclude_categories=[])) | st.text(max_size=4)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.complex_numbers(),
    TEXT,
    st.binary(),
    st.integers(500, 600).map(bytes),
    st.binary().map(bytearray),
    st.sampled_from([Colour.RED, Steps.UP | Steps.DOWN, PurePosixPath("a/b")]),
)
DTYPES = hnp.scalar_dtypes() | hnp.byte_string_dtypes(min_len=1) | hnp.unicode_string_dtypes(min_len=1)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)).map(
    lambda value: value if isinstance(value, np.ndarray) else np.asarray(value)
)
SCALARS = DTYPES.flatmap(hnp.from_dtype).filter(lambda value: isinstance(value, np.generic))
TENSOR_DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64]


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], turned: bool) -> torch.Tensor:
    tensor = torch.arange(math.prod(shape)).to(dtype).view(shape)
    return tensor.permute(list(range(len(shape)))[::-1]) if turned else tensor


TENSORS = st.builds(
    tensor_of, st.sampled_from(TENSOR_DTYPES), st.lists(st.integers(0, 4), max_size=3).map(tuple), st.booleans()
)
KEYS = st.one_of(TEXT, st.integers(), st.binary(), st.tuples(st.integers(), TEXT))


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.builds(Point, inner, inner),
        st.builds(Shape, TEXT, st.lists(st.builds(Point, inner, inner), max_size=2), st.dictionaries(TEXT, inner)),
    )


SAMPLES = st.recursive(st.one_of(PLAIN, ARRAYS, SCALARS, TENSORS), nested, max_leaves=12)
LOOKED_AT = settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])


@LOOKED_AT
@given(samples=st.lists(SAMPLES, min_size=1, max_size=3), note=st.binary(max_size=70), copy=st.booleans())
def test_samples_come_back_as_they_were(samples: list[Any], note: bytes, copy: bool) -> None:
    encoder = Encoder()
    for sample in samples:  # one buffer for all of them
        entry = encoder.encode(sample, note=note)
        assert note_of(entry) == note
        assert same(decode(entry, copy=copy), sample)


@LOOKED_AT
@given(sample=SAMPLES, cut=st.integers(1, 10_000), note=st.binary(max_size=20))
def test_a_part_of_an_entry_is_none(sample: Any, cut: int, note: bytes) -> None:
    entry = bytes(Encoder().encode(sample, note=note))
    for part in (entry[: -(1 + cut % len(entry))], entry[1 + cut % len(entry) :]):
        try:
            decode(memoryview(part))
        except EntryFormatError:
            continue
        raise AssertionError("a part was decoded")


@settings(LOOKED_AT, max_examples=examples(600))
@given(sample=SAMPLES, data=st.data(), copy=st.booleans(), allow_pickle=st.just(False))
def test_damage_is_an_error_of_ours_or_another_value(
    sample: Any, data: st.DataObject, copy: bool, allow_pickle: bool
) -> None:
    entry = bytearray(Encoder().encode(sample))
    places = st.integers(0, len(entry) - 1) | st.integers(0, min(len(entry), 100) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
        entry[place] = value
    try:
        note_of(memoryview(entry))
        decode(memoryview(entry), copy=copy, allow_pickle=allow_pickle)
    except EntryFormatError:
        pass


@LOOKED_AT
@given(data=st.binary(max_size=300))
def test_foreign_bytes_are_an_error_of_ours(data: bytes) -> None:
    for decoder in (note_of, decode):
        try:
            decoder(memoryview(data))
        except EntryFormatError:
            continue
        raise AssertionError("decoded")
