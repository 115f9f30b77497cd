"""Packs that the real webdataset reads."""

from __future__ import annotations

import io
import multiprocessing
import tarfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import webdataset

from unit.packing.packs import make_files, packed, read_back

pytestmark = pytest.mark.usefixtures("sandbox")


def by_webdataset(files: list[Path]) -> list[dict[str, Any]]:
    """Return the samples as webdataset reads them, in a process of its own: it never closes what it opens."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_send_samples, args=(files, sender))
    process.start()
    sender.close()
    with receiver:
        samples: list[dict[str, Any]] = receiver.recv()
    process.join()
    process.close()
    return samples


def _send_samples(files: list[Path], sender: Connection) -> None:
    dataset = webdataset.WebDataset(list(map(str, files)), shardshuffle=False, empty_check=False)
    left_out = ("__url__", "__local_path__")
    sender.send([{name: value for name, value in sample.items() if name not in left_out} for sample in dataset])


def expected_samples(files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    samples: dict[str, dict[str, Any]] = {}
    for path, data in files.items():
        directory, _, name = path.rpartition("/")
        stem, _, extension = name.partition(".")
        key = f"{directory}/{stem}"
        samples.setdefault(key, {"__key__": key})[extension.lower()] = data
    return samples


@pytest.mark.parametrize("seed", [None, 3])
def test_webdataset_reads_ours(tmp_path: Path, seed: int | None) -> None:
    files = make_files(tmp_path / "src")
    packed(tmp_path / "src", tmp_path / "out", "webdataset", shard_bytes=60_000, seed=seed)
    tars = sorted((tmp_path / "out").glob("*.tar"))
    assert len(tars) > 2
    found = by_webdataset(tars)

    assert {sample["__key__"]: sample for sample in found} == expected_samples(files)
    assert len(found) == 30  # no sample is split over two data files
    in_order = [sample["__key__"] for sample in found] == sorted(expected_samples(files), key=str.encode)
    assert in_order == (seed is None)


def test_long_names_and_odd_ones(tmp_path: Path) -> None:
    names_ = ["d" * 90 + "/" + "f" * 200 + ".jpg", "größe/日本.jpg", "x" * 99 + ".j", "a b/#%?.txt"]
    for name in names_:
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(name.encode())
    packed(tmp_path / "src", tmp_path / "out", "webdataset")

    assert read_back(tmp_path / "out") == {name: name.encode() for name in names_}
    assert {sample["__key__"] for sample in by_webdataset(list((tmp_path / "out").glob("*.tar")))} == {
        name.rpartition(".")[0] for name in names_
    }


def test_tar_files_are_tarfiles_own(tmp_path: Path) -> None:
    """To the byte, with the end of the archive."""
    files = {"a.x": b"", "b" * 200 + ".x": bytes(513), "c/d.x": bytes(512), "e.x": b"1"}
    for path, data in files.items():
        (tmp_path / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / path).write_bytes(data)
    packed(tmp_path / "src", tmp_path / "out", "webdataset")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(files):
            member = tarfile.TarInfo(path)
            member.size = len(files[path])
            tar.addfile(member, io.BytesIO(files[path]))
    assert (tmp_path / "out" / "shard-000000.tar").read_bytes() == buffer.getvalue()
