"""Objects that are stored compressed, and stores that variables of other tools name: small servers that speak Google's and Azure's HTTP."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest

import prefeed
import servers
from limits import set_limits
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import AccessDeniedError, CredentialsError, SourceError
from prefeed.files import close
from sandbox import Sandbox

PLAIN = b"".join(b"%07d\n" % number for number in range(40_000))
STORED = gzip.compress(PLAIN, mtime=0)
KEY = "c2VjcmV0LWtleQ=="
"""Of Azure's account."""


@pytest.fixture
def server(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.FileServer]:
    """Has one object, ``d/x.gz``, in a bucket or container ``b``, which it lists as Google and Azure do."""
    set_limits(monkeypatch, block_bytes=64 * 1024, start_seconds=120, retry_seconds=1)
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "b" / "d").mkdir(parents=True)
    (tmp_path / "b" / "d" / "x.gz").write_bytes(STORED)
    with servers.http_server(tmp_path) as server:
        server.ranges = True
        server.answers["/b"] = list_bucket
        yield server
        close()


def list_bucket(handler: servers.Handler) -> None:
    """List the object, to Google's clients and to Azure's."""
    size, time = len(STORED), "2026-01-01T00:00:00.000Z"
    if "comp" in parse_qs(urlsplit(handler.path).query):
        body = (
            f"<EnumerationResults><Blobs><Blob><Name>d/x.gz</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT"
            f"</Last-Modified><Etag>{escape(etag())}</Etag><Content-Length>{size}</Content-Length><Content-Type>x</Content-Type>"
            "</Properties></Blob></Blobs><NextMarker/></EnumerationResults>"
        )
    else:
        body = (
            f"<ListBucketResult><Contents><Key>d/x.gz</Key><Size>{size}</Size><LastModified>{time}</LastModified>"
            f"<ETag>{escape(etag())}</ETag></Contents></ListBucketResult>"
        )
    handler.reply(200, body.encode(), {"Content-Type": "application/xml"})


def etag() -> str:
    return '"stored"'


def send_stored(handler: servers.Handler, headers: dict[str, str]) -> None:
    """Send the object, or a part of it, as it is stored."""
    headers = {"ETag": etag(), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", **headers}
    asked = handler.headers.get("Range")
    if asked is None:
        handler.reply(200, STORED, headers)
        return
    first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
    last = min(last, len(STORED) - 1)
    handler.reply(206, STORED[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(STORED)}"})


def decompressive(handler: servers.Handler) -> None:
    """Answer as Google does: decompressed, without a length and without ranges, to clients that do not take gzip."""
    if "gzip" in handler.headers.get("Accept-Encoding", ""):
        send_stored(handler, {"Content-Encoding": "gzip"})
        return
    handler.send_response(200)
    for name, value in {
        "ETag": etag(),
        "x-goog-stored-content-encoding": "gzip",
        "Transfer-Encoding": "chunked",
    }.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(PLAIN), PLAIN))


def encoded(handler: servers.Handler) -> None:
    """Answer as S3, Azure and web servers with compressed files do: as stored, whatever the client takes."""
    send_stored(handler, {"Content-Encoding": "gzip"})


@pytest.mark.parametrize("url", ["gs://b", "{}/b", "{}/b?sig=x"], ids=["store", "web", "signed"])
@pytest.mark.parametrize("answer", [decompressive, encoded], ids=lambda answer: answer.__name__)
def test_objects_that_are_stored_compressed(
    server: servers.FileServer, answer: servers.Answer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    server.answers["/b/d/x.gz"] = answer
    server.answers["/b/index.txt"] = lambda handler: handler.reply(200, b"d/x.gz\t%d\n" % len(STORED))
    root, mark, query = url.format(server.url).partition("?")
    dataset = prefeed.datasets.Objects(root + mark + query)
    assert list(prefeed.DataLoader(dataset, batch_size=None)) == [STORED]
    with prefeed.open(f"{root}/d/x.gz{mark}{query}") as file:
        assert file.size == len(STORED)
        assert file.read(10) == STORED[:10]
        assert file.read() == STORED[10:]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STORAGE_EMULATOR_HOST", "{host}"),
        ("GOOGLE_BASE_URL", "{}"),
    ],
    ids=["emulator", "base url"],
)
def test_a_google_store_of_ones_own(
    server: servers.FileServer, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value.format(server.url, host=urlsplit(server.url).netloc))
    (data,) = list(prefeed.DataLoader(prefeed.datasets.Objects("gs://b/d"), batch_size=None))
    assert data == STORED
    assert not any("Authorization" in headers for _, _, headers in server.requests)


@pytest.mark.parametrize(
    ("value", "how"),
    [
        ("DefaultEndpointsProtocol=http;AccountName=me;AccountKey={key};BlobEndpoint={};", "SharedKey me:"),
        ("BlobEndpoint={}/;AccountName=me;SharedAccessSignature=?sv=1&sig=abc", "sig=abc"),
    ],
    ids=["key", "SAS"],
)
def test_a_connection_string_of_azure(
    server: servers.FileServer, value: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def answer(handler: servers.Handler) -> None:
        seen.append(handler.headers.get("Authorization", "") + handler.path)
        send_stored(handler, {})

    server.answers["/b/d/x.gz"] = answer
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", value.format(server.url, key=KEY))
    with prefeed.open("az://b/d/x.gz") as file:
        assert file.read() == STORED
    assert list(prefeed.DataLoader(prefeed.datasets.Objects("az://b"), batch_size=None)) == [STORED]
    assert all(how in told for told in seen)


def test_a_connection_string_without_an_account(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountKey={KEY}")
    with pytest.raises(CredentialsError, match="AZURE_STORAGE_CONNECTION_STRING names neither") as caught:
        prefeed.open("az://b/x")
    assert KEY not in str(caught.value)


def test_google_credentials_of_another_type(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wif.json").write_text('{"type": "external_account", "audience": "x"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "wif.json"))
    for act in (lambda: prefeed.open("gs://b/x"), lambda: prefeed.datasets.Objects("gs://b")):
        with pytest.raises(AccessDeniedError, match=r"external_account.* set GOOGLE_BEARER_TOKEN"):
            act()
    close()


# ---------------------------------------------------------------- certificates


@pytest.fixture
def encrypted(server: servers.FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Let the server speak TLS; return its URL and the file with its authority, which the running node server knows nothing of."""
    NodeClient.connect(resolve()).close()
    url = server.url.replace("http:", "https:")
    for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": url}.items():
        monkeypatch.setenv(name, value)
    server.answers["/b/d/x.gz"] = encoded
    server.answers["/b/index.txt"] = lambda handler: handler.reply(200, b"d/x.gz\t%d\n" % len(STORED))
    return url, servers.encrypt(server, tmp_path)


def read_all(url: str) -> None:
    root, mark, query = url.partition("?")
    with prefeed.open(f"{root}/d/x.gz{mark}{query}") as file:
        assert file.read() == STORED
    assert list(prefeed.DataLoader(prefeed.datasets.Objects(url), batch_size=None)) == [STORED]


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("s3://b", "AWS_CA_BUNDLE"),
        ("s3://b", "SSL_CERT_FILE"),
        ("{}/b", "REQUESTS_CA_BUNDLE"),
        ("{}/b?sig=x", "REQUESTS_CA_BUNDLE"),
    ],
)
def test_variables_that_name_certificates(
    encrypted: tuple[str, str], url: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, trusted = encrypted
    monkeypatch.setenv(variable, trusted)
    read_all(url.format(base))


@pytest.mark.parametrize(
    ("url", "variable"),
    [("s3://b", "AWS_CA_BUNDLE"), ("{}/b", "REQUESTS_CA_BUNDLE"), ("{}/b?sig=x", "REQUESTS_CA_BUNDLE")],
)
def test_a_certificate_that_is_not_trusted(
    encrypted: tuple[str, str], url: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, _ = encrypted
    with pytest.raises(SourceError, match=f"certificate is not trusted; set {variable} to a file"):
        read_all(url.format(base))
    for text in ("", "no certificate"):
        (tmp_path / "bad.pem").write_text(text)
        monkeypatch.setenv(variable, str(tmp_path / "bad.pem"))
        with pytest.raises(SourceError, match=r"bad\.pem, which .*_CA_BUNDLE.* names"):
            read_all(url.format(base))
