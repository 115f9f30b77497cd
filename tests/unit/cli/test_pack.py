"""``prefeed pack``, run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import prefeed
from prefeed.cli.pack import result_lines
from prefeed.packing import driver
from prefeed.packing.driver import PackResult
from unit.packing.packs import make_files, read_back

pytestmark = pytest.mark.usefixtures("sandbox")

Run = Callable[..., Result]


def test_packs_and_prints_the_url(run: Run, tmp_path: Path) -> None:
    files = make_files(tmp_path / "src")
    arguments = ("pack", str(tmp_path / "src"), str(tmp_path / "out"), "--format", "tfrecord", "--shard-size", "60k")
    first = run(None, *arguments, "--shuffle", "3", "--verify")

    assert first.exit_code == 0
    assert first.stdout == f"pack+file://{tmp_path}/out\n"
    assert "60 objects, 256.2 KiB packed into" in first.stderr
    assert "verified: all 60 objects" in first.stderr
    assert read_back(tmp_path / "out") == files
    again = run(None, *arguments, "--shuffle", "3", "--json")
    assert json.loads(again.stdout)["packed"] == 0
    assert json.loads(again.stdout)["verified"] is False
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


def test_index_of_others(run: Run, tmp_path: Path) -> None:
    make_files(tmp_path / "src")
    run(None, "pack", str(tmp_path / "src"), str(tmp_path / "out"), "--format", "webdataset")
    (tmp_path / "out" / "prefeed-pack.index").unlink()
    indexed = run(None, "pack", "--index", str(tmp_path / "out"), "--json")
    assert json.loads(indexed.stdout)["objects"] == 60
    elsewhere = run(None, "pack", "--index", str(tmp_path / "out"), str(tmp_path / "index"))
    assert elsewhere.stdout == f"pack+file://{tmp_path}/index\n"
    assert len(read_back(tmp_path / "index")) == 60


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("src",), "give OUT and --format, or --index"),
        (("src", "out"), "give --format, or --index"),
        (("src", "--index", "--shuffle", "1"), "--index does not pack"),
    ],
)
def test_options_that_do_not_fit(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run(None, "pack", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_damage_ends_with_1(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_DEADLINE_SECONDS", 0.0)
    make_files(tmp_path / "src")
    arguments = ("pack", str(tmp_path / "src"), str(tmp_path / "out"), "--format", "webdataset", "--verify")
    assert run(None, *arguments).exit_code == 0
    (tar,) = (tmp_path / "out").glob("*.tar")
    tar.write_bytes(bytes(tar.stat().st_size))
    result = run(None, *arguments, "--json")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["damaged"]) > 50


def result(**changed: int) -> PackResult:
    values = {"objects": 10, "bytes": 2048, "data_files": 2, "packed": 10, "kept": 0, "seconds": 1.5}
    return PackResult(url="pack+file:///x", layout="lmdb", **{**values, **changed})


def test_summaries() -> None:
    assert result_lines(result(), None) == ["10 objects, 2.0 KiB packed into 2 data files in 1.5 s"]
    assert result_lines(result(packed=4, kept=6), None) == [
        "4 objects packed in 1.5 s, 6 were already packed: 10 objects, 2.0 KiB in 2 data files"
    ]
    assert result_lines(result(packed=0, kept=10), None) == [
        "already packed: 10 objects, 2.0 KiB in 2 data files; nothing has changed"
    ]
    assert result_lines(result(), tuple("abcdefgh"))[1:] == ["8 objects damaged:", *"abcde", "and 3 more"]
