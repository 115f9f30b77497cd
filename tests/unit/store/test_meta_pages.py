"""What LMDB's meta pages say, as LMDB itself says it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import lmdb
import pytest

from prefeed.store.layout import PAGE_BYTES
from prefeed.store.tree import end_of_data, require_whole


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A store of four commits; the last makes it smaller."""
    with lmdb.open(os.fspath(tmp_path), map_size=1 << 24, max_dbs=2) as env:
        for number in range(3):
            with env.begin(write=True) as txn:
                txn.put(b"%d" % number, bytes(50_000 * (number + 1)))
        with env.begin(write=True) as txn:
            txn.delete(b"1")
    return tmp_path


def test_end_of_data_is_as_lmdb_says(written: Path) -> None:
    with lmdb.open(os.fspath(written), readonly=True) as env:
        expected = (env.info()["last_pgno"] + 1) * PAGE_BYTES
    with (written / "data.mdb").open("rb") as file:
        assert end_of_data(file.read(2 * PAGE_BYTES)) == expected > 300_000


def test_whole_until_one_byte_is_missing(written: Path) -> None:
    with (written / "data.mdb").open("rb") as file:
        end = end_of_data(file.read(2 * PAGE_BYTES))
    os.truncate(written / "data.mdb", end)
    require_whole(written)
    os.truncate(written / "data.mdb", end - 1)
    with pytest.raises(lmdb.CorruptedError, match=f"has {end - 1} bytes, and its data take {end}"):
        require_whole(written)


@pytest.mark.parametrize("data", [b"", b"short", bytes(2 * PAGE_BYTES), random.Random(4).randbytes(3 * PAGE_BYTES)])
def test_what_is_no_store_is_left_to_lmdb(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(data)
    require_whole(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        require_whole(tmp_path)
