"""``prefeed pack``, run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import prefeed
from prefeed.cli.pack import summary_of
from prefeed.packing.driver import PackResult
from unit.packing.packs import make_files, read_back

pytestmark = pytest.mark.usefixtures("sandbox")

Run = Callable[..., Result]


def test_packs_and_prints_the_url(run: Run, tmp_path: Path) -> None:
    files = make_files(tmp_path / "src")
    arguments = ("pack", str(tmp_path / "src"), str(tmp_path / "out"), "--format", "tfrecord", "--shard-size", "60k")
    first = run(None, *arguments, "--shuffle", "3")

    assert first.exit_code == 0
    assert first.stdout == f"pack+file://{tmp_path}/out\n"
    assert "60 objects, 256.2 KiB packed into" in first.stderr
    assert read_back(tmp_path / "out") == files
    again = run(None, *arguments, "--shuffle", "3", "--json")
    assert json.loads(again.stdout)["packed"] == 0
    other = run(None, *arguments, "--shuffle", "4", "--json")
    assert other.exit_code == 1
    assert json.loads(other.stdout)["error"]["code"] == "pack-occupied"


def test_a_pack_made_again_is_listed_again(run: Run, tmp_path: Path) -> None:
    make_files(tmp_path / "src")
    arguments = ("pack", str(tmp_path / "src"), str(tmp_path / "out"), "--format", "lmdb")
    assert run(None, *arguments).exit_code == 0
    assert len(prefeed.datasets.Packed(tmp_path / "out")) == 60
    for file in (tmp_path / "out").iterdir():
        file.unlink()
    (tmp_path / "src" / "cat" / "new.txt").write_bytes(b"new")
    assert run(None, *arguments).exit_code == 0
    assert len(prefeed.datasets.Packed(tmp_path / "out")) == 61
    prefeed.datasets._readers.close()


def result(**changed: int) -> PackResult:
    values = {"objects": 10, "bytes": 2048, "data_files": 2, "packed": 10, "kept": 0, "seconds": 1.5}
    return PackResult(url="pack+file:///x", layout="lmdb", **{**values, **changed})


def test_summaries() -> None:
    assert summary_of(result()) == "10 objects, 2.0 KiB packed into 2 data files in 1.5 s"
    assert summary_of(result(packed=4, kept=6)) == (
        "4 objects packed in 1.5 s, 6 were already packed: 10 objects, 2.0 KiB in 2 data files"
    )
    assert summary_of(result(packed=0, kept=10)) == (
        "already packed: 10 objects, 2.0 KiB in 2 data files; nothing has changed"
    )
