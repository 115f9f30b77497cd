"""Object stores as places of jobs: odd keys, and stores that keep other bytes than were sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from moto.s3.responses import S3Response

from prefeed.config import resolve
from prefeed.errors import TruncatedBodyError
from prefeed.jobs.options import SyncOptions, SyncResult
from prefeed.jobs.rmr import remove
from prefeed.jobs.sync import sync
from prefeed.sources import store_listing
from prefeed.transfer.entries import Entry
from prefeed.transfer.patterns import WORK_NAME
from prefeed.transfer.store import StorePlace, StoreSink
from servers import S3_ENVIRONMENT, moto_server, put_into_moto
from unit.jobs.trees import make, tree

pytestmark = pytest.mark.usefixtures("sandbox")


class Bucket:
    def __init__(self, endpoint: str) -> None:
        self.name = f"photos-{os.urandom(6).hex()}"  # the server's buckets are those of the process
        self.url = f"s3://{self.name}"
        self.client = boto3.client("s3", endpoint_url=endpoint)
        self.client.create_bucket(Bucket=self.name)

    def put(self, **objects: bytes) -> None:
        for key, data in objects.items():
            self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def keys(self) -> list[str]:
        return [one["Key"] for one in self.client.list_objects_v2(Bucket=self.name).get("Contents", [])]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with moto_server() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        found = Bucket(url)
        yield found
        found.client.close()


def run(source: object, target: object, **options: object) -> SyncResult:
    return sync(str(source), str(target), SyncOptions(**options), resolve())  # type: ignore[arg-type]


def test_what_a_killed_sync_left_is_not_taken_for_data(bucket: Bucket, tmp_path: Path) -> None:
    """Put there by another tool, its name is that of a file that is being made: it would be lost, and spoil that one."""
    bucket.put(**{f"{WORK_NAME}/0": b"half", "a/b": b"whole"})

    result = run(bucket.url, tmp_path / "t", delete_src=True)

    assert (result.num_copied, result.num_deleted_src) == (1, 1)
    assert bucket.keys() == [f"{WORK_NAME}/0"]
    assert tree(tmp_path / "t") == {"a/b": b"whole"}


def test_markers_of_empty_directories_are_no_failures(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put(**{"d/": b"", "d/e/": b"", "d/x": b"1", "empty": b""})

    result = run(bucket.url, tmp_path / "t")

    assert (result.is_complete, result.num_copied) == (True, 2)
    assert tree(tmp_path / "t") == {"d/x": b"1", "empty": b""}


@pytest.mark.parametrize("to_store", [False, True])
def test_a_listing_that_fails_at_its_second_page_deletes_nothing(
    bucket: Bucket, to_store: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first page has is copied; behind it nobody knows."""
    for number in range(30):
        put_into_moto(bucket.name, f"set/{number:04}", b"1")
    target = f"{bucket.url}/copy" if to_store else str(tmp_path / "t")
    for key in ("0000", "0025", "extra"):
        if to_store:
            bucket.put(**{f"copy/{key}": b"0"})
        else:
            make(tmp_path / "t", {key: b"0"})
    real = S3Response.list_objects_v2

    def refuse_the_second(self: S3Response) -> object:
        self.querystring["max-keys"] = ["20"]
        if "continuation-token" in self.querystring and self.querystring.get("prefix") == ["set/"]:
            return 403, {}, "<Error><Code>AccessDenied</Code></Error>"
        return real(self)

    monkeypatch.setattr(S3Response, "list_objects_v2", refuse_the_second)
    monkeypatch.setattr(store_listing, "_LIST_BATCH", 20)  # the client gives as many as these at a time, or the error
    result = run(f"{bucket.url}/set", target, delete_dst=True, delete_src=True, threads=4)

    assert (result.num_listed, result.num_failed) == (20, 1)
    assert (result.num_deleted_src, result.num_deleted_dst) == (0, 0)
    assert f"{bucket.url}/set" in result.failures[0].message
    monkeypatch.setattr(S3Response, "list_objects_v2", real)
    keys = bucket.keys()
    there = [key for key in keys if key.startswith("copy/")] if to_store else os.listdir(tmp_path / "t")
    assert {"0000", "0019", "0025", "extra"} <= {key.removeprefix("copy/") for key in there}
    assert len(there) == 22


def test_what_cannot_be_removed_is_not_counted_as_removed(bucket: Bucket) -> None:
    bucket.put(**{"d/e/": b"", "d/x": b"1", "d/empty": b"", "de": b"2"})

    result = remove(bucket.url, ["d"], resolve())

    assert bucket.keys() == ["d/e/", "de"]
    assert (result.num_removed, result.bytes_removed) == (2, 1)
    assert [failure.partition(" ")[0] for failure in result.failures] == [f"{bucket.url}/d/e/"]


def test_a_store_that_keeps_other_bytes_is_found_out_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only at the first try, after which the second would be believed."""
    sink = StoreSink(StorePlace("s3://photos", resolve()))
    monkeypatch.setattr(
        sink, "_put", lambda _path, chunks: {"e_tag": '"' + "0" * 32 + '"', "version": chunks.whole() and None}
    )
    monkeypatch.setattr(sink, "_has_same_bytes", lambda _path, _body: False)
    body = SimpleNamespace(version="", size_bytes=1, chunks=lambda: iter([os.urandom(1)]))

    for _ in range(3):
        with pytest.raises(TruncatedBodyError, match="has other bytes than were sent"):
            sink.write(Entry("a", 3), body)


def test_digests_that_are_none_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    place = StorePlace("s3://photos", resolve())
    sink, asked = StoreSink(place), []
    monkeypatch.setattr(
        sink, "_put", lambda _path, chunks: {"e_tag": '"' + "0" * 32 + '"', "version": chunks.whole() and None}
    )
    monkeypatch.setattr(sink, "_has_same_bytes", lambda path, _body: asked.append(path) or True)
    monkeypatch.setattr(place, "head", lambda _path: SimpleNamespace(size_bytes=1))
    body = SimpleNamespace(version="", size_bytes=1, chunks=lambda: iter([b"x"]))

    sink.write(Entry("a", 3), body)
    sink.write(Entry("b", 3), body)

    assert asked == ["a"]
