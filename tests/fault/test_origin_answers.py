"""What an origin answers instead of an object: it is never taken for the object, and no password goes to another host."""

from __future__ import annotations

import gzip
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import prefeed
import servers
from cover import crossed
from limits import set_limits
from prefeed import errors
from prefeed.config import resolve
from prefeed.sources import answers as checked_answers
from prefeed.sources.objectstore import ObjectStoreSource
from prefeed.sources.urls import open_source

NUM_OBJECTS = 12
SIZE = 1000
WRONG = 7


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for index in range(NUM_OBJECTS):
        (root / f"{index:02}.bin").write_bytes(bytes([index + 1]) * SIZE)
        os.utime(root / f"{index:02}.bin", (1_600_000_000, 1_600_000_000))
    return root


@pytest.fixture(params=["index", "webdav"])
def server(root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.FileServer]:
    """Lists sizes alone, or sizes and etags."""
    set_limits(monkeypatch, request_seconds=2, retry_seconds=1)
    if request.param == "index":
        servers.write_index(root)
    with servers.http_server(root, webdav=request.param == "webdav") as server:
        yield server


def expected(root: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(root.glob("*.bin"))]


def headers_of(file: Path) -> dict[str, str]:
    status = file.stat()
    return {"ETag": f'"{status.st_mtime_ns:x}-{status.st_size:x}"', "Last-Modified": "Sun, 13 Sep 2020 12:26:40 GMT"}


def page(handler: servers.Handler) -> None:
    handler.reply(200, b"<html>please log in</html>", {"Content-Type": "text/html"})


def half(handler: servers.Handler) -> None:
    file = handler.server.directory / handler.path.lstrip("/")
    handler.reply(200, file.read_bytes()[: SIZE // 2], headers_of(file))


def half_of_that_time(handler: servers.Handler) -> None:
    file = handler.server.directory / handler.path.lstrip("/")
    handler.reply(200, file.read_bytes()[: SIZE // 2], {"Last-Modified": headers_of(file)["Last-Modified"]})


def part(handler: servers.Handler) -> None:
    file = handler.server.directory / handler.path.lstrip("/")
    body = file.read_bytes()[10:110]
    handler.reply(206, body, {**headers_of(file), "Content-Range": f"bytes 10-109/{SIZE}"})


def compressed(handler: servers.Handler) -> None:
    file = handler.server.directory / handler.path.lstrip("/")
    etag = headers_of(file)["ETag"]
    headers = {**headers_of(file), "Content-Encoding": "gzip", "ETag": f'{etag[:-1]}-gzip"'}
    handler.reply(200, gzip.compress(file.read_bytes()), headers)


def nothing(handler: servers.Handler) -> None:
    handler.reply(204, b"")


WRONG_ANSWERS = [
    page,
    half,
    half_of_that_time,
    part,
    compressed,
    nothing,
    servers.chunked_half,
    servers.until_closed_half,
]


@pytest.mark.parametrize("answer", WRONG_ANSWERS, ids=lambda answer: answer.__name__)
def test_another_answer_than_the_object(
    server: servers.FileServer, root: Path, answer: servers.Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked for again and again, by the server and by the reader; then its reader, and no other, gets an error."""
    dataset = prefeed.datasets.Objects(server.url, pattern="*.bin")
    server.answers[f"/{WRONG:02}.bin"] = answer
    with caplog.at_level(logging.WARNING, "prefeed"):
        iterator = iter(prefeed.DataLoader(dataset, batch_size=None))
        seen = [next(iterator) for _ in range(WRONG)]
        with pytest.raises(errors.TruncatedBodyError) as caught:
            next(iterator)
        seen += iterator
    right = expected(root)
    assert seen == right[:WRONG] + right[WRONG + 1 :]
    url = f"{server.url}/{WRONG:02}.bin"
    assert url in str(caught.value)
    is_whole = isinstance(caught.value, errors.WrongAnswerError)
    del caught, iterator
    assert sum(url in record.getMessage() for record in caplog.records) == is_whole
    counts = prefeed.statistics()
    assert counts.errors.get("wrong-answer", 0) + counts.errors.get("truncated-body", 0) >= 2
    assert sum(path == f"/{WRONG:02}.bin" for _, path, _ in server.requests) >= 4
    assert counts.resident_objects == NUM_OBJECTS - 1


def test_a_wrong_answer_that_passes(server: servers.FileServer, root: Path) -> None:
    """Nobody but the statistics hears of it, and the bytes are kept."""
    dataset = prefeed.datasets.Objects(server.url, pattern="*.bin")
    times = dict.fromkeys(range(3, 8), 0)

    def at_first(index: int) -> servers.Answer:
        def answer(handler: servers.Handler) -> None:
            times[index] += 1
            if times[index] == 1:
                page(handler)
            else:
                file = handler.server.directory / handler.path.lstrip("/")
                handler.reply(200, file.read_bytes(), headers_of(file))

        return answer

    for index in times:
        server.answers[f"/{index:02}.bin"] = at_first(index)
    loader = prefeed.DataLoader(dataset, batch_size=None)
    assert list(loader) == expected(root)
    assert list(loader) == expected(root)
    counts = prefeed.statistics()
    assert counts.errors["wrong-answer"] == len(times)
    assert counts.resident_objects == NUM_OBJECTS


def test_an_origin_that_says_that_the_object_changed(server: servers.FileServer, root: Path) -> None:
    """By another etag, or, where the listing has none, by a time after the listing: the new bytes, which are not kept."""
    dataset = prefeed.datasets.Objects(server.url, pattern="*.bin")
    (root / f"{WRONG:02}.bin").write_bytes(b"new, and shorter")
    assert list(prefeed.DataLoader(dataset, batch_size=None)) == expected(root)
    assert prefeed.statistics().errors["object-changed"] >= 1
    assert prefeed.statistics().resident_objects == NUM_OBJECTS - 1


@pytest.mark.parametrize("answer", [servers.chunked, servers.until_closed], ids=["chunked", "until closed"])
def test_answers_without_a_length(server: servers.FileServer, root: Path, answer: servers.Answer) -> None:
    """They are read by other means, kept as any, and the server is asked once for each from then on."""
    if not server.webdav:
        server.answers["/index.txt"] = servers.chunked
    dataset = prefeed.datasets.Objects(server.url, pattern="*.bin")
    for index in range(NUM_OBJECTS):
        server.answers[f"/{index:02}.bin"] = answer
    loader = prefeed.DataLoader(dataset, batch_size=None)
    assert list(loader) == expected(root)
    assert list(loader) == expected(root)
    counts = prefeed.statistics()
    assert (counts.resident_objects, counts.origin_requests, counts.direct_reads) == (NUM_OBJECTS, NUM_OBJECTS, 0)


@pytest.mark.parametrize(
    "answer", [servers.reset, servers.status(500), servers.status(502)], ids=["reset", "500", "502"]
)
def test_faults_that_pass(server: servers.FileServer, root: Path, answer: servers.Answer) -> None:
    dataset = prefeed.datasets.Objects(server.url, pattern="*.bin")
    asked = 0

    def at_first(handler: servers.Handler) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            answer(handler)
        else:
            handler.reply(200, (root / "03.bin").read_bytes(), headers_of(root / "03.bin"))

    server.answers["/03.bin"] = at_first
    assert list(prefeed.DataLoader(dataset, batch_size=None)) == expected(root)
    assert asked == 2


# ---------------------------------------------------------------- redirects and parts, one source at a time


@pytest.fixture
def two(root: Path, tmp_path: Path) -> Iterator[tuple[servers.FileServer, servers.FileServer]]:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_bytes(b"elsewhere")
    (root / "b").write_bytes(b"here")
    with servers.http_server(root) as here, servers.http_server(other) as there:
        yield here, there


def authorizations(server: servers.FileServer) -> list[str | None]:
    return [
        next((v for k, v in headers.items() if k.lower() == "authorization"), None) for *_, headers in server.requests
    ]


@pytest.mark.parametrize(("code", "has_length"), crossed([301, 302, 307, 308], [True, False]))
def test_a_redirect_takes_no_password_to_another_host(
    two: tuple[servers.FileServer, servers.FileServer], code: int, has_length: bool
) -> None:
    here, there = two
    if not has_length:
        here.answers["/b"] = there.answers["/a"] = servers.chunked
    source = open_source(here.url.replace("//", "//user:password@"), resolve())
    try:
        here.answers["/a"] = servers.redirected(code, f"{there.url}/a")
        assert source.fetch("a").data == b"elsewhere"
        assert set(authorizations(there)) == {None}
        assert None not in authorizations(here)
        here.requests.clear()
        here.answers["/a"] = servers.redirected(code, f"{here.url}/b")
        assert source.fetch("a").data == b"here"
        assert None not in authorizations(here)
    finally:
        source.close()


@pytest.mark.parametrize("code", [301, 307])
def test_a_store_that_redirects(
    two: tuple[servers.FileServer, servers.FileServer], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Its signature is for the store, and goes nowhere else."""
    here, there = two
    for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": here.url, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    here.answers["/bucket/a"] = servers.redirected(code, f"{there.url}/a")
    source = open_source("s3://bucket", resolve())
    try:
        assert source.fetch("a").data == b"elsewhere"
    finally:
        source.close()
    assert [value is not None for value in authorizations(here)] == [True]
    assert authorizations(there) == [None]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (lambda url: servers.redirected(302, f"{url}/a"), errors.SourceError, "in a circle"),
        (lambda url: servers.status(302), errors.SourceError, "does not say where"),
        (lambda url: servers.status(304), errors.TransientSourceError, "nothing changed"),
        (lambda url: servers.status(503), errors.ThrottledError, "fewer requests"),
        (lambda url: servers.reset, errors.TransientSourceError, "127.0.0.1"),
        (lambda url: servers.until_closed, errors.TruncatedBodyError, "a partial body cannot be detected"),
        (lambda url: servers.chunked_half, errors.TruncatedBodyError, "broke off"),
    ],
    ids=["circle", "nowhere", "304", "503", "reset", "no end", "cut"],
)
def test_words_for_what_was_answered(
    two: tuple[servers.FileServer, servers.FileServer], answer: Callable[[str], servers.Answer], error: type[Exception], words: str
) -> None:  # fmt: skip
    here, _ = two
    (here.directory / "a").write_bytes(b"a" * 1000)
    here.answers["/a"] = answer(here.url)
    source = open_source(here.url, resolve())
    try:
        with pytest.raises(error, match=words) as caught:
            checked_answers.require_listed(source.fetch("a"), None, lambda: source.locate("a"))
    finally:
        source.close()
    assert f"{here.url}/a" in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda handler: handler.reply(206, b"x" * 500, {"Content-Range": "bytes 0-499/1000"}), "another part"),
        (lambda handler: handler.reply(206, b"x" * 500), "does not say which"),
        (lambda handler: handler.reply(416, b""), "no such part"),
    ],
    ids=["another range", "no range", "416"],
)
def test_another_part_than_was_asked_for(
    two: tuple[servers.FileServer, servers.FileServer], answer: servers.Answer, words: str
) -> None:
    here, _ = two
    here.answers["/a"] = answer
    source: Any = open_source(here.url, resolve())
    assert isinstance(source, ObjectStoreSource)
    try:
        with pytest.raises(errors.SourceError, match=words):
            source.fetch_range("a", 10, 500)
    finally:
        source.close()


@pytest.mark.parametrize("changed", [False, True], ids=["a page", "another object"])
def test_a_store_that_answers_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool) -> None:
    """Moto's S3 behind a proxy that has a page of its own, or an object with another etag, in place of one object."""
    set_limits(monkeypatch, retry_seconds=1)
    with servers.moto_server() as moto, servers.http_server(tmp_path) as front:
        front.behind = moto
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": front.url, "AWS_ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3", endpoint_url=moto, region_name="us-east-1").create_bucket(Bucket="answers")
        for number in range(6):
            servers.put_into_moto("answers", f"{number}.bin", bytes([number]) * SIZE)
        headers = {"ETag": '"another"'} if changed else {}
        front.answers["/answers/3.bin"] = lambda handler: handler.reply(200, b"something else", headers)
        dataset = prefeed.datasets.Objects("s3://answers", pattern="*.bin")
        assert [dataset[number] for number in (0, 1, 2, 4, 5)] == [bytes([number]) * SIZE for number in (0, 1, 2, 4, 5)]
        if changed:
            assert dataset[3] == b"something else"
            assert prefeed.statistics().errors["object-changed"] >= 1
        else:
            with pytest.raises(errors.WrongAnswerError, match=r"s3://answers/3\.bin: 14 bytes came, 1000 are listed"):
                dataset[3]
            assert prefeed.statistics().errors["wrong-answer"] >= 2
        assert prefeed.statistics().resident_objects == 5
        prefeed.datasets._readers.close()
