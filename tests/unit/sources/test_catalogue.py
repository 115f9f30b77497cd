import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefeed.errors import StoreFormatError, TierFullError
from prefeed.sources import listing
from prefeed.sources.catalogue import Catalogue, paths_digest
from prefeed.sources.catalogue_writer import CatalogueWriter
from prefeed.sources.listing import UNKNOWN_SIZE
from prefeed.sources.manifest import entry_key, version_hash
from profiles import examples

pytestmark = pytest.mark.usefixtures("sandbox")

FILES = ("count", "hashes", "header.json", "inodes", "keys", "known", "offsets", "paths", "sizes", "versions")
NO_KEY = bytes(16)
ODD = ["/a", "/a b/ü.jpg", "/" + os.fsdecode(b"\xff\xfe"), "/a", "/" + "x" * 5000]

WRITER = """
import sys
from prefeed.sources.catalogue_writer import CatalogueWriter
catalogue = CatalogueWriter.open_or_create(sys.argv[1], [])
print(flush=True)
while True:
    n = catalogue.num_objects
    ids = catalogue.append(f"/data/{i:020}.bin" for i in range(n, n + 1 + n % 700))
    for i in ids[:5]:
        catalogue.observe(i, f"v{i}", i)
        catalogue.publish(i)
"""


@contextmanager
def opened(directory: Path, declared: list[str] | None = None) -> Iterator[CatalogueWriter]:
    catalogue = CatalogueWriter.open_or_create(directory, declared)
    try:
        yield catalogue
    finally:
        catalogue.close()


def paths_of(catalogue: Catalogue) -> list[str]:
    return [catalogue.path(i) for i in range(catalogue.num_objects)]


def test_declared_paths_have_the_ids_in_their_order(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ODD) as writer:
        reader = Catalogue.open(tmp_path / "c")
        assert paths_of(writer) == paths_of(reader) == ODD
        assert [writer.index_of(path) for path in ODD] == [0, 1, 2, 0, 4]
        assert writer.index_of("/b") is None
        assert (reader.url, len(reader), reader.num_declared) == ("/", 5, 5)
        assert reader.size(0) is None
        assert reader.key(0) == NO_KEY
        assert (reader.uid, reader.directory) == (writer.uid, tmp_path / "c")
        assert sorted(os.listdir(tmp_path)) == ["c"]


def test_a_reader_sees_what_is_appended(tmp_path: Path) -> None:
    with opened(tmp_path / "c", []) as writer:
        reader = Catalogue.open(tmp_path / "c")
        before = reader.keys
        assert reader.num_objects == 0
        assert not reader.refresh()
        assert writer.append(["/a", "/b"]) == range(2)
        assert paths_of(reader) == ["/a", "/b"]
        paths = [f"/d/{i}" for i in range(5000)]
        assert writer.append(paths) == range(2, 5002)
        assert reader.num_objects == 5002
        assert reader.path(5001) == "/d/4999"
        assert reader.size(5001) is None
        assert len(reader.keys) >= 5002 * 16 > len(before)
        writer.observe(0, "v", 1)
        writer.publish(0)
        assert before[:16] == reader.keys[:16] == writer.known_key(0)
        for wrong in (-1, 5002):
            with pytest.raises(IndexError, match="of 5002"):
                reader.path(wrong)


def test_sizes_grow_with_the_catalogue(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a"]) as writer:
        reader = Catalogue.open(tmp_path / "c")
        sizes = writer.sizes
        writer.observe(0, "v", 7)
        writer.append(f"/{i}" for i in range(3000))
        writer.observe(3000, "v", 9)
        writer.observe(2999, "v", -1)
        assert sizes.tolist() == [7]
        assert not writer.sizes.flags.writeable
        assert len(writer.sizes) == len(reader.sizes) == 3001
        assert [reader.size(i) for i in (0, 1, 2999, 3000)] == [7, None, None, 9]
        assert int(reader.sizes[1]) == UNKNOWN_SIZE
        assert writer.total_bytes == reader.total_bytes == 16


def test_what_is_known_is_kept_and_what_was_published_is_not(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a", "/b", "/c"]) as writer:
        key = writer.observe(1, "v1", 10)
        assert key == entry_key("/", "/b", "v1", 10) == writer.known_key(1)
        assert writer.version_hash(1) == version_hash("v1")
        assert not writer.is_published(1)
        writer.publish(1)
        assert writer.is_published(1)
        reader = Catalogue.open(tmp_path / "c")
        assert reader.key(1) == key
    with opened(tmp_path / "c") as writer:
        assert writer.uid == reader.uid
        assert reader.key(1) == NO_KEY, "nothing is published by a server that has not looked"
        assert (writer.known_key(1), writer.size(1), writer.version_hash(1)) == (key, 10, version_hash("v1"))
        assert bytes(writer.known_keys()) == NO_KEY + key + NO_KEY
        other = writer.observe(1, "v2", 10)
        assert other != key
        assert (writer.known_key(1), writer.version_hash(1)) == (other, version_hash("v2"))


def test_keys_are_withdrawn(tmp_path: Path) -> None:
    with opened(tmp_path / "c", [f"/{i}" for i in range(6)]) as writer:
        for i in range(6):
            if i != 2:
                writer.observe(i, f"v{i}", i)
            writer.publish(i)
        assert not writer.is_published(2), "nothing is known that could be published"
        writer.withdraw(np.array([1, 3, 3]))
        assert [writer.is_published(i) for i in range(6)] == [True, False, False, False, True, True]
        writer.withdraw(None)
        assert not any(writer.keys)
        assert writer.known_key(1) == entry_key("/", "/1", "v1", 1)


def test_ids_are_found_among_old_and_new_paths(tmp_path: Path) -> None:
    with opened(tmp_path / "c", [f"/{i}" for i in range(2000)]) as writer:
        assert writer.index_of("/1999") == 1999
        for start in range(2000, 6000, 37):  # merged several times on the way
            writer.append(f"/{i}" for i in range(start, start + 37))
        assert all(writer.index_of(f"/{i}") == i for i in range(0, writer.num_objects, 7))
        assert writer.append(["/5"]) == range(writer.num_objects - 1, writer.num_objects)
        assert writer.index_of("/5") == 5
        assert writer.index_of("/-1") is None


def test_paths_with_equal_hashes_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.sources.catalogue_writer.xxh3_64_intdigest", lambda path: len(path))
    with opened(tmp_path / "c", [f"/{i % 500:03}" for i in range(1000)]) as writer:
        writer.append(f"/{i:03}" for i in range(499, 900))
        assert [writer.index_of(f"/{i:03}") for i in (0, 499, 500, 899, 900)] == [0, 499, 1001, 1400, None]
        writer.append(f"/{i:04}" for i in range(1100))
        assert [writer.index_of(path) for path in ("/499", "/899", "/0000", "/1099")] == [499, 1400, 1401, 2500]


def test_all_ids_of_a_path_are_found(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a", "/b", "/a"]) as writer, opened(tmp_path / "once", ["/a", "/b"]) as once:
        assert (writer.has_repeats, once.has_repeats) == (True, False)
        writer.append(["/c", "/b"])
        assert [writer.ids_at(path) for path in (b"/a", b"/b", b"/c", b"/d")] == [[0, 2], [1, 4], [3], []]


def test_what_another_catalogue_knows_is_taken_over(tmp_path: Path) -> None:
    """As far as a version is known; and it is compared before it is believed: equal hashes may be those of other files."""
    with opened(tmp_path / "old", ["/a", "/b", "/c", "/e"]) as old, opened(tmp_path / "new", ["/d", "/c", "/a"]) as new:
        for index, version in enumerate(("va", "vb", "vc", "")):
            old.observe(index, version, 10 + index, 20 + index)
        new.append(["/e", "/b"])
        theirs, ours = new.find_files(old, np.arange(4))
        assert list(zip(theirs.tolist(), ours.tolist(), strict=True)) == [(0, 2), (1, 4), (2, 1)]
        new.take_over(ours, old, theirs)
        for their, our in ((0, 2), (1, 4), (2, 1)):
            assert new.known_key(our) == old.known_key(their)
            assert (new.size(our), new.inode(our)) == (10 + their, 20 + their)
            assert not new.is_published(our)
            assert new.is_as_seen(our, old.path(their).replace("/", "v"))
            assert not new.is_as_seen(our, "other")
        new.take_over(np.array([0, 2]), old, np.array([1, 2]))
        assert not new.is_as_seen(0, "vb")
        assert not new.is_as_seen(2, "vc")
        assert new.known_key(3) == NO_KEY


def test_another_number_of_declared_paths_starts_again(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a", "/b"]) as first:
        first.append(["/c"])
    reader = Catalogue.open(tmp_path / "c")
    with opened(tmp_path / "c", ["/a", "/b"]) as same:
        assert (same.uid, same.num_objects) == (reader.uid, 3)
    with opened(tmp_path / "c", ["/x"]) as other:
        assert other.uid != reader.uid
        other.append(f"/{i}" for i in range(3000))
        assert not reader.refresh(), "ids of another catalogue mean other files"
        assert paths_of(reader) == ["/a", "/b", "/c"]
        assert sorted(os.listdir(tmp_path)) == ["c"]
        with pytest.raises(StoreFormatError, match="another catalogue"):
            pickle.loads(pickle.dumps(reader))


def test_pickled_as_its_name(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a"]) as writer:
        copy = pickle.loads(pickle.dumps(writer))
        assert type(copy) is Catalogue
        assert copy.path(0) == "/a"
        assert "1 objects" in repr(copy)


@pytest.mark.parametrize("wrong", ["", "a", "/a\0b"])
def test_paths_are_absolute(tmp_path: Path, wrong: str) -> None:
    with opened(tmp_path / "c", ["/a"]) as writer:
        with pytest.raises(ValueError, match="absolute path"):
            writer.append(["/b", wrong])
        assert paths_of(writer) == ["/a"]
    with pytest.raises(ValueError, match="absolute path"):
        CatalogueWriter.open_or_create(tmp_path / "d", [wrong])
    assert sorted(os.listdir(tmp_path)) == ["c"]


def test_nothing_is_made_for_one_who_expects_it_to_be_there(tmp_path: Path) -> None:
    for open_it in (Catalogue.open, CatalogueWriter.open_or_create):
        with pytest.raises(StoreFormatError, match="no catalogue"):
            open_it(tmp_path / "c")
    (tmp_path / "file").touch()
    with pytest.raises(StoreFormatError):
        Catalogue.open(tmp_path / "file")
    with opened(tmp_path / "file", ["/a"]) as writer:
        assert paths_of(writer) == ["/a"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["gone", "empty", "short"])
def test_a_damaged_catalogue_is_made_again(tmp_path: Path, name: str, damage: str) -> None:
    declared = [f"/{i}" for i in range(5000)]
    with opened(tmp_path / "c", declared) as writer:
        uid = writer.uid
    path = tmp_path / "c" / name
    if damage == "gone":
        path.unlink()
    else:
        os.truncate(path, 0 if damage == "empty" else min(4096, path.stat().st_size - 1))
    with pytest.raises(StoreFormatError):
        CatalogueWriter.open_or_create(tmp_path / "c")
    with opened(tmp_path / "c", declared) as writer:
        assert writer.uid != uid
        assert paths_of(writer) == declared
    assert sorted(os.listdir(tmp_path)) == ["c"]


@pytest.mark.parametrize(("name", "at"), [("paths", 8192), ("paths", 0), ("offsets", 4096), ("offsets", 0)])
def test_pages_that_a_power_failure_took_are_noticed(tmp_path: Path, name: str, at: int) -> None:
    with opened(tmp_path / "c", [f"/{i}" for i in range(5000)]):
        pass
    with (tmp_path / "c" / name).open("r+b") as file:
        file.seek(at)
        file.write(bytes(4096))
    with pytest.raises(StoreFormatError, match="damaged"):
        CatalogueWriter.open_or_create(tmp_path / "c")


def test_half_a_key_at_the_end_is_damage(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a"]):
        pass
    keys = tmp_path / "c" / "keys"
    os.truncate(keys, keys.stat().st_size - 8)
    for open_it in (Catalogue.open, CatalogueWriter.open_or_create):
        with pytest.raises(StoreFormatError, match="damaged"):
            open_it(tmp_path / "c")


def test_another_layout_is_refused_and_made_again(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a"]):
        pass
    header = tmp_path / "c" / "header.json"
    header.write_bytes(header.read_bytes().replace(b'"format":2', b'"format":9'))
    with pytest.raises(StoreFormatError, match="layout 9"):
        Catalogue.open(tmp_path / "c")
    with opened(tmp_path / "c", ["/b"]) as writer:
        assert paths_of(writer) == ["/b"]


def test_what_a_kill_left_half_made_is_removed(tmp_path: Path) -> None:
    for word in ("building", "replaced"):
        (tmp_path / f".{word}-c").mkdir()
        (tmp_path / f".{word}-c" / "paths").touch()
    with opened(tmp_path / "c", ["/a"]) as writer:
        assert paths_of(writer) == ["/a"]
    assert os.listdir(tmp_path) == ["c"]


def test_a_full_disk_leaves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path / "c", ["/a"]) as writer:
        writer.append(f"/{i}" for i in range(writer.capacity - 1))
        count = writer.num_objects
        with monkeypatch.context() as patched:
            patched.setattr(listing.os, "posix_fallocate", refuse)
            with pytest.raises(TierFullError, match="no room"):
                writer.append(["/one", "/more"])
            with pytest.raises(TierFullError, match="no room"):
                CatalogueWriter.open_or_create(tmp_path / "d", ["/a"])
        assert os.listdir(tmp_path) == ["c"]
        assert writer.num_objects == count
        assert writer.index_of("/one") is None
        assert writer.append(["/one"]) == range(count, count + 1)


def test_files_never_shrink(tmp_path: Path) -> None:
    def lengths() -> list[int]:
        return [(tmp_path / "c" / name).stat().st_size for name in FILES]

    with opened(tmp_path / "c", [f"/{i}" for i in range(3000)]):
        before = lengths()
    with opened(tmp_path / "c") as writer:
        assert lengths() == before
        writer.append(["/x"])
        assert all(now >= then for now, then in zip(lengths(), before, strict=True))


def test_files_of_different_lengths_are_what_a_kill_while_growing_leaves(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a"]):
        pass
    for name in ("offsets", "known"):
        listing.allocate(tmp_path / "c" / name, 1 << 16)
    with opened(tmp_path / "c") as writer:
        writer.append(f"/{i}" for i in range(2500))
        assert writer.path(2500) == "/2499"
        assert Catalogue.open(tmp_path / "c").path(2500) == "/2499"


def test_a_killed_writer_leaves_a_whole_beginning(tmp_path: Path) -> None:
    count = 0
    for least in (3, 2_000, 40_000, 41_000, 90_000):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "c")], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            reader = Catalogue.open(tmp_path / "c")
            while reader.num_objects < max(least, count + 1):
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        with opened(tmp_path / "c") as writer:
            assert writer.num_objects == reader.num_objects > count
            count = writer.num_objects
            assert paths_of(writer) == paths_of(reader) == [f"/data/{i:020}.bin" for i in range(count)]
            for i in range(count):
                version = f"v{i}"
                assert writer.known_key(i) in (NO_KEY, entry_key("/", writer.path(i), version, i))
            assert not any(writer.keys)


def test_a_catalogue_that_was_closed_is_as_good_as_empty(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a"]) as writer:
        keys = writer.known_keys()
    assert (writer.num_objects, len(writer.sizes), len(keys)) == (0, 0, 16)
    with pytest.raises(IndexError):
        writer.path(0)
    writer.close()


@settings(max_examples=examples(50))
@given(paths=st.lists(st.text(max_size=5)), other=st.lists(st.text(max_size=5)))
def test_equal_digests_are_equal_lists(paths: list[str], other: list[str]) -> None:
    paths, other = ([path.replace("\0", "") for path in each if path.isprintable()] for each in (paths, other))
    assert (paths_digest(paths) == paths_digest(other)) == (paths == other)


def test_a_digest_does_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = paths_digest(ODD)
    monkeypatch.setattr("prefeed.sources.catalogue._CHUNK", 2)
    assert paths_digest(ODD) == paths_digest(tuple(ODD)) == digest
    assert len(digest) == 32


# ---------------------------------------------------------------- another process has it open for writing


def test_who_opens_it_last_has_it(tmp_path: Path) -> None:
    """Else ids of one would be other paths to the other: the one before it appends and publishes nothing more."""
    with opened(tmp_path / "c", ["/a"]) as first:
        first.append(["/b"])
        first.observe(1, "v", 1)
        with opened(tmp_path / "c") as second:
            assert second.append(["/c"]) == range(2, 3)
            with pytest.raises(StoreFormatError, match="changed by another process than its server"):
                first.append(["/d"])
            first.publish(1)
            assert not second.is_published(1)
            assert second.append(["/e"]) == range(3, 4)
            assert paths_of(Catalogue.open(tmp_path / "c")) == ["/a", "/b", "/c", "/e"]


def test_appended_to_behind_its_back(tmp_path: Path) -> None:
    """As a file server shows it that lets two nodes write one file: what was written is there, who wrote it is not."""
    with opened(tmp_path / "c", ["/a"]) as writer:
        before = writer._writer
        with opened(tmp_path / "c") as other:
            other.append(["/b"])
        writer._count[1] = before
        with pytest.raises(StoreFormatError, match="another process"):
            writer.append(["/c"])
        assert (writer.path(0), writer.index_of("/c"), writer.num_objects) == ("/a", None, 1)
        assert len(writer.known_keys()) == 16


def test_another_that_came_to_its_place_is_not_made_longer(tmp_path: Path) -> None:
    with opened(tmp_path / "c", ["/a"]) as writer:
        (tmp_path / "c").rename(tmp_path / "moved")
        with opened(tmp_path / "c", ["/b"]):
            sizes = {file.name: file.stat().st_size for file in (tmp_path / "c").iterdir()}
            with pytest.raises(StoreFormatError, match="another process"):
                writer.append(f"/{number}" for number in range(5000))
            assert {file.name: file.stat().st_size for file in (tmp_path / "c").iterdir()} == sizes


def test_a_key_that_is_older_than_its_version_is_not_taken_for_the_present_one(tmp_path: Path) -> None:
    """As after a power failure: of two files one had been written to the disk, and the other not."""
    catalogue = CatalogueWriter.open_or_create(tmp_path / "c", ["/a", "/b"])
    for index in (0, 1):
        catalogue.observe(index, "first", 3)
    catalogue.close()
    versions = tmp_path / "c" / "versions"
    content = versions.read_bytes()
    versions.write_bytes(version_hash("second").to_bytes(8, "little") + content[8:])
    again = CatalogueWriter.open_or_create(tmp_path / "c", ["/a", "/b"])
    assert not again.is_as_seen(0, "second")
    assert again.is_as_seen(1, "first")
    assert not again.is_as_seen(1, "second")
    again.observe(0, "second", 3)
    assert again.is_as_seen(0, "second")
    again.close()
