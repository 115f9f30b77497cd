"""Any sample comes back as it was; damaged rows are errors of ours."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from prefeed.errors import EntryFormatError
from prefeed.stage_cache.comparing import difference
from prefeed.stage_cache.rows import Row, encode
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
LOOKED_AT = settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])


def row_of(sample: Any, note: bytes = b"") -> bytes:
    return b"".join(encode(sample, note=note))


@LOOKED_AT
@given(sample=SAMPLES, note=st.binary(max_size=70), copy=st.booleans())
def test_samples_come_back_as_they_were(sample: Any, note: bytes, copy: bool) -> None:
    data = row_of(sample, note)
    row = Row.open(memoryview(data))
    assert row.note == note
    assert same(row.load(copy=copy), sample)
    again = row_of(row.load(copy=copy))
    assert difference(data, again) is None


@LOOKED_AT
@given(sample=SAMPLES, cut=st.integers(1, 10_000), note=st.binary(max_size=20))
def test_a_part_of_a_row_is_none(sample: Any, cut: int, note: bytes) -> None:
    row = row_of(sample, note)
    for part in (row[: -(1 + cut % len(row))], row[1 + cut % len(row) :]):
        with pytest.raises(EntryFormatError):
            Row.open(memoryview(part))


@LOOKED_AT
@given(sample=SAMPLES, data=st.data())
def test_a_damaged_head_is_never_unpickled(sample: Any, data: st.DataObject) -> None:
    row = bytearray(row_of(sample))
    end = Row.open(memoryview(bytes(row))).layout.head_bytes
    for place, change in data.draw(
        st.lists(
            st.tuples(st.integers(0, end - 1), st.integers(1, 255)), min_size=1, max_size=4, unique_by=lambda x: x[0]
        )
    ):
        row[place] ^= change
    try:
        found = Row.open(memoryview(row))
    except EntryFormatError:
        return
    assert same(found.load(), sample)  # only zeros before the first buffer were changed


@LOOKED_AT
@given(data=st.binary(max_size=300))
def test_foreign_bytes_are_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(EntryFormatError):
        Row.open(memoryview(data))
