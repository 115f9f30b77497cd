import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prefeed.config import Config
from prefeed.errors import ObjectNotFoundError, TransientSourceError
from prefeed.sources import library as library_module
from prefeed.sources import manifest_writer
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.protocol import Source
from prefeed.testing.sources import CountingSource, MemorySource


@pytest.fixture
def library(tmp_path: Path) -> ManifestLibrary:
    return ManifestLibrary(tmp_path / "home")


@pytest.fixture
def source() -> CountingSource:
    return CountingSource(MemorySource({"a": b"1", "b": b"22"}, url="s3://bucket/p"))


def test_listed_once_then_found(library: ManifestLibrary, source: CountingSource) -> None:
    first = library.open("s3://bucket/p", source_factory=lambda _: source)
    again = library.open("s3://key:secret@bucket/p/", source_factory=lambda _: source)
    assert first.uid == again.uid
    assert source.listings == 1


def test_refresh_lists_again_and_changes_only_what_changed(library: ManifestLibrary, source: CountingSource) -> None:
    old = library.open("s3://bucket/p", source_factory=lambda _: source)
    assert isinstance(source.source, MemorySource)
    source.source.put("b", b"33")
    source.source.put("c", b"4")
    new = library.open("s3://bucket/p", source_factory=lambda _: source, refresh=True)
    assert [new.path(i) for i in range(3)] == ["a", "b", "c"]
    assert new.key(0) == old.key(0)
    assert new.key(1) != old.key(1)
    assert library.open("s3://bucket/p", source_factory=lambda _: source).uid == new.uid
    assert source.listings == 2


def test_a_failed_refresh_leaves_the_old_manifest(library: ManifestLibrary, source: CountingSource) -> None:
    old = library.open("s3://bucket/p", source_factory=lambda _: source)

    def fail(_: str) -> Source:
        raise TransientSourceError("down")

    with pytest.raises(TransientSourceError):
        library.open("s3://bucket/p", source_factory=fail, refresh=True)
    assert library.open("s3://bucket/p", source_factory=fail).uid == old.uid


def test_a_damaged_manifest_is_built_again(library: ManifestLibrary, source: CountingSource) -> None:
    old = library.open("s3://bucket/p", source_factory=lambda _: source)
    (old.directory / "offsets").write_bytes(b"short")
    library.open("s3://bucket/p", source_factory=lambda _: source).validate()
    (library.directory_of("s3://bucket/p") / "current").write_text("../..")
    library.open("s3://bucket/p", source_factory=lambda _: source).validate()
    assert source.listings == 3


@pytest.mark.usefixtures("sandbox")
def test_settings_make_the_source(library: ManifestLibrary, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(b"1")
    manifest = library.open(f"file://{tmp_path}/set/", Config())
    assert manifest.url == f"{tmp_path}/set"
    assert library.open(f"{tmp_path}/set").uid == manifest.uid
    with pytest.raises(ObjectNotFoundError):
        library.open(f"{tmp_path}/missing", Config())
    with pytest.raises(ValueError, match="source_factory"):
        library.open(f"{tmp_path}/missing")


@pytest.mark.usefixtures("sandbox")
def test_who_comes_second_waits_and_uses_the_listing_of_the_first(library: ManifestLibrary) -> None:
    listing, go_on = threading.Event(), threading.Event()

    class Waiting(CountingSource):
        def list_objects(self):  # type: ignore[no-untyped-def]
            listing.set()
            go_on.wait()
            return super().list_objects()

    source = Waiting(MemorySource({"a": b"1"}, url="s3://bucket/p"))
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(library.open, "s3://bucket/p", source_factory=lambda _: source)
        listing.wait()
        others = [pool.submit(library.open, "s3://bucket/p", source_factory=lambda _: source) for _ in range(3)]
        go_on.set()
        assert {future.result().uid for future in [first, *others]} == {first.result().uid}
    assert source.listings == 1


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
    monkeypatch.setattr(library_module.fcntl, "flock", lambda *_: None)


def renewed(library: ManifestLibrary, source: CountingSource, content: bytes) -> Manifest:
    assert isinstance(source.source, MemorySource)
    source.source.put("b", content)
    return library.open("s3://bucket/p", source_factory=lambda _: source, refresh=True)


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
    assert library.open("s3://bucket/p").uid == found.uid


@pytest.mark.parametrize("error", [OSError(37, "No locks available"), BlockingIOError()])
def test_a_lock_that_nobody_gives_back_holds_up_nobody_for_ever(
    library: ManifestLibrary, source: CountingSource, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(library_module.fcntl, "flock", refuse)
    monkeypatch.setattr(library_module, "_PATIENCE_SECONDS", 0.0)
    assert library.open("s3://bucket/p", source_factory=lambda _: source).num_objects == 2
