"""LMDB environments: where values lie, and environments of others."""

from __future__ import annotations

import random
from pathlib import Path

import lmdb
import pytest

from prefeed.config import current
from prefeed.errors import CannotPackError
from prefeed.packing.environment import EnvironmentWriter, scan, value_offsets
from prefeed.packing.index_existing import index_files
from unit.packing.packs import read_back

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


def test_environments_of_others(tmp_path: Path, values: dict[bytes, bytes]) -> None:
    make(tmp_path / "env", values)
    before = (tmp_path / "env" / "data.mdb").read_bytes()
    index_files(str(tmp_path / "env"), None, current())
    assert read_back(tmp_path / "env") == {key.decode(): value for key, value in values.items()}
    assert (tmp_path / "env" / "data.mdb").read_bytes() == before


def test_environments_in_one_file(tmp_path: Path, values: dict[bytes, bytes]) -> None:
    (tmp_path / "data").mkdir()
    make(tmp_path / "data" / "train.lmdb", values, subdir=False)
    (tmp_path / "data" / "train.lmdb-lock").unlink(missing_ok=True)
    index_files(str(tmp_path / "data"), None, current())
    assert len(read_back(tmp_path / "data")) == len(values)


def test_named_databases_are_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "env"), max_dbs=2) as environment:
        database = environment.open_db(b"images")
        with environment.begin(write=True, db=database) as transaction:
            transaction.put(b"a", b"1")
    with pytest.raises(CannotPackError, match="named databases, such as b'images'"):
        list(scan(tmp_path / "env" / "data.mdb", "data.mdb"))


def test_a_value_as_long_as_a_database_is_none(tmp_path: Path) -> None:
    make(tmp_path / "env", {b"a": bytes(48), b"b": b"x" * 48})
    assert [record.path for record in scan(tmp_path / "env" / "data.mdb", "data.mdb")] == ["a", "b"]


def test_no_environment(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"x" * 9000)
    with pytest.raises(CannotPackError, match="not an LMDB environment"):
        index_files(str(tmp_path), None, current())
