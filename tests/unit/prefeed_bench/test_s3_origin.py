"""The S3 endpoint of the benches: pages of listings, and objects that are what the listing says."""

from __future__ import annotations

import re
import threading
import urllib.request
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.errors import ObjectNotFoundError
from prefeed.sources.objectstore import ObjectStoreSource
from prefeed_bench.s3_origin import Entry, list_entries, list_page, s3_bucket

pytestmark = pytest.mark.usefixtures("sandbox")

ENTRIES = [Entry(key, 10, 0x5000) for key in ["a&b", "train/cat/1.jpg", "train/cat/2.jpg", "train/dog/3.jpg", "train2"]]


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def listed(page: str) -> list[str]:
    """Return keys and common prefixes, in their order."""
    return re.findall(r"<(?:Key|CommonPrefixes><Prefix)>([^<]*)</", page)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["a&amp;b", "train/cat/1.jpg", "train/cat/2.jpg", "train/dog/3.jpg", "train2"]),
        ({"prefix": "train/"}, ["train/cat/1.jpg", "train/cat/2.jpg", "train/dog/3.jpg"]),
        ({"delimiter": "/"}, ["a&amp;b", "train/", "train2"]),
        ({"prefix": "train/", "delimiter": "/"}, ["train/cat/", "train/dog/"]),
        ({"prefix": "train/cat/", "delimiter": "/"}, ["train/cat/1.jpg", "train/cat/2.jpg"]),
        ({"prefix": "none"}, []),
    ],
)
def test_what_a_listing_holds(query: dict[str, str], expected: list[str]) -> None:
    page = list_page(ENTRIES, query)
    assert listed(page) == expected
    assert "<IsTruncated>false</IsTruncated>" in page


@pytest.mark.parametrize("delimiter", ["", "/"])
def test_pages_hold_everything_once(delimiter: str) -> None:
    whole = listed(list_page(ENTRIES, {"delimiter": delimiter}))
    query = {"delimiter": delimiter, "max-keys": "1"}
    seen = []
    for _ in whole:
        page = list_page(ENTRIES, query)
        seen += listed(page)
        token = re.search(r"<NextContinuationToken>([^<]*)</", page)
        query["continuation-token"] = token[1].replace("&amp;", "&") if token else ""
    assert seen == whole
    assert not query["continuation-token"]


def test_prefeed_reads_what_it_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing says the version that the object has: else prefeed would take every object for changed."""
    data = {"train/1.jpg": b"one" * 1000, "train/2 ä.jpg": b"", "list.txt": b"x"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    (tmp_path / "root" / "bucket" / "train").symlink_to(elsewhere)
    for path, content in data.items():
        (tmp_path / "root" / "bucket" / path).write_bytes(content)
    assert [entry.key for entry in list_entries(tmp_path / "root" / "bucket")] == sorted(data)
    with s3_bucket(tmp_path / "root", "bucket", 0.001) as bucket:
        for name, value in bucket.env.items():
            monkeypatch.setenv(name, value)
        source = ObjectStoreSource(bucket.url, resolve())
        found = {info.path: info for batch in source.list_objects() for info in batch}
        fetched = {path: source.fetch(path) for path in data}
        with pytest.raises(ObjectNotFoundError, match="s3://bucket/none"):
            source.fetch("none")
        source.close()
    assert {path: bytes(object_.data) for path, object_ in fetched.items()} == data
    assert {path: info.version for path, info in found.items()} == {p: o.version for p, o in fetched.items()}


def test_every_answer_takes_the_latency(tmp_path: Path) -> None:
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    (tmp_path / "root" / "bucket" / "a").write_bytes(b"x")
    answered = threading.Event()

    with s3_bucket(tmp_path / "root", "bucket", 0.5) as bucket:

        def ask(url: str) -> None:
            urllib.request.urlopen(url, timeout=60).close()
            answered.set()

        for path in ("bucket/a", "bucket?list-type=2"):
            answered.clear()
            asking = threading.Thread(target=ask, args=(bucket.origin.url + path,))
            asking.start()
            assert not answered.wait(0.3)  # far less than it takes, so that a busy machine cannot make it fail
            asking.join()
            assert answered.is_set()
