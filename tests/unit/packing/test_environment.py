"""LMDB environments: where values lie."""

from __future__ import annotations

import random
from pathlib import Path

import lmdb
import pytest

from prefeed.errors import CannotPackError
from prefeed.packing.environment import EnvironmentWriter, value_offsets

pytestmark = pytest.mark.usefixtures("sandbox")


def make(directory: Path, values: dict[bytes, bytes], **options: object) -> None:
    with (
        lmdb.open(str(directory), map_size=1 << 26, **options) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in values.items():
            transaction.put(key, value)


@pytest.fixture
def values() -> dict[bytes, bytes]:
    rng = random.Random(5)
    sizes = [0, 1, 10, 1000, 2000, 2010, 2040, 4000, 4096, 5000, 100_000]
    return {b"%05d" % i: rng.randbytes(sizes[i % len(sizes)]) for i in range(700)}


def test_values_lie_where_it_says(tmp_path: Path, values: dict[bytes, bytes]) -> None:
    with EnvironmentWriter(tmp_path, 1 << 20) as writer:  # too small: it grows
        pairs = list(values.items())
        for start in range(0, len(pairs), 50):
            writer.put(pairs[start : start + 50])
    content = (tmp_path / "data.mdb").read_bytes()
    offsets = dict(zip(values, value_offsets(tmp_path / "data.mdb", values), strict=True))
    assert {key: content[at : at + len(values[key])] for key, at in offsets.items()} == values


def test_a_lost_value_is_noticed(tmp_path: Path, values: dict[bytes, bytes]) -> None:
    make(tmp_path, values)
    with pytest.raises(CannotPackError, match="has lost b'none'"):
        list(value_offsets(tmp_path / "data.mdb", [b"00001", b"none"]))
