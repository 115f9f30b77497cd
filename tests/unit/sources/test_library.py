import fcntl
import gc
import math
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fake_sources import CountingSource, MemorySource
from prefeed.config import Config
from prefeed.errors import ObjectNotFoundError, TransientSourceError
from prefeed.sources import library as library_module
from prefeed.sources import manifest as manifest_module
from prefeed.sources import manifest_writer
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import Source
from prefeed.system import locks
from prefeed.types import ObjectInfo


@pytest.fixture
def library(tmp_path: Path) -> ManifestLibrary:
    return ManifestLibrary(tmp_path / "home")


@pytest.fixture
def source() -> CountingSource:
    return CountingSource(MemorySource({"a": b"1", "b": b"22"}, url="s3://bucket/p"))


class Time:
    """Seconds since 1970, as the test says."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def test_each_opening_lists_and_equal_listings_are_one_manifest(
    library: ManifestLibrary, source: CountingSource
) -> None:
    first = library.open("s3://bucket/p", source_factory=lambda _: source)
    files = {file: file.stat().st_mtime_ns for file in first.directory.iterdir()}
    again = library.open("s3://key:secret@bucket/p/", source_factory=lambda _: source)
    assert first.uid == again.uid
    assert source.listings == 2
    assert {file: file.stat().st_mtime_ns for file in first.directory.iterdir()} == files


def test_who_allows_an_age_gets_a_listing_that_is_no_older(tmp_path: Path, source: CountingSource) -> None:
    now = Time()
    library = ManifestLibrary(tmp_path / "home", clock=now)

    def began(listing_age: float) -> float:
        return library.open_listed("s3://bucket/p", listing_age=listing_age, source_factory=lambda _: source).began_at

    assert began(math.inf) == 1e9
    now.now += 60
    assert began(math.inf) == began(61) == began(60) == 1e9
    assert source.listings == 1
    assert began(59) == 1e9 + 60
    now.now += 5
    assert began(0) == 1e9 + 65
    now.now -= 1000  # the clock was set back: how old it is cannot be told
    assert began(1e6) == 1e9 - 935
    assert source.listings == 4


def test_a_new_listing_changes_only_what_changed(library: ManifestLibrary, source: CountingSource) -> None:
    old = library.open("s3://bucket/p", source_factory=lambda _: source)
    assert isinstance(source.source, MemorySource)
    source.source.put("b", b"33")
    source.source.put("c", b"4")
    new = library.open("s3://bucket/p", source_factory=lambda _: source)
    assert [new.path(i) for i in range(3)] == ["a", "b", "c"]
    assert new.key(0) == old.key(0)
    assert new.key(1) != old.key(1)
    assert source.listings == 2


def test_an_origin_that_cannot_be_listed_now_is_an_error_that_names_the_old_listing(
    library: ManifestLibrary, source: CountingSource
) -> None:
    class Unreachable(MemorySource):
        def list_objects(self) -> Iterator[list[ObjectInfo]]:
            raise TransientSourceError("down", path="p")

    def fail(_: str) -> Source:
        return Unreachable(url="s3://bucket/p")

    with pytest.raises(TransientSourceError, match=r"^down$"):
        library.open("s3://bucket/p", source_factory=fail)
    old = library.open("s3://bucket/p", source_factory=lambda _: source)
    with pytest.raises(TransientSourceError, match=r"^down; its listing of \d+ s ago.*listing_age=inf") as raised:
        library.open("s3://bucket/p", source_factory=fail)
    assert raised.value.details == {"path": "p"}
    assert library.open("s3://bucket/p", listing_age=math.inf, source_factory=fail).uid == old.uid


def test_a_damaged_manifest_is_built_again(library: ManifestLibrary, source: CountingSource) -> None:
    old = library.open("s3://bucket/p", source_factory=lambda _: source)
    (old.directory / "columns").write_bytes(b"short")
    library.open("s3://bucket/p", source_factory=lambda _: source).validate()
    (library.directory_of("s3://bucket/p") / "current").write_text("../..")
    library.open("s3://bucket/p", source_factory=lambda _: source).validate()
    assert source.listings == 3


def test_one_line_says_that_a_listing_was_damaged(
    library: ManifestLibrary, source: CountingSource, caplog: pytest.LogCaptureFixture
) -> None:
    """Not what another layout is, nor that there is none; each damage once, however often it is met."""
    old = library.open("s3://bucket/p", source_factory=lambda _: source)
    assert caplog.messages == []
    data = (old.directory / "columns").read_bytes()
    for number in range(1, 3):
        (old.directory / "columns").unlink()
        (old.directory / "columns").write_bytes(data[:-8] + bytes(8))
        for _ in range(2):
            assert library.find("s3://bucket/p", math.inf) is None
        assert len(caplog.messages) == number
        assert "is damaged: its column 'paths' is not what was written; the origin is listed again" in caplog.text
        library.open("s3://bucket/p", source_factory=lambda _: source)
        assert library.find("s3://bucket/p", math.inf) is not None
    assert len(caplog.messages) == 2


@pytest.mark.usefixtures("sandbox")
def test_a_listing_is_as_old_as_its_names(tmp_path: Path) -> None:
    """Sizes are asked later; who asked for a listing in between gets one with what was there then."""
    now = Time()
    library = ManifestLibrary(tmp_path / "home", clock=now)
    root = tmp_path / "data"
    root.mkdir()
    (root / "a").write_bytes(b"1")
    source = PosixSource(str(root))
    named = library.find_by_names(source)
    assert named is not None
    assert (named.is_settled, named.manifest.is_settled) == (False, False)
    assert library.find(str(root), math.inf) is None
    now.now += 10
    (root / "b").write_bytes(b"22")
    now.now += 10
    settled = library.settle(named.manifest, began_at=named.began_at)
    assert (settled.began_at, settled.manifest.sizes.tolist()) == (1e9, [1])
    found = library.find(str(root), math.inf)
    assert found is not None
    assert (found.began_at, found.manifest.uid) == (1e9, settled.manifest.uid)
    newer = library.open_listed(str(root), source_factory=lambda _: source)
    assert newer.manifest.num_objects == 2
    assert library.settle(named.manifest, began_at=named.began_at).manifest.uid == settled.manifest.uid
    found = library.find(str(root), math.inf)
    assert found is not None, "an older listing does not come into force again"
    assert found.manifest.uid == newer.manifest.uid


@pytest.mark.usefixtures("sandbox")
def test_settings_make_the_source(library: ManifestLibrary, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(b"1")
    manifest = library.open(f"file://{tmp_path}/set/", Config())
    assert manifest.url == f"{tmp_path}/set"
    assert library.open(f"{tmp_path}/set", listing_age=math.inf).uid == manifest.uid
    with pytest.raises(ObjectNotFoundError):
        library.open(f"{tmp_path}/missing", Config())
    with pytest.raises(ValueError, match="source_factory"):
        library.open(f"{tmp_path}/missing")


@pytest.mark.usefixtures("sandbox")
def test_who_asks_while_another_lists_shares_the_listing_after_that_one(tmp_path: Path) -> None:
    """Without a server: a listing that runs may have passed what was written since; two in a row do for all."""
    listing, go_on, asked = threading.Event(), threading.Event(), threading.Semaphore(0)

    def clock() -> float:
        asked.release()
        return time.time()

    class Waiting(CountingSource):
        def list_objects(self):  # type: ignore[no-untyped-def]
            found = list(super().list_objects())
            listing.set()
            go_on.wait()
            return iter(found)

    memory = MemorySource({"a": b"1"}, url="s3://bucket/p")
    source = Waiting(memory)
    library = ManifestLibrary(tmp_path / "home", clock=clock)

    def ask() -> int:
        return library.open("s3://bucket/p", source_factory=lambda _: source).num_objects

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask)
        listing.wait()
        memory.put("b", b"2")
        while asked.acquire(blocking=False):
            pass
        others = [pool.submit(ask) for _ in range(3)]
        for _ in others:
            asked.acquire()
        go_on.set()
        assert first.result() == 1
        assert [future.result() for future in others] == [2, 2, 2]
    assert source.listings == 2


def test_list_and_forget(library: ManifestLibrary) -> None:
    assert library.list() == []
    for name in ("b", "a"):
        source = MemorySource({"x": b"1"}, url=f"s3://{name}")
        library.open(f"s3://{name}", source_factory=lambda _, source=source: source)
    assert [manifest.url for manifest in library.list()] == ["s3://a", "s3://b"]
    kept = library.list()[0]
    assert library.forget("s3://a/")
    assert not library.forget("s3://a/")
    assert [manifest.url for manifest in library.list()] == ["s3://b"]
    assert kept.path(0) == "x"


# ---------------------------------------------------------------- nodes that share the home


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home may be mounted by other nodes: what is unlinked is lost to them, and locks may exclude nobody."""
    for module in (library_module, manifest_writer):
        monkeypatch.setattr(module, "is_on_own_disk", lambda _: False)
    monkeypatch.setattr(locks.fcntl, "flock", lambda *_: None)


def renewed(library: ManifestLibrary, source: CountingSource, content: bytes) -> Manifest:
    assert isinstance(source.source, MemorySource)
    source.source.put("b", content)
    return library.open("s3://bucket/p", source_factory=lambda _: source)


def set_age(manifest: Manifest, hours: float) -> None:
    when = time.time() - hours * 3600
    os.utime(manifest.directory, (when, when))


def test_what_another_node_has_open_is_not_removed(
    library: ManifestLibrary, source: CountingSource, shared: None
) -> None:
    """Neither by listings that replace it, nor by who forgets the URL; its server says every ten minutes that it uses it."""
    used, unused = renewed(library, source, b"1"), renewed(library, source, b"22")
    set_age(used, 2)
    set_age(unused, 25)
    for content in (b"333", b"4444"):
        last = renewed(library, source, content)
    assert (used.directory.is_dir(), unused.directory.is_dir()) == (True, False)
    assert library.forget("s3://bucket/p")
    assert not library.forget("s3://bucket/p")
    assert library.list() == []
    library.remove_unused()
    assert used.directory.is_dir()
    assert last.directory.is_dir()
    set_age(used, 25)
    library.remove_unused()
    assert (used.directory.is_dir(), last.directory.is_dir()) == (False, True)


def test_a_listing_in_force_is_not_removed_however_old(library: ManifestLibrary, source: CountingSource) -> None:
    found = renewed(library, source, b"1")
    set_age(found, 1000)
    library.remove_unused()
    assert library.open("s3://bucket/p", listing_age=math.inf).uid == found.uid


def test_a_process_stopped_while_it_removes_a_listing_does_not_delay_others(
    library: ManifestLibrary, source: CountingSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_module, "_REMOVAL_SECONDS", 0.0)
    directory = renewed(library, source, b"1").directory
    gc.collect()
    with (directory / "columns").open("rb+") as keys:
        fcntl.flock(keys, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = library.find("s3://bucket/p", math.inf)
        assert found is not None
        assert found.manifest.directory == directory


@pytest.mark.parametrize("error", [OSError(37, "No locks available"), BlockingIOError()])
def test_a_lock_that_is_not_given_back_is_waited_for_with_a_limit(
    library: ManifestLibrary, source: CountingSource, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(*_: object) -> None:
        raise type(error)(*error.args)  # one that is raised again holds on to what was open

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    monkeypatch.setattr(library_module, "_PATIENCE_SECONDS", 0.0)
    assert library.open("s3://bucket/p", source_factory=lambda _: source).num_objects == 2
