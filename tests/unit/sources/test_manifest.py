import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from fake_sources import FaultySource, MemorySource
from prefeed.errors import EmptyListingError, ManifestDamagedError, StoreFormatError
from prefeed.sources.listing import UNKNOWN_SIZE
from prefeed.sources.manifest import COLUMNS, Manifest, entry_key, entry_keys, version_hash, version_hashes
from prefeed.sources.manifest_writer import build_manifest, write_generation, write_manifest
from prefeed.types import ObjectInfo
from profiles import examples


class ListedSource(MemorySource):
    """Lists what it is told, in one or more batches."""

    def __init__(self, *batches: list[ObjectInfo]) -> None:
        super().__init__(url="s3://bucket/set")
        self.batches = batches

    def list_objects(self):  # type: ignore[no-untyped-def]
        return iter(self.batches)


def info(path: str, size: int = 1, version: str = "v") -> ObjectInfo:
    return ObjectInfo(path=path, size_bytes=size, version=version)


def small(directory: Path) -> Manifest:
    return build_manifest(
        MemorySource({"b/c.bin": b"333", "a.bin": b"1", "b.bin": b"", "b/a/d.bin": b"55555"}), directory
    )


def test_what_was_listed_can_be_asked_for(tmp_path: Path) -> None:
    manifest = small(tmp_path / "m")
    assert [manifest.path(i) for i in range(len(manifest))] == ["a.bin", "b.bin", "b/a/d.bin", "b/c.bin"]
    assert manifest.sizes.tolist() == [1, 0, 5, 3]
    assert (manifest.num_objects, manifest.total_bytes) == (4, 9)
    assert manifest.url == "memory://test"
    assert manifest.key(0) == entry_key("memory://test", "a.bin", "v2") == bytes(manifest.keys[0:16])
    assert manifest.version_hash(0) == version_hash("v2")
    assert manifest.index_of("b/a/d.bin") == 2
    assert manifest.index_of("b") is None
    assert manifest.index_of("zzz") is None
    manifest.validate()


def test_ranges_below_a_directory(tmp_path: Path) -> None:
    paths = ["train", "train-not/x", "train/a", "train/b/c", "train0", "val/a"]
    manifest = build_manifest(ListedSource([info(path) for path in paths]), tmp_path / "m")

    def below(prefix: str) -> list[str]:
        return [manifest.path(i) for i in manifest.paths_below(prefix)]

    assert below("train") == below("train/") == ["train/a", "train/b/c"]
    assert below("train/b") == ["train/b/c"]
    assert below("nothing") == []
    assert below("") == sorted(paths)


def test_unknown_sizes_and_versions(tmp_path: Path) -> None:
    manifest = build_manifest(ListedSource([info("a", -1, ""), info("b", 5, ""), info("c", 7, "x")]), tmp_path / "m")
    assert manifest.sizes.tolist() == [UNKNOWN_SIZE, 5, 7]
    assert [manifest.size(i) for i in range(3)] == [None, 5, 7]
    assert manifest.total_bytes == 12
    assert manifest.version_hashes.tolist() == [0, 0, version_hash("x")]
    assert manifest.key(1) != entry_key(manifest.url, "b", "", 6)
    manifest.validate()


def test_a_path_listed_twice_counts_once_and_the_last_one_wins(tmp_path: Path) -> None:
    manifest = build_manifest(ListedSource([info("b", 1), info("a", 2)], [info("b", 3, "new")]), tmp_path / "m")
    assert [manifest.path(i) for i in range(2)] == ["a", "b"]
    assert manifest.sizes.tolist() == [2, 3]
    assert manifest.key(1) == entry_key(manifest.url, "b", "new")
    manifest.validate()


def test_progress_counts_objects_and_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = ListedSource([info("a", 5), info("b", -1)], [info("c", 7)])
    build_manifest(source, tmp_path / "m", progress=lambda objects, size: seen.append((objects, size)))
    assert seen == [(2, 5), (3, 12)]


def test_empty_listing_says_what_was_listed(tmp_path: Path) -> None:
    with pytest.raises(EmptyListingError, match="memory://test"):
        build_manifest(MemorySource(), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_one_file_has_one_key_whichever_root_it_is_listed_below() -> None:
    assert entry_key("/data", "train/a.bin", "v") == entry_key("/data/train", "a.bin", "v")
    assert entry_key("/", "data/train/a.bin", "v") == entry_key("/other", "/data/train/a.bin", "v")
    assert entry_key("/data", "a.bin", "v") != entry_key("/data", "a.bin", "w")
    assert len(entry_key("/data", "a.bin", "")) == 16


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(min_size=1, max_size=9)), max_size=5))
def test_keys_and_hashes_of_many_are_those_of_each(pairs: list[tuple[bytes, bytes]]) -> None:
    paths = [path.replace(b"/", b"_") for path, _ in pairs]
    versions = [version for _, version in pairs]
    each = [
        entry_key("/d", os.fsdecode(path), os.fsdecode(version)) for path, version in zip(paths, versions, strict=True)
    ]
    assert [row.tobytes() for row in entry_keys("/d", paths, versions)] == each
    assert version_hashes(versions).tolist() == [version_hash(os.fsdecode(version)) for version in versions]


def test_pickle_and_reopen(tmp_path: Path) -> None:
    manifest = small(tmp_path / "m")
    for other in (
        pickle.loads(pickle.dumps(manifest)),
        Manifest.open(tmp_path / "m"),
        Manifest.open(manifest.directory),
    ):
        assert other.uid == manifest.uid
        assert bytes(other.keys) == bytes(manifest.keys)


def test_ids_out_of_range(tmp_path: Path) -> None:
    manifest = small(tmp_path / "m")
    for index in (-1, 4):
        with pytest.raises(IndexError):
            manifest.path(index)


# ---------------------------------------------------------------- any listing at all


@composite
def listings(draw: DrawFn) -> dict[str, tuple[int, str]]:
    part = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=6)
    path = st.lists(part, min_size=1, max_size=4).map("/".join)
    odd = st.binary(min_size=1, max_size=8).map(lambda b: b.replace(b"/", b"_").decode("utf-8", "surrogateescape"))
    size = st.integers(-1, 2**40)
    return draw(
        st.dictionaries(path | odd, st.tuples(size, st.text(max_size=5)), min_size=1, max_size=40).filter(
            lambda listing: all(is_storable(path) for path in listing)
        )
    )


def is_storable(path: str) -> bool:
    """A lone surrogate that no file name gives cannot be written."""
    try:
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == path
    except UnicodeEncodeError:
        return False


@settings(max_examples=examples(60))
@given(listing=listings(), num_batches=st.integers(1, 4))
def test_any_listing_survives_the_disk(
    tmp_path_factory: pytest.TempPathFactory, listing: dict[str, tuple[int, str]], num_batches: int
) -> None:
    infos = [info(path, size, version) for path, (size, version) in listing.items()]
    batches = [infos[i::num_batches] for i in range(num_batches)]
    directory = tmp_path_factory.mktemp("m")
    manifest = build_manifest(ListedSource(*[batch for batch in batches if batch]), directory)
    manifest.validate()
    encoded = [path.encode("utf-8", "surrogateescape") for path in listing]
    assert [manifest.path_bytes(i) for i in range(len(manifest))] == sorted(encoded)
    for path, (size, version) in listing.items():
        index = manifest.index_of(path)
        assert index is not None
        assert manifest.path(index) == path
        assert manifest.size(index) == (None if size < 0 else size)
        assert manifest.key(index) == entry_key("s3://bucket/set", path, version, size)
        assert manifest.version_hash(index) == version_hash(version)
    shutil.rmtree(directory)


# ---------------------------------------------------------------- replacing and damage


def test_the_old_manifest_stays_in_force_until_the_new_one_is_whole(tmp_path: Path) -> None:
    source = MemorySource({"a": b"1"})
    old = build_manifest(source, tmp_path / "m")

    class Dying(FaultySource):
        def list_objects(self):  # type: ignore[no-untyped-def]
            yield from self.source.list_objects()
            raise KeyboardInterrupt

    source.put("b", b"2")
    with pytest.raises(KeyboardInterrupt):
        build_manifest(Dying(source), tmp_path / "m")
    assert Manifest.open(tmp_path / "m").uid == old.uid
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == sorted(["current", old.uid])


def test_a_replaced_manifest_can_still_be_read_and_opened(tmp_path: Path) -> None:
    source = MemorySource({"a": b"1"})
    old = build_manifest(source, tmp_path / "m")
    source.put("b", b"2")
    new = build_manifest(source, tmp_path / "m")
    assert new.uid != old.uid
    assert old.path(0) == "a"
    assert Manifest.open(old.directory).num_objects == 1
    assert Manifest.open(tmp_path / "m").uid == new.uid
    assert new.key(0) == old.key(0)


def test_a_replaced_manifest_stays_as_long_as_somebody_has_it_open(tmp_path: Path) -> None:
    """However long ago it was replaced: a pickled copy opens it by its directory."""
    source = MemorySource({"a": b"1"})

    def renew() -> Manifest:
        source.put("a", b"2")
        for generation in (tmp_path / "m").glob("*/"):
            os.utime(generation, (0, 0))
        return build_manifest(source, tmp_path / "m")

    old = build_manifest(source, tmp_path / "m")
    others = [renew().directory for _ in range(3)]
    assert [directory.exists() for directory in others] == [False, True, True]  # the one in force and that before it
    assert pickle.loads(pickle.dumps(old)).key(0) == old.key(0)
    directory = old.directory
    mapped = old.keys
    del old
    renew()
    assert directory.exists()
    mapped.release()
    del mapped
    renew()
    assert not directory.exists()


def test_equal_listings_share_one_generation(tmp_path: Path) -> None:
    assert small(tmp_path / "m").directory == small(tmp_path / "m").directory
    assert len(list((tmp_path / "m").iterdir())) == 2


@pytest.mark.parametrize("name", [COLUMNS, "current"])
@pytest.mark.parametrize("damage", ["missing", "short", "long", "zeros", "empty"])
def test_damage_is_noticed_when_it_is_opened(tmp_path: Path, name: str, damage: str) -> None:
    manifest = small(tmp_path / "m")
    file = tmp_path / "m" / name if name == "current" else manifest.directory / name
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        damaged = {"short": data[:-1], "long": data + b"!", "zeros": bytes(len(data)), "empty": b""}
        file.write_bytes(damaged[damage])
    with pytest.raises(StoreFormatError):
        Manifest.open(tmp_path / "m")


@pytest.mark.parametrize("is_settled", [True, False])
def test_no_byte_of_a_manifest_can_change_unnoticed(tmp_path: Path, is_settled: bool) -> None:
    """Names, offsets, sizes, versions, keys, stamps, the header: one flipped bit anywhere but in what is never read."""
    manifest = write_generation(
        tmp_path,
        "/d",
        path_blob=b"a/bb/cc",
        offsets=np.array([0, 1, 4, 7], np.uint64),
        sizes=np.array([1, 2, 3], np.uint64),
        version_hashes=np.array([4, 5, 6], np.uint64),
        keys=np.arange(48, dtype=np.uint8),
        stamps=np.arange(6).reshape(2, 3),
        is_settled=is_settled,
    )
    file = manifest.directory / COLUMNS
    whole = file.read_bytes()
    told = told_by(manifest)
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        with suppress(StoreFormatError):
            assert told_by(Manifest.open(manifest.directory)) == told, f"byte {at} of {len(whole)}"
            assert whole[at] == 0, "only bytes between columns may change"
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(ManifestDamagedError):
            Manifest.open(manifest.directory)


def told_by(manifest: Manifest) -> list[object]:
    assert manifest.stamps is not None
    columns = manifest.sizes, manifest.version_hashes, manifest.stamps, manifest.offsets
    return [*(column.tolist() for column in columns), manifest.all_paths(), bytes(manifest.keys), manifest.header]


def test_a_damaged_generation_is_written_again(tmp_path: Path) -> None:
    manifest = small(tmp_path / "m")
    (manifest.directory / COLUMNS).write_bytes(b"")
    small(tmp_path / "m").validate()


def test_another_layout_is_refused(tmp_path: Path) -> None:
    manifest = small(tmp_path / "m")
    file = manifest.directory / COLUMNS
    file.write_bytes(file.read_bytes().replace(b"PFLIST\x03", b"PFLIST\x04", 1))
    with pytest.raises(StoreFormatError, match="layout 4; this version reads 3"):
        Manifest.open(tmp_path / "m")
    file.rename(manifest.directory / "keys")
    (manifest.directory / "header.json").write_text('{"format":2}')
    with pytest.raises(StoreFormatError, match="older layout; this version reads 3"):
        Manifest.open(tmp_path / "m")
    small(tmp_path / "m").validate()


def test_what_comes_into_force_is_on_the_disk_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure ``current`` names a generation that is whole: each step is durable before the next."""
    done: list[str] = []

    def named(descriptor: int) -> str:
        return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))

    def note_rename(old: object, new: object) -> None:
        done.append(f"{Path(str(new)).name} named")
        replace(str(old), str(new))

    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(named(descriptor)))
    monkeypatch.setattr(os, "replace", note_rename)
    manifest = small(tmp_path / "m")
    current, done[3] = done[3], "the file that becomes current"
    assert current.startswith(".current.")
    assert done == [COLUMNS, manifest.uid, "m", "the file that becomes current", "current named", "m"]


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_manifests_are_for_this_user_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        manifest = small(tmp_path / "home" / "m")
    finally:
        os.umask(before)
    found = [tmp_path / "home", *(tmp_path / "home").rglob("*")]
    assert manifest.directory / COLUMNS in found
    assert {path: path.stat().st_mode & 0o077 for path in found if path.stat().st_mode & 0o077} == {}


def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    def write(*, num_sizes: int = 1, key_bytes: int = 16, blob: bytes = b"ab") -> None:
        write_manifest(
            tmp_path / "m",
            "/d",
            path_blob=blob,
            offsets=np.array([0, 2], np.uint64),
            sizes=np.zeros(num_sizes, np.uint64),
            version_hashes=np.zeros(1, np.uint64),
            keys=np.ones(key_bytes, np.uint8),
        )

    write()
    for wrong in ({"num_sizes": 2}, {"num_sizes": 0}, {"key_bytes": 15}, {"blob": b"abc"}):
        with pytest.raises(ValueError, match=r"manifest|keys"):
            write(**wrong)  # type: ignore[arg-type]
