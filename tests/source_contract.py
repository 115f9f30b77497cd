"""The contract of ``Source`` as tests: subclass ``SourceContract`` and give it an ``origin`` fixture.

::

    class TestMySource(SourceContract):
        @pytest.fixture
        def origin(self):
            ...
            yield MyOrigin(...)
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from prefeed.errors import ObjectNotFoundError, SourceError
from prefeed.sources.protocol import Source
from prefeed.types import ObjectInfo

ODD_NAMES = (
    "with space.bin",
    "percent%20.bin",
    "plus+and&.bin",
    "hash#question?.bin",
    "brackets[1].bin",
    "größe/日本.bin",
    ".hidden",
)
"""Paths that a source which encodes twice, or not at all, gets wrong."""


class Origin(Protocol):
    """What the suite needs besides the source: a way to fill its origin."""

    def put(self, path: str, data: bytes) -> None:
        """Add or replace an object at the origin, not through the source."""
        ...

    def open(self) -> Source:
        """Return a new source for it; the suite closes it."""
        ...


def list_all(source: Source) -> dict[str, ObjectInfo]:
    """Return a source's listing by path; no path may come twice, no batch be empty."""
    listed: dict[str, ObjectInfo] = {}
    for batch in source.list_objects():
        assert batch
        for info in batch:
            assert info.path not in listed
            listed[info.path] = info
    return listed


class SourceContract:
    """Run over every source there is, the fakes included."""

    lists_versions = True
    """False where the listing cannot tell versions (index files)."""

    def test_lists_every_object_with_its_size(self, origin: Origin) -> None:
        objects = {"a.bin": b"x" * 10, "b/c/d.bin": b"y" * 70_000, "b/e.bin": b"z", "empty": b""}
        for path, data in objects.items():
            origin.put(path, data)
        listed = list_all(_opened(origin))
        assert {path: info.size_bytes for path, info in listed.items()} == {p: len(d) for p, d in objects.items()}

    def test_listing_of_more_than_one_batch_is_complete(self, origin: Origin) -> None:
        paths = {f"class{i % 7}/{i:05d}.bin" for i in range(1203)}
        for path in paths:
            origin.put(path, b"1")
        assert list_all(_opened(origin)).keys() == paths

    @pytest.mark.parametrize("size", [0, 1, 84_000, 3_000_001])
    def test_fetch_returns_the_bytes(self, origin: Origin, size: int) -> None:
        data = bytes(i % 251 for i in range(size))
        origin.put("dir/object.bin", data)
        fetched = _opened(origin).fetch("dir/object.bin")
        assert len(fetched.data) == size
        assert bytes(fetched.data) == data

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names_are_listed_and_fetched_as_they_are(self, origin: Origin, name: str) -> None:
        origin.put(name, name.encode())
        source = _opened(origin)
        assert list(list_all(source)) == [name]
        assert bytes(source.fetch(name).data) == name.encode()

    def test_version_is_that_of_the_listing_and_changes_with_the_bytes(self, origin: Origin) -> None:
        origin.put("a.bin", b"first")
        source = _opened(origin)
        before = source.fetch("a.bin").version
        assert before
        if self.lists_versions:
            assert list_all(source)["a.bin"].version == before
        origin.put("a.bin", b"second one")
        after = source.fetch("a.bin")
        assert bytes(after.data) == b"second one"
        assert after.version != before
        if self.lists_versions:
            assert list_all(source)["a.bin"].version == after.version

    def test_missing_object_is_permanent_and_named_in_full(self, origin: Origin) -> None:
        origin.put("a.bin", b"1")
        source = _opened(origin)
        with pytest.raises(ObjectNotFoundError) as caught:
            source.fetch("no/such.bin")
        assert source.locate("no/such.bin") in str(caught.value)
        assert not caught.value.retryable
        assert isinstance(caught.value, FileNotFoundError)

    def test_a_directory_is_no_object(self, origin: Origin) -> None:
        origin.put("dir/a.bin", b"1")
        with pytest.raises(SourceError) as caught:
            _opened(origin).fetch("dir")
        assert not caught.value.retryable

    def test_errors_cross_processes(self, origin: Origin) -> None:
        origin.put("a.bin", b"1")
        with pytest.raises(SourceError) as caught:
            _opened(origin).fetch("missing")
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy), copy.details) == (type(caught.value), str(caught.value), caught.value.details)

    def test_many_threads_fetch_at_once(self, origin: Origin) -> None:
        objects = {f"{i:03d}.bin": bytes([i]) * (i + 1) * 100 for i in range(100)}
        for path, data in objects.items():
            origin.put(path, data)
        source = _opened(origin)
        with ThreadPoolExecutor(16) as pool:
            fetched = list(pool.map(lambda path: bytes(source.fetch(path).data), [*objects, *objects]))
        assert fetched == [*objects.values(), *objects.values()]

    def test_url_is_the_start_of_every_location(self, origin: Origin) -> None:
        source = _opened(origin)
        assert not source.url.endswith("/")
        assert source.locate("a/b.bin") == f"{source.url}/a/b.bin"

    def test_close_may_be_called_twice(self, origin: Origin) -> None:
        origin.put("a.bin", b"1")
        source = origin.open()
        source.fetch("a.bin")
        source.close()
        source.close()


def _opened(origin: Origin) -> Source:
    return origin.open()
