"""The benchmark of libraries that read object stores: its figures, its charts, and the program that reads."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from prefeed_bench.cases import peers
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.scripts import peers as program

FOUND = ["plain", "litdata_raw", "webdataset", "prefeed"]


def outcome(cold: float, warm: float, *, checksum: int = 1) -> dict[str, Any]:
    return {
        "epochs": [{"checksum": checksum}, {"checksum": checksum}],
        "cold_img_s": cold,
        "warm_img_s": warm,
        "requests": 1.0,
        "disk": 0.0,
        "memory": 1.0,
    }


def runs_of(**outcomes: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {f"{name}_{latency}ms": [found] for name, found in outcomes.items() for latency in (3, 20)}


RUNS = runs_of(
    plain=outcome(100.0, 110.0),
    litdata_raw=outcome(200.0, 400.0),
    webdataset=outcome(300.0, 300.0),
    prefeed=outcome(600.0, 2000.0),
)


def test_prefeed_is_compared_with_the_best_of_each_kind() -> None:
    found = peers._result(FOUND, RUNS, {"webdataset": 0.5}).to_json()

    for latency in (3, 20):
        assert found[f"over_unconverted_{latency}ms"] == 3
        assert found[f"over_converted_{latency}ms"] == 2
        assert found[f"warm_over_best_{latency}ms"] == 5
    assert found["webdataset_convert_s"] == 0.5


def test_a_kind_without_an_installed_library_has_no_ratio() -> None:
    found = peers._result(["plain", "prefeed"], RUNS, {}).to_json()

    assert "over_converted_3ms" not in found
    assert found["over_unconverted_3ms"] == 6


def test_a_library_that_is_not_installed_has_a_note_and_no_field(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = dataclasses.replace(peers.PEERS["mds"], package="package_that_is_nowhere")
    monkeypatch.setitem(peers.PEERS, "mds", nowhere)

    found = peers._result(FOUND, RUNS, {}).to_json()

    assert not [name for name in found if name.startswith("mds")]
    assert "mds: not measured, package_that_is_nowhere is not installed" in found["notes"]
    assert "pip install 'prefeed-bench[peers]' brings the libraries" in found["notes"]


def test_a_library_that_fails_once_has_a_note_and_no_field() -> None:
    runs = RUNS | {"webdataset_20ms": [{"failed": "python peers.py ended with status 1:\nIndexError: no sample\n"}]}

    found = peers._result(FOUND, runs, {}).to_json()

    assert not [name for name in found if name.startswith("webdataset")]
    assert "over_converted_3ms" not in found
    assert "webdataset: not measured: it failed: IndexError: no sample" in found["notes"]


def test_prefeed_must_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BenchFailedError("it ended with status 1")

    monkeypatch.setattr(peers, "_measure", fail)

    assert peers._attempt("mds", *[None] * 3) == {"failed": "it ended with status 1"}  # type: ignore[arg-type]
    with pytest.raises(BenchFailedError):
        peers._attempt("prefeed", *[None] * 3)  # type: ignore[arg-type]


def test_a_library_that_gives_other_pictures_has_a_note_and_no_field() -> None:
    runs = RUNS | {"litdata_raw_20ms": [outcome(9000.0, 9000.0, checksum=2)]}

    found = peers._result(FOUND, runs, {}).to_json()

    assert found["over_unconverted_3ms"] == 6
    assert "litdata_raw: not measured: it gave other pictures than the store holds" in found["notes"]


def test_prefeed_must_give_the_same_pictures() -> None:
    runs = RUNS | {"prefeed_20ms": [outcome(1.0, 1.0, checksum=2)]}
    with pytest.raises(BenchFailedError, match="prefeed: it gave other pictures than the store holds"):
        peers._result(FOUND, runs, {})


def test_charts_show_every_library(tmp_path: Path) -> None:
    result = peers._result(FOUND, RUNS, {})

    paths = peers.write_charts(result, tmp_path / "new")

    assert [path.name for path in paths] == [
        "peers-3ms-cold.png",
        "peers-3ms-warm.png",
        "peers-20ms-cold.png",
        "peers-20ms-warm.png",
    ]
    for path in paths:
        with Image.open(path) as chart:
            assert chart.size[1] > 130 * 0.5 * len(FOUND)


def test_every_library_has_a_loader_and_every_format_a_writer() -> None:
    assert list(peers.PEERS) == list(program.LOADERS)
    assert {name for name, peer in peers.PEERS.items() if peer.converts} == set(program.WRITERS)


def test_the_order_of_an_epoch_does_not_change_its_checksum() -> None:
    first, second, third = (bytes([number]) * 100 for number in range(3))

    found = program.read_epoch([[first, second], [third]])
    other = program.read_epoch([{"jpg": [third, second]}, {"jpg": [first]}])

    assert (found["samples"], found["bytes"]) == (3, 300)
    assert found["checksum"] == other["checksum"] != zlib.crc32(b"")
    assert found["checksum"] != program.read_epoch([[first, second]])["checksum"]


def test_tars_hold_every_picture(tmp_path: Path) -> None:
    pictures = [tmp_path / f"{number}.jpg" for number in range(5)]
    for picture in pictures:
        picture.write_bytes(picture.name.encode() * 400)

    program.write_tars(pictures, tmp_path / "tars", 4000)

    assert [path.name for path in sorted((tmp_path / "tars").iterdir())] == ["0000.tar", "0001.tar", "0002.tar"]
