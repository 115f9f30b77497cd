"""Which keys of a manifest are in the tier, against a dict."""

from __future__ import annotations

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from prefeed.server import datasets
from prefeed.server.datasets import KeyIndex
from profiles import examples

# Keys are hashes: two with the same first half do not occur, and one that did would only be fetched anew.
KEYS = st.lists(st.binary(min_size=16, max_size=16), unique_by=lambda key: key[:8], max_size=60)


@settings(max_examples=examples(300))
@given(keys=KEYS, more=KEYS, data=st.data(), chunk=st.integers(1, 20))
def test_it_finds_what_a_dict_finds(keys: list[bytes], more: list[bytes], data: st.DataObject, chunk: int) -> None:
    table = data.draw(st.lists(st.sampled_from(keys + more), max_size=80)) if keys + more else []
    with mock.patch.object(datasets, "_CHUNK", chunk):
        ours, theirs = KeyIndex(keys).match(memoryview(b"".join(table)))
    position = {key: index for index, key in enumerate(keys)}
    assert list(zip(ours.tolist(), theirs.tolist(), strict=True)) == [
        (position[key], index) for index, key in enumerate(table) if key in position
    ]


@settings(max_examples=examples(100))
@given(pairs=st.lists(st.tuples(st.sampled_from([b"a" * 8, b"b" * 8]), st.binary(min_size=8, max_size=8)), unique=True))
def test_it_never_takes_one_key_for_another(pairs: list[tuple[bytes, bytes]]) -> None:
    keys = [first + second for first, second in pairs]
    half = len(keys) // 2
    ours, theirs = KeyIndex(keys[:half]).match(memoryview(b"".join(keys[half:] + keys[:half])))
    table = keys[half:] + keys[:half]
    assert all(keys[our] == table[their] for our, their in zip(ours.tolist(), theirs.tolist(), strict=True))
