from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from prefeed.config import Config
from prefeed.errors import ObjectChangedError, ObjectNotFoundError, TruncatedBodyError, UnknownSchemeError
from prefeed.limits import Limits
from prefeed.sources import library
from prefeed.sources.blocks import (
    Block,
    BlockSource,
    entries_of,
    entry_of,
    is_split,
    key_of,
    num_entries,
    parse_block,
)
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest, version_hash
from prefeed.sources.manifest_writer import build_manifest
from prefeed.sources.posix import PosixSource
from prefeed.sources.urls import blocks_url, canonical_url, listing_mark, open_source, unwrapped
from prefeed.types import ObjectInfo

BLOCK = 64 * 1024


def info(path: str, size: int, version: str = "v1") -> ObjectInfo:
    return ObjectInfo(path=path, size_bytes=size, version=version)


def content(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    for name, size in {"a": 10, "big": 2 * BLOCK + 7, "big-": 3, "big0": 5, "z/even": 2 * BLOCK}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content(size))
        os.utime(directory / name, (1_700_000_000, 1_700_000_000))
    return directory


@pytest.fixture
def source(root: Path) -> BlockSource:
    opened = open_source(blocks_url(root), Config(limits=Limits(block_bytes=BLOCK)))
    assert isinstance(opened, BlockSource)
    return opened


@pytest.mark.parametrize(
    ("size", "version", "count"),
    [
        (0, "v", 1),
        (1, "v", 1),
        (BLOCK, "v", 1),
        (BLOCK + 1, "v", 2),
        (3 * BLOCK, "v", 3),
        (3 * BLOCK, "", 1),
        (-1, "v", 1),
    ],
)
def test_an_object_has_this_number_of_entries(size: int, version: str, count: int) -> None:
    one = info("x", size, version)
    entries = list(entries_of(one, BLOCK))
    assert len(entries) == num_entries(one, BLOCK) == count
    assert sum(entry.size_bytes for entry in entries) == size
    assert is_split(one) == (size > 0 and bool(version))


def test_the_name_of_a_block_says_which_bytes_and_which_version() -> None:
    entry = entry_of(info("d/x", 2 * BLOCK + 7), 2, BLOCK)
    assert parse_block(entry.path) == Block("d/x", 2 * BLOCK, 7, version_hash("v1"), 2 * BLOCK + 7)
    assert parse_block("d/x") is None
    assert parse_block("d/x\0other") is None


def test_keys_tell_objects_versions_and_sizes_of_blocks_apart() -> None:
    keys = {
        key_of("blocks+s3://b", "", entry)
        for one in (info("x", 3 * BLOCK), info("x", 3 * BLOCK, "v2"), info("y", 3 * BLOCK))
        for size in (BLOCK, 2 * BLOCK)
        for entry in entries_of(one, size)
    }
    assert len(keys) == 3 * (3 + 1)  # the last block of both sizes has the same bytes


def test_a_key_is_the_same_whichever_root_the_object_is_listed_below() -> None:
    one, same = entry_of(info("d/x", 3 * BLOCK), 1, BLOCK), entry_of(info("x", 3 * BLOCK), 1, BLOCK)
    assert key_of("blocks+s3://b", "m", one) == key_of("blocks+s3://b/d", "m", same)


@pytest.mark.usefixtures("sandbox")
def test_blocks_of_an_object_have_consecutive_ids(root: Path, source: BlockSource, tmp_path: Path) -> None:
    manifest = build_manifest(source, tmp_path / "manifest")
    manifest.validate()
    assert [len(manifest.entries_at(name)) for name in ("a", "big", "big-", "big0", "z/even", "b", "zz")] == [
        1,
        3,
        1,
        1,
        2,
        0,
        0,
    ]
    assert manifest.path(manifest.index_of("a") or 0).startswith("a\0")
    assert (manifest.index_of("big"), manifest.index_of("bi")) == (None, None)
    ids = manifest.entries_at("big")
    assert [manifest.size(index) for index in ids] == [BLOCK, BLOCK, 7]
    assert b"".join(bytes(source.fetch(manifest.path(index)).data) for index in ids) == (root / "big").read_bytes()
    below = manifest.is_below(np.arange(len(manifest)), f"{blocks_url(root)}/big")
    assert np.flatnonzero(below).tolist() == list(ids)


@pytest.mark.usefixtures("sandbox")
def test_a_listing_of_some_objects_takes_the_place_of_no_other(source: BlockSource, tmp_path: Path) -> None:
    library = ManifestLibrary(tmp_path / "home")
    whole = library.open(source.url, source_factory=lambda _: source)
    part = library.write_part(
        source.url, list(entries_of(source.info("big"), BLOCK)), origin_mark=source.mark, mark=listing_mark(source)
    )
    assert part.header.is_part
    assert not whole.header.is_part
    first = whole.entries_at("big").start
    assert [part.key(i) for i in range(3)] == [whole.key(first + i) for i in range(3)]
    again = Manifest.open(part.directory)
    assert again.path(1) == part.path(1)


@pytest.mark.usefixtures("sandbox")
def test_each_listing_of_an_object_does_not_look_through_all_others(
    source: BlockSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_through: list[Path] = []
    monkeypatch.setattr(library, "remove_replaced", lambda directory, **_: looked_through.append(directory))
    monkeypatch.setattr(library, "_looked_through", {})
    for home in ("one", "two"):
        for name in ("a", "big", "big-", "big0"):
            ManifestLibrary(tmp_path / home).write_part(
                source.url, list(entries_of(source.info(name), BLOCK)), origin_mark=source.mark, mark=""
            )
    assert [directory.parent.parent.name for directory in looked_through] == ["one", "two"]


def test_a_changed_object_is_an_error(root: Path, source: BlockSource) -> None:
    entry = entry_of(source.info("big"), 1, BLOCK)
    source.fetch(entry.path)
    (root / "big").write_bytes(content(2 * BLOCK + 7, seed=2))
    os.utime(root / "big", (1_700_000_100, 1_700_000_100))
    with pytest.raises(ObjectChangedError, match="big changed while it was read") as caught:
        source.fetch(entry.path)
    assert caught.value.errno == errno.ESTALE
    (root / "big").write_bytes(b"short")
    os.utime(root / "big", (1_700_000_200, 1_700_000_200))
    with pytest.raises(ObjectChangedError, match="changed"):
        source.fetch(entry.path)
    (root / "big").unlink()
    with pytest.raises(ObjectNotFoundError):
        source.fetch(entry.path)


def test_a_block_behind_the_end_is_an_error(source: BlockSource) -> None:
    now = source.info("big")
    beyond = Block("big", 2 * BLOCK, 8, version_hash(now.version), now.size_bytes)
    with pytest.raises(TruncatedBodyError, match="ends early"):
        source.fetch_part(beyond)


def test_a_small_object_is_of_one_version_too(root: Path, source: BlockSource) -> None:
    entry = entry_of(source.info("a"), 0, BLOCK)
    assert source.fetch(entry.path).data == content(10)
    for size in (4, 10, 16):
        (root / "a").write_bytes(content(size, seed=2))
        os.utime(root / "a", (1_700_000_100, 1_700_000_100))
        with pytest.raises(ObjectChangedError, match="a changed while it was read"):
            source.fetch(entry.path)


@pytest.mark.usefixtures("sandbox")
def test_what_lies_right_below_a_directory(root: Path, source: BlockSource) -> None:
    files, directories = source.list_level("")
    assert {one.path: one.size_bytes for one in files} == {"a": 10, "big": 2 * BLOCK + 7, "big-": 3, "big0": 5}
    assert directories == ["z"]
    assert [one.path for one in source.list_level("z")[0]] == ["z/even"]
    assert source.list_level("none") == ([], [])
    assert source.infos(["a", "z/even"]) == [source.info("a"), source.info("z/even")]


def test_urls_of_blocks(root: Path) -> None:
    assert blocks_url(root) == f"blocks+file://{root}"
    assert canonical_url(blocks_url(root)) == blocks_url(root) == blocks_url(blocks_url(root))
    assert canonical_url("BLOCKS+S3://b/d/") == "blocks+s3://b/d"
    assert unwrapped("blocks+s3://b/d") == "s3://b/d"
    assert listing_mark(open_source(blocks_url(root), Config())) == listing_mark(PosixSource(str(root)))
    with pytest.raises(UnknownSchemeError, match="in blocks"):
        open_source("blocks+pack+s3://b/d", Config())
