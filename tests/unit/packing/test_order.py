"""The order of packing: samples together, shuffled the same way everywhere."""

from __future__ import annotations

from pathlib import Path

from fake_sources import MemorySource
from prefeed.packing.order import PackingOrder, packing_order, signature
from prefeed.sources.manifest import Manifest
from prefeed.sources.manifest_writer import build_manifest

PATHS = ["a-b.jpg", "a.b/c.cls", "a.b/c.jpg", "a.cls", "a.jpg", "b.cls", "b.jpg"]


def manifest(tmp_path: Path, paths: list[str] = PATHS) -> Manifest:
    return build_manifest(MemorySource(dict.fromkeys(paths, b"x")), tmp_path / "manifest")


def units(manifest: Manifest, order: PackingOrder) -> list[list[str]]:
    paths = [manifest.path(int(i)) for i in order.ids]
    return [paths[start:end] for start, end in zip(order.starts[:-1], order.starts[1:], strict=True)]


def test_files_of_one_sample_follow_each_other(tmp_path: Path) -> None:
    listed = manifest(tmp_path)
    assert units(listed, packing_order(listed, "webdataset", None)) == [
        ["a.cls", "a.jpg"], ["a-b.jpg"], ["a.b/c.cls", "a.b/c.jpg"], ["b.cls", "b.jpg"],
    ]  # fmt: skip


def test_elsewhere_each_file_is_one(tmp_path: Path) -> None:
    listed = manifest(tmp_path)
    assert units(listed, packing_order(listed, "lmdb", None)) == [[path] for path in PATHS]


def test_shuffled_samples_stay_whole(tmp_path: Path) -> None:
    listed = manifest(tmp_path)
    shuffled = units(listed, packing_order(listed, "webdataset", 4))
    assert shuffled != units(listed, packing_order(listed, "webdataset", None))
    assert sorted(shuffled) == sorted(units(listed, packing_order(listed, "webdataset", None)))
    assert shuffled == units(listed, packing_order(listed, "webdataset", 4))
    assert shuffled != units(listed, packing_order(listed, "webdataset", 5))


def test_signatures_know_what_is_listed(tmp_path: Path) -> None:
    listed = manifest(tmp_path)
    ids = packing_order(listed, "lmdb", None).ids
    seen = {signature(listed, ids[:3]), signature(listed, ids[1:4]), signature(listed, ids[:3][::-1])}
    seen.add(signature(manifest(tmp_path / "other", ["a-b.jpg", "a.b/c.cls", "a.b/d.jpg"]), ids[:3]))
    assert len(seen) == 4
