"""Every source, real and fake, against one contract."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import servers
from fake_sources import CountingSource, FaultySource, MemorySource, SlowSource
from prefeed.config import Config
from prefeed.sources import objectstore
from prefeed.sources.answers import version_without_etag
from prefeed.sources.objectstore import ObjectStoreSource
from prefeed.sources.protocol import Source
from prefeed.sources.quick_fetches import QuickClient
from prefeed.sources.urls import open_source
from prefeed.sources.views import View
from prefeed.types import FetchedObject
from source_contract import SourceContract

_ticks = itertools.count(1)


class DirectoryOrigin:
    """Files below a directory, read through a URL."""

    def __init__(self, directory: Path, url: str, *, index: bool = False) -> None:
        self.directory = directory
        self.url = url
        self.index = index
        self.sources: list[Source] = []

    def put(self, path: str, data: bytes) -> None:
        file = self.directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        second = 1_700_000_000 + next(_ticks)  # Last-Modified has whole seconds.
        os.utime(file, (second, second))

    def open(self) -> Source:
        if self.index:
            servers.write_index(self.directory)
        self.sources.append(open_source(self.url, Config()))
        return self.sources[-1]

    def close(self) -> None:
        for source in self.sources:
            source.close()


class BucketOrigin:
    """A bucket behind moto, read below a prefix."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self.bucket = bucket
        self.prefix = prefix
        client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key=f"{prefix}-not-mine/x.bin", Body=b"outside")
        self.sources: list[Source] = []

    def put(self, path: str, data: bytes) -> None:
        servers.put_into_moto(self.bucket, f"{self.prefix}/{path}", data)

    def open(self) -> Source:
        self.sources.append(open_source(f"s3://{self.bucket}/{self.prefix}/", Config()))
        return self.sources[-1]

    def close(self) -> None:
        for source in self.sources:
            source.close()


class MemoryOrigin(MemorySource):
    def __init__(self, wrap: Any = None) -> None:
        super().__init__()
        self.wrap = wrap

    def open(self) -> Source:
        wrapped: Source = self.wrap(self) if self.wrap else self
        return wrapped


class TestPosix(SourceContract):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> DirectoryOrigin:
        return DirectoryOrigin(tmp_path, str(tmp_path))


class ViewedOrigin(DirectoryOrigin):
    """A directory as a process sees it whose root directory is another one."""

    def __init__(self, root: Path) -> None:
        (root / "data").mkdir()
        super().__init__(root / "data", "/data")
        self.view = View((0, 0, 0))
        self.view.attach(os.open(root, os.O_PATH), {})

    def open(self) -> Source:
        self.sources.append(open_source(self.url, Config(), view=self.view))
        return self.sources[-1]

    def close(self) -> None:
        super().close()
        self.view.detach()


class TestPosixThroughAView(SourceContract):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> Iterator[ViewedOrigin]:
        origin = ViewedOrigin(tmp_path)
        yield origin
        origin.close()


class TestHttpWithIndex(SourceContract):
    lists_versions = False

    @pytest.fixture
    def origin(self, tmp_path: Path) -> Iterator[DirectoryOrigin]:
        (tmp_path / "root dir").mkdir()
        with servers.http_server(tmp_path) as server:
            origin = DirectoryOrigin(tmp_path / "root dir", f"{server.url}/root dir/", index=True)
            yield origin
            origin.close()


class TestHttpWithWebDav(SourceContract):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> Iterator[DirectoryOrigin]:
        (tmp_path / "root").mkdir()
        with servers.http_server(tmp_path, webdav=True) as server:
            origin = DirectoryOrigin(tmp_path / "root", f"{server.url}/root")
            yield origin
            origin.close()


class TestNginx(SourceContract):
    lists_versions = False
    kind: type[DirectoryOrigin] = DirectoryOrigin

    @pytest.fixture
    def origin(self, tmp_path: Path) -> Iterator[DirectoryOrigin]:
        root = tmp_path / "www"
        root.mkdir()
        with servers.nginx_server(root, tmp_path / "nginx") as url:
            origin = self.kind(root, url, index=True)
            yield origin
            origin.close()


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with servers.moto_server() as url:
        yield url


class TestS3(SourceContract):
    @pytest.fixture
    def origin(self, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BucketOrigin]:
        import boto3

        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": s3_endpoint}.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
        origin = BucketOrigin(client, f"bucket-{next(_ticks)}", "data/set")
        yield origin
        origin.close()
        client.close()


class TestThroughHelperProcess(SourceContract):
    """As in a forked child of a process that has used the native client."""

    lists_versions = False

    @pytest.fixture
    def origin(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectoryOrigin]:
        monkeypatch.setattr(objectstore, "_runtime_pid", 1)
        with servers.http_server(tmp_path) as server:
            origin = DirectoryOrigin(tmp_path, server.url, index=True)
            yield origin
            origin.close()


class QuickSource:
    """A web server whose objects are fetched as a fetch process does it; what that does not take, the source fetches itself."""

    def __init__(self, source: ObjectStoreSource, size_of: Callable[[str], int]) -> None:
        self.source = source
        self.url, self.mark, self.locate, self.list_objects = (
            source.url,
            source.mark,
            source.locate,
            source.list_objects,
        )
        self._size_of = size_of
        self._lock = threading.Lock()
        self._data = b""
        self._client = QuickClient(self._keep)
        self._is_closed = False
        origin = source.quick_origin()
        assert origin is not None
        self._client.add_origin(0, origin)

    def _keep(self, _number: int, data: memoryview) -> None:
        self._data = bytes(data)

    def fetch(self, path: str) -> FetchedObject:
        size = self._size_of(path)
        with self._lock:
            self._client.fetch(0, 0, self.source.quick_target(path), size)
            arrivals = []
            while not arrivals:
                arrivals = self._client.step(60.0)
            (arrival,) = arrivals
            data = self._data
        if arrival.failure:
            error = self.source.quick_failure(path, arrival.failure)
            if error is None:
                return self.source.fetch(path)
            raise error
        version = arrival.version or version_without_etag(arrival.modified_seconds, size)
        return FetchedObject(data=data, version=version)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._client.close()
        self.source.close()


class QuickDirectoryOrigin(DirectoryOrigin):
    def open(self) -> Source:
        source = super().open()
        assert isinstance(source, ObjectStoreSource)
        quick = QuickSource(source, self._size_of)
        self.sources.append(quick)
        return quick

    def _size_of(self, path: str) -> int:
        file = self.directory / path
        return file.stat().st_size if file.is_file() else 0


class TestQuick(SourceContract):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> Iterator[DirectoryOrigin]:
        (tmp_path / "root dir").mkdir()
        with servers.http_server(tmp_path, webdav=True) as server:
            origin = QuickDirectoryOrigin(tmp_path / "root dir", f"{server.url}/root dir")
            yield origin
            origin.close()


class TestQuickNginx(TestNginx):
    kind = QuickDirectoryOrigin


class QuickBucketOrigin(BucketOrigin):
    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        super().__init__(client, bucket, prefix)
        self.sizes: dict[str, int] = {}

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self.sizes[path] = len(data)

    def open(self) -> Source:
        source = super().open()
        assert isinstance(source, ObjectStoreSource)
        quick = QuickSource(source, lambda path: self.sizes.get(path, 0))
        self.sources.append(quick)
        return quick


class TestQuickS3(SourceContract):
    @pytest.fixture
    def origin(self, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketOrigin]:
        import boto3

        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": s3_endpoint}.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
        origin = QuickBucketOrigin(client, f"bucket-{next(_ticks)}", "data/set")
        yield origin
        origin.close()
        client.close()


class TestMemory(SourceContract):
    @pytest.fixture(params=[None, CountingSource, FaultySource, lambda source: SlowSource(source, 0.0)])
    def origin(self, request: pytest.FixtureRequest) -> MemoryOrigin:
        return MemoryOrigin(request.param)
