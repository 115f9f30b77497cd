"""The table of errors, against a server that fails in every way a real one does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import servers
from prefeed.config import Config
from prefeed.errors import (
    AccessDeniedError,
    CannotListError,
    ObjectNotFoundError,
    SourceError,
    ThrottledError,
    TransientSourceError,
    TruncatedBodyError,
)
from prefeed.limits import Limits
from prefeed.sources.store_errors import cause_of, translate
from prefeed.sources.urls import open_source
from source_contract import list_all

pytestmark = pytest.mark.usefixtures("sandbox")

SLOW_DOWN = b"<Error><Code>SlowDown</Code></Error>"
EXPIRED = b"<Error><Code>ExpiredToken</Code></Error>"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.FileServer]:
    with servers.http_server(tmp_path) as server:
        yield server


@pytest.fixture(params=["http", "s3"])
def root(request: pytest.FixtureRequest, server: servers.FileServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": server.url}.items():
        monkeypatch.setenv(name, value)
    return f"{server.url}/bucket" if request.param == "http" else "s3://bucket"


def fetch_error(root: str, config: Config | None = None) -> SourceError:
    source = open_source(root, config or Config(limits=Limits(request_seconds=60.0)))
    try:
        with pytest.raises(SourceError) as caught:
            source.fetch("a.bin")
    finally:
        source.close()
    assert f"{root}/a.bin" in str(caught.value)
    assert "testing-secret" not in str(caught.value)
    assert caught.value.__cause__ is not None
    return caught.value


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b"", SourceError),
        (400, EXPIRED, AccessDeniedError),
        (401, b"", AccessDeniedError),
        (403, b"", AccessDeniedError),
        (404, b"", ObjectNotFoundError),
        (408, b"", TransientSourceError),
        (410, b"", ObjectNotFoundError),
        (429, b"", ThrottledError),
        (500, b"", TransientSourceError),
        (501, b"", SourceError),
        (502, b"", TransientSourceError),
        (503, b"", ThrottledError),
        (503, SLOW_DOWN, ThrottledError),
        (504, b"", TransientSourceError),
    ],
)
def test_statuses(server: servers.FileServer, root: str, status: int, body: bytes, expected: type[SourceError]) -> None:
    server.answers["/bucket/a.bin"] = servers.status(status, body)
    error = fetch_error(root)
    assert type(error) is expected
    assert str(status) in str(error)
    assert len(server.requests) == 1  # Whether to try again is decided elsewhere.


def test_a_connection_that_breaks_off(server: servers.FileServer, root: str) -> None:
    server.answers["/bucket/a.bin"] = servers.truncated
    assert type(fetch_error(root)) is TruncatedBodyError


@pytest.mark.parametrize("answer", [servers.silent, servers.stalled])
def test_a_server_that_falls_silent(server: servers.FileServer, root: str, answer: servers.Answer) -> None:
    server.answers["/bucket/a.bin"] = answer
    error = fetch_error(root, Config(limits=Limits(request_seconds=0.2)))
    assert type(error) is TransientSourceError
    assert "0.2 s" in str(error)


def test_no_server_listens() -> None:
    error = fetch_error(f"http://127.0.0.1:{servers.free_port()}/bucket")
    assert type(error) is TransientSourceError


def test_a_host_that_does_not_exist() -> None:
    assert type(fetch_error("http://host.invalid/bucket")) is TransientSourceError


def test_an_answer_of_a_store_without_a_length_is_refused(
    server: servers.FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chunked(handler: servers.Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"3\r\nabc\r\n0\r\n\r\n")

    server.answers["/bucket/a.bin"] = chunked
    for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": server.url, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    assert "Content-Length" in str(fetch_error("s3://bucket"))


@pytest.mark.parametrize("path", ["../a", "a/./b", "a/.."])
def test_names_that_no_web_server_has(server: servers.FileServer, path: str) -> None:
    with pytest.raises(ObjectNotFoundError, match="cannot be the name"):
        open_source(server.url, Config()).fetch(path)


def test_user_and_password_are_sent_and_never_told(server: servers.FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    source = open_source(server.url.replace("://", "://user:pass%40word@"), Config())
    assert bytes(source.fetch("a.bin").data) == b"1"
    headers = {name.lower(): value for name, value in server.requests[-1][2].items()}
    assert headers["authorization"] == "Basic dXNlcjpwYXNzQHdvcmQ="
    assert "pass" not in source.url
    server.answers["/a.bin"] = servers.status(403)
    with pytest.raises(AccessDeniedError) as caught:
        source.fetch("a.bin")
    shown = f"{caught.value} {caught.value.details} {caught.value.__cause__}"
    assert "user:" not in shown
    assert "dXNl" not in shown


def test_what_is_said_of_a_foreign_error_holds_no_secret() -> None:
    raw = OSError("GET https://u:secret@h/c/p?sv=1&sig=hidden%3D failed")
    shown = f"{translate(raw, 'az://c/p', timeout=1.0)} {cause_of(raw)}"
    assert "secret" not in shown
    assert "hidden" not in shown


@pytest.mark.parametrize(
    ("where", "variable"),
    [
        ("s3://b/x", "AWS_ACCESS_KEY_ID"),
        ("gs://b/x", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://c/x", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_missing_credentials_are_those_of_the_store(where: str, variable: str) -> None:
    """The status is the metadata server's, which the user knows nothing of."""
    raw = OSError("Client error with status 403 Forbidden for http://169.254.169.254/latest/api/token")
    text = str(translate(raw, where, timeout=1.0))
    assert f"no credentials found; check {variable}" in text
    assert "403" not in text
    others = {"AWS_", "GOOGLE_", "AZURE_"} - {f"{variable.partition('_')[0]}_"}
    assert not any(other in text for other in others)


def test_what_no_table_may_swallow_comes_back() -> None:
    interrupt = KeyboardInterrupt()
    assert translate(interrupt, "x", timeout=1.0) is interrupt
    error = ThrottledError("x")
    assert translate(error, "x", timeout=1.0) is error


def test_a_native_panic_is_an_error_like_others() -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    assert isinstance(translate(panic("boom {}"), "x", timeout=1.0), SourceError)


def test_loopback_is_not_sent_to_a_proxy(
    server: servers.FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{servers.free_port()}")
    assert bytes(open_source(server.url, Config()).fetch("a.bin").data) == b"1"


@pytest.mark.parametrize("variable", ["AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST"])
def test_public_buckets_need_no_credentials(
    server: servers.FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "a.bin").write_bytes(b"1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv(variable, "true")
    assert bytes(open_source("s3://bucket", Config()).fetch("a.bin").data) == b"1"
    assert "authorization" not in {name.lower() for name in server.requests[-1][2]}


# ---------------------------------------------------------------- listings


def test_no_index_and_no_webdav_says_how_to_make_an_index(server: servers.FileServer) -> None:
    with pytest.raises(CannotListError) as caught:
        list_all(open_source(f"{server.url}/data", Config()))
    assert f"{server.url}/data" in str(caught.value)
    assert "find . -type f -printf '%P\\t%s\\n' > index.txt" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "expected"), [(403, AccessDeniedError), (503, ThrottledError), (500, TransientSourceError)]
)
def test_an_index_that_cannot_be_read_is_not_taken_for_none(
    server: servers.FileServer, status: int, expected: type[SourceError]
) -> None:
    server.answers["/index.txt"] = servers.status(status)
    with pytest.raises(expected):
        list_all(open_source(server.url, Config()))


def test_an_index_that_breaks_off_is_not_taken_for_whole(server: servers.FileServer) -> None:
    server.answers["/index.txt"] = servers.truncated
    with pytest.raises(TruncatedBodyError):
        list_all(open_source(server.url, Config()))


def test_a_bucket_that_does_not_exist(server: servers.FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": server.url}.items():
        monkeypatch.setenv(name, value)
    server.answers["/bucket"] = servers.status(404, b"<Error><Code>NoSuchBucket</Code></Error>")
    with pytest.raises(ObjectNotFoundError, match="NoSuchBucket"):
        list_all(open_source("s3://bucket/p", Config()))
