"""URLs of web servers with a query, and bearer tokens: sent with each request, shown and kept nowhere, no part of an object's identity."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import fsspec
import pytest
import torch

import prefeed
import servers
from limits import set_limits
from prefeed.config import resolve
from prefeed.errors import AccessDeniedError, CannotListError, CredentialsError
from prefeed.files import close
from prefeed.sources.signed_urls import named_by
from sandbox import Sandbox

BLOCK = 64 * 1024
DATA = b"".join(b"%07d\n" % number for number in range(40_000))
SECRET = "5ecret%2Bof%2Fthe+URL"
"""In each signature of these tests."""


class Signed:
    """A web server that gives an object only for a query that it knows, and only to GET, as stores do for presigned URLs.

    Attributes:
        valid: Queries that it takes.
        asked: Method, query and headers of each request, in order.
        body: Of its refusals.
    """

    def __init__(self, server: servers.FileServer) -> None:
        self.server = server
        self.valid: set[str] = set()
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.body = b"<Error><Code>SignatureDoesNotMatch</Code></Error>"

    @property
    def url(self) -> str:
        return f"{self.server.url}/d/x.bin"

    def __call__(self, handler: servers.Handler) -> None:
        query = urlsplit(handler.path).query
        self.asked.append((handler.command, query, dict(handler.headers)))
        if handler.command == "HEAD" or query not in self.valid:
            handler.reply(403, self.body)
        else:
            handler.serve_file()

    def sign(self, query: str) -> str:
        """Return a URL with this query, which is taken from now on."""
        self.valid.add(query)
        return f"{self.url}?{query}"


def s3(number: int = 1, *, began: datetime | None = None) -> str:
    """Return a query as S3's presigned URLs have it, valid for an hour."""
    date = (began or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    return (
        f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA{number}%2F20261101&X-Amz-Date={date}&X-Amz-Expires=3600"
        f"&X-Amz-SignedHeaders=host&X-Amz-Signature={SECRET}{number}"
    )


def google(number: int = 1) -> str:
    return f"X-Goog-Algorithm=GOOG4&X-Goog-Credential=me%40x{number}&X-Goog-Signature={SECRET}{number}"


def azure(number: int = 1) -> str:
    return (
        f"sv=2026-02-06&st=2026-01-0{number}T00%3A00%3A00Z&se=2099-01-01T00%3A00%3A00Z&sr=b&sp=r&sig={SECRET}{number}"
    )


def cloudfront(number: int = 1) -> str:
    return f"Expires={4_000_000_000 + number}&Signature={SECRET}{number}&Key-Pair-Id=K2J"


KINDS: list[Callable[[int], str]] = [s3, google, azure, cloudfront]


@pytest.fixture
def store(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Signed]:
    set_limits(monkeypatch, block_bytes=64 * 1024, start_seconds=120)
    root = tmp_path / "www"
    (root / "d").mkdir(parents=True)
    (root / "d" / "x.bin").write_bytes(DATA)
    os.utime(root / "d" / "x.bin", (1_700_000_000, 1_700_000_000))
    with servers.http_server(root) as server:
        server.ranges = True
        found = Signed(server)
        server.answers["/d/x.bin"] = found
        yield found
        close()
        prefeed.datasets._readers.close()


def require_secret_nowhere(sandbox: Sandbox, *texts: str) -> None:
    """The signature is in no file that prefeed made, and in no text."""
    words = [word.encode() for word in ("5ecret", "X-Amz-Cred", "AKIA1")]
    for file in sandbox.root.rglob("*"):
        assert not file.is_file() or not any(word in file.read_bytes() for word in words), file
    for text in texts:
        assert not any(word.decode() in text for word in words)


def test_another_signature_of_an_object_is_a_hit(
    store: Signed, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for kind in KINDS:
        name = kind.__name__
        (store.server.directory / "d" / name).write_bytes(DATA)
        store.server.answers[f"/d/{name}"] = store
        first, other = kind(1), kind(2)
        store.valid |= {first, other}
        store.asked.clear()
        with prefeed.open(f"{store.server.url}/d/{name}?{first}") as file:
            assert file.read() == DATA
            require_secret_nowhere(sandbox, repr(file), str(file.name))
        assert {query for _, query, _ in store.asked} == {first}
        store.asked.clear()
        with prefeed.open(f"{store.server.url}/d/{name}?{other}") as file:
            assert file.read() == DATA
        assert {(method, query) for method, query, _ in store.asked} == {("GET", other)}
        assert all(headers.get("Range") == "bytes=0-0" for _, _, headers in store.asked)
    require_secret_nowhere(sandbox, caplog.text)


def test_what_names_the_object_in_a_query_keeps_objects_apart(store: Signed) -> None:
    """One path, one size, and no version: only the query says which object it is."""
    bodies = {"1": b"one", "2": b"two"}

    def answer(handler: servers.Handler) -> None:
        handler.reply(200, bodies[parse_qs(urlsplit(handler.path).query)["id"][0]])

    store.server.answers["/download"] = answer
    url = f"{store.server.url}/download"
    for number, token in (("1", "a"), ("2", "b"), ("1", "c")):
        with prefeed.open(f"{url}?id={number}&token={token}") as file:
            assert file.read() == bodies[number]
    assert prefeed.read(f"{url}?id=2&token=d") == b"two"


NAMES = [
    ("token=a", "token=b"),
    ("access_token=a", "access_token=b"),
    ("md5=1", "md5=2"),
    ("policy=1", "policy=2"),
    ("exp=5&sig=x", "exp=6&sig=x"),
    ("si=5&sig=x", "si=6&sig=x"),
    ("x-id=1", "x-id=2"),
    ("q-id=1", "q-id=2"),
    ("response-id=1&sig=x", "response-id=2&sig=x"),
    ("id=1&id=2", "id=2&id=1"),
    ("f=%E8", "f=%E9"),
    ("f=a+b", "f=a%20b"),
    ("f=a%2Bb", "f=a+b"),
    (f"versionId=1&{s3()}", f"versionId=2&{s3()}"),
    (f"partNumber=1&{s3()}", f"partNumber=2&{s3()}"),
    (f"snapshot=1&{azure()}", f"snapshot=2&{azure()}"),
]
"""Pairs of queries that may name two objects."""


def test_two_queries_that_may_name_two_objects(store: Signed) -> None:
    """All have one size and one time, so that the second of a pair would be taken from the cache."""
    bodies = {query: b"%02d" % number for number, query in enumerate(query for pair in NAMES for query in pair)}

    def answer(handler: servers.Handler) -> None:
        handler.reply(200, bodies[urlsplit(handler.path).query], {"Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT"})

    found = {}
    for number, pair in enumerate(NAMES):
        store.server.answers[f"/{number}"] = answer
        for query in pair:
            with prefeed.open(f"{store.server.url}/{number}?{query}") as file:
                found[query] = file.read()
    assert found == bodies


@pytest.mark.parametrize(
    "query",
    [
        "token=TOKEN&expires=1800000000", "md5=TOKEN&expires=1800000000", "Policy=TOKEN&Signature=TOKEN&Key-Pair-Id=K", "verify=1800000000-TOKEN",
        "authorization=bce-auth-v1%2FTOKEN", "q-sign-algorithm=sha1&q-ak=TOKEN&q-signature=TOKEN&x-cos-security-token=TOKEN",
        "OSSAccessKeyId=A&Expires=1800000000&Signature=TOKEN&security-token=TOKEN", "response-content-type=a%2FTOKEN&X-Amz-Signature=TOKEN",
    ],
)  # fmt: skip
def test_signatures_of_other_kinds(query: str) -> None:
    marks = {named_by(f"?id=1&{query.replace('TOKEN', word)}") for word in ("aaa", "bbb")}
    assert marks == {named_by("?id=1")}
    assert named_by("?a=1&b=2") == named_by("?b=2&a=1")


class Urls(torch.utils.data.Dataset[bytes]):
    """Objects whose URLs are signed, opened one by one."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, index: int) -> bytes:
        with prefeed.open(self.urls[index]) as file:
            return bytes(file.read())


def test_signed_urls_in_a_dataset(store: Signed, sandbox: Sandbox) -> None:
    names = [f"{number}.bin" for number in range(6)]
    for number, name in enumerate(names):
        (store.server.directory / "d" / name).write_bytes(bytes([number]) * 1000)
        store.server.answers[f"/d/{name}"] = store
    store.valid.add(query := s3())
    dataset = Urls([f"{store.server.url}/d/{name}?{query}" for name in names])
    for _ in range(2):
        loader = prefeed.DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list)
        assert [data for batch in loader for data in batch] == [bytes([number]) * 1000 for number in range(6)]
    assert sum("Range" not in headers for _, _, headers in store.asked) == len(names)
    require_secret_nowhere(sandbox)


def test_a_signed_shard_in_a_stream_and_through_fsspec(store: Signed, sandbox: Sandbox) -> None:
    url = store.sign(s3())
    (file,) = [bytes(file.read()) for file in prefeed.shards([url])]
    assert file == DATA
    filesystem = fsspec.filesystem("prefeed")
    assert filesystem.cat_file(url, 100, 200) == DATA[100:200]
    assert filesystem.glob(f"prefeed://{url}") == [f"prefeed://{url}"]
    with fsspec.open(f"prefeed://{url}") as opened:
        assert opened.read() == DATA
    require_secret_nowhere(sandbox)


def test_a_signed_object_is_warmed(store: Signed, sandbox: Sandbox) -> None:
    command = [sys.executable, "-m", "prefeed", "warm", store.sign(s3()), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(result.stdout)
    assert (told["resident"], told["failed"]) == (told["objects"], 0) == (-(-len(DATA) // BLOCK), 0)
    store.asked.clear()
    with prefeed.open(store.sign(s3(2))) as file:
        assert file.read() == DATA
    assert len(store.asked) == 1
    require_secret_nowhere(sandbox, result.stdout, result.stderr)


def test_a_root_with_a_query(store: Signed, sandbox: Sandbox) -> None:
    """A token for a whole directory is sent for its index and for each object."""
    servers.write_index(store.server.directory / "d")
    store.server.answers["/d/index.txt"] = store
    query = "sv=2026-02-06&sr=c&sp=rl&sig=" + SECRET
    store.valid.add(query)
    dataset = prefeed.datasets.Objects(f"{store.server.url}/d?{query}")
    assert list(prefeed.DataLoader(dataset, batch_size=None)) == [DATA]
    assert "5ecret" not in repr(dataset)
    assert b"5ecret" not in pickle.dumps(dataset)
    require_secret_nowhere(sandbox)
    with pytest.raises(CannotListError, match=r"query of the URL.*prefeed\.open") as caught:
        prefeed.datasets.Objects(f"{store.server.url}/d?sig=wrong-{SECRET}")
    require_secret_nowhere(sandbox, str(caught.value))


@pytest.mark.parametrize(
    ("query", "body", "words"),
    [
        (s3(began=datetime.now(UTC) - timedelta(hours=2)), b"", "expired at 20.* UTC"),
        (f"Expires=1700000000&Signature={SECRET}&Key-Pair-Id=K", b"", "expired at 2023-11-14 22:13:20 UTC"),
        (f"sv=1&se=2020-01-01T00%3A00%3A00Z&sig={SECRET}", b"", "expired at 2020-01-01 00:00:00 UTC"),
        (f"X-Goog-Signature={SECRET}", b"<Error><Code>ExpiredToken</Code></Error>", "URL has expired"),
        (
            f"sig={SECRET}",
            b"<Error><Code>AuthenticationFailed</Code><AuthenticationErrorDetail>Signature not valid in the specified time frame: 5ecret",
            "URL has expired",
        ),
        (f"sig={SECRET}", b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message>", "URL has expired"),
        (s3(), b"<Error><SignatureProvided>5ecret</SignatureProvided>", "signed for this object"),
    ],
    ids=["s3", "cloudfront", "azure", "google says so", "azure says so", "s3 says so", "another"],
)
def test_a_signature_that_is_refused(
    store: Signed, sandbox: Sandbox, query: str, body: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.body = body
    with pytest.raises(AccessDeniedError, match=words) as caught:
        prefeed.open(f"{store.url}?{query}")
    assert store.url in str(caught.value)
    chain: list[str] = []
    err: BaseException | None = caught.value
    while err is not None:
        chain.append(repr(err))
        err = err.__cause__ or err.__context__
    del err
    require_secret_nowhere(sandbox, *chain, caplog.text)


def test_a_redirect_takes_no_signature_along(store: Signed, tmp_path: Path) -> None:
    with servers.http_server(store.server.directory) as other:
        other.ranges = True
        store.server.answers["/d/x.bin"] = servers.redirected(302, f"{other.url}/d/x.bin")
        with prefeed.open(store.sign(s3())) as file:
            assert file.read(100) == DATA[:100]
        assert other.requests
        assert "5ecret" not in repr(other.requests)


# ---------------------------------------------------------------- bearer tokens


class Guarded:
    """A web server that gives objects only for a token."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.asked: list[str] = []

    def __call__(self, handler: servers.Handler) -> None:
        given = handler.headers.get("Authorization", "")
        self.asked.append(given)
        if given == f"Bearer {self.token}":
            handler.serve_file()
        else:
            handler.reply(401, b"")


def test_a_bearer_token(
    store: Signed, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is sent to the servers that it is named for; a renewed one is taken while the server and the dataset stay."""
    caplog.set_level(logging.DEBUG)
    names = [f"{number:02}.bin" for number in range(8)]
    for name in names:
        (store.server.directory / "d" / name).write_bytes(name.encode())
    servers.write_index(store.server.directory / "d")
    guard = Guarded("5ecret-1")
    for name in ("index.txt", "x.bin", *names):
        store.server.answers[f"/d/{name}"] = guard
    monkeypatch.setenv("PREFEED_BEARER_TOKENS", f"http://other.example AAA {store.server.url}/d 5ecret-1")
    dataset = prefeed.datasets.Objects(f"{store.server.url}/d", pattern="*.bin")
    loader = prefeed.DataLoader(dataset, batch_size=None)
    expected = [name.encode() for name in names] + [DATA]
    assert list(loader) == expected
    assert set(guard.asked) == {"Bearer 5ecret-1"}
    assert prefeed.read(f"{store.server.url}/d/00.bin") == b"00.bin"
    guard.token = "5ecret-2"
    for name in names:
        (store.server.directory / "d" / name).write_bytes(b"new " + name.encode())
    with pytest.raises(AccessDeniedError, match="PREFEED_BEARER_TOKENS"):
        prefeed.open(f"{store.server.url}/d/00.bin")
    monkeypatch.setenv("PREFEED_BEARER_TOKENS", f"{store.server.url}/d 5ecret-2")
    with prefeed.open(f"{store.server.url}/d/00.bin") as file:
        assert file.read() == b"new 00.bin"
    servers.write_index(store.server.directory / "d")
    again = prefeed.datasets.Objects(f"{store.server.url}/d", pattern="*.bin")
    assert list(prefeed.DataLoader(again, batch_size=None)) == [b"new " + name for name in expected[:-1]] + [DATA]
    assert b"5ecret" not in pickle.dumps(dataset)
    require_secret_nowhere(sandbox, caplog.text, repr(resolve()))


def test_tokens_of_other_servers_and_bad_ones(store: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    guard: Any = Guarded("x")
    store.server.answers["/d/x.bin"] = guard
    monkeypatch.setenv("PREFEED_BEARER_TOKENS", f"{store.server.url}/other 5ecret {store.server.url}/d/x 5ecret")
    with pytest.raises(AccessDeniedError):
        prefeed.read(f"{store.server.url}/d/x.bin")
    assert set(guard.asked) == {""}
    for bad in ("5ecret", f"{store.server.url}", f"{store.server.url} 5ecret 5ecret", "example.org 5ecret"):
        monkeypatch.setenv("PREFEED_BEARER_TOKENS", bad)
        with pytest.raises(CredentialsError, match="https://HOST/PATH TOKEN") as caught:
            prefeed.read(f"{store.server.url}/d/x.bin")
        assert "5ecret" not in str(caught.value)
