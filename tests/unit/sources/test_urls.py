import os
from pathlib import Path

import pytest

from prefeed.config import Config
from prefeed.errors import ConfigError, UnknownSchemeError
from prefeed.sources.objectstore import ObjectStoreSource
from prefeed.sources.posix import PosixSource
from prefeed.sources.urls import canonical_url, open_source, split_object, without_credentials


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("/data/train", "/data/train"),
        ("/data/train/", "/data/train"),
        ("//data/./train/../train", "/data/train"),
        ("/", "/"),
        ("file:///data/train/", "/data/train"),
        ("file://localhost/data/my%20set", "/data/my set"),
        ("FILE:///data", "/data"),
        ("/data/100%/a b", "/data/100%/a b"),
        ("s3://Bucket/some/prefix/", "s3://Bucket/some/prefix"),
        ("s3://bucket", "s3://bucket"),
        ("s3://key:secret@bucket/p", "s3://bucket/p"),
        ("gs://bucket/p?x=1#y", "gs://bucket/p"),
        ("az://container/p/", "az://container/p"),
        ("HTTP://Example.ORG:80/Data/", "http://example.org/Data"),
        ("https://example.org:443", "https://example.org"),
        ("https://example.org:8443/a b/", "https://example.org:8443/a%20b"),
        ("https://user:pass%40word@example.org/d?sig=abc", "https://example.org/d"),
        ("http://[::1]:8000/d", "http://[::1]:8000/d"),
    ],
)
def test_canonical_url(given: str, canonical: str) -> None:
    assert canonical_url(given) == canonical
    assert canonical_url(canonical) == canonical


def test_relative_paths_and_home_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert canonical_url("data") == f"{tmp_path}/data"
    assert canonical_url(Path("data")) == f"{tmp_path}/data"
    assert canonical_url("~/data") == "/home/somebody/data"


def test_a_path_that_only_this_process_has_becomes_one_of_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert canonical_url("/proc/self/cwd/data") == canonical_url("file:///proc/self/cwd/data") == f"{tmp_path}/data"
    held = os.open(tmp_path, os.O_RDONLY)
    assert canonical_url(f"/dev/fd/{held}/data") == f"{tmp_path}/data"
    os.close(held)


def test_a_path_that_is_not_utf8_survives() -> None:
    path = os.fsdecode(b"/data/\xff\xfe")
    assert canonical_url(path) == path
    assert canonical_url("file:///data/%FF%FE") == path


def test_unknown_scheme_names_the_known_ones_and_no_password() -> None:
    with pytest.raises(UnknownSchemeError) as caught:
        open_source("ftp://user:secret@host/data?token=hidden", Config())
    for known in ("file://", "s3://", "gs://", "az://", "http://", "https://"):
        assert known in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "http://", "file://otherhost/data", "http://host:port/x"])
def test_urls_that_name_nothing(url: str) -> None:
    with pytest.raises(ConfigError):
        canonical_url(url)


def test_open_source_chooses_by_scheme() -> None:
    assert isinstance(open_source("/data", Config()), PosixSource)
    assert isinstance(open_source("file:///data", Config()), PosixSource)
    for url in ("s3://b/p", "gs://b", "az://c/p", "http://host/p", "https://host"):
        source = open_source(url, Config())
        assert isinstance(source, ObjectStoreSource)
        assert source.url == url


def test_without_credentials() -> None:
    assert without_credentials("https://u:p@h/x?sig=1") == "https://h/x"
    assert without_credentials("/plain/a@b") == "/plain/a@b"


def test_a_sample_set_is_no_url_of_a_source() -> None:
    with pytest.raises(UnknownSchemeError, match="prefeed sampleset describe` shows where its data is"):
        canonical_url("sampleset://imagenet/train")


@pytest.mark.parametrize(
    ("given", "root", "path"),
    [
        ("s3://b/d/x.tar", "s3://b/d", "x.tar"),
        ("s3://b/x", "s3://b", "x"),
        ("s3://b/d/a?b#c%20d", "s3://b/d", "a?b#c%20d"),
        ("s3://b/d?e/x", "s3://b", "d?e/x"),
        ("s3://key:secret@b/d/x", "s3://key:secret@b/d", "x"),
        ("https://example.org/d/a%3Fb", "https://example.org/d", "a?b"),
        ("s3://b/a//x", "s3://b", "a//x"),
        ("s3://b//x", "s3://b", "/x"),
        ("s3://b/a/../x", "s3://b", "a/../x"),
        ("s3://b/a\tb/x\r", "s3://b", "a\tb/x\r"),
        ("https://example.org/d//e/x", "https://example.org/d//e", "x"),
        ("https://example.org/d/a%3Fb?id=1&sig=a/b+c%2F", "https://example.org/d?id=1&sig=a/b+c%2F", "a?b"),
        ("https://me:secret@example.org/x?sig=a b\r\n", "https://me:secret@example.org?sig=a%20b%0D%0A", "x"),
        ("s3://b/x?sig=1", "s3://b", "x?sig=1"),
        ("https://example.org/d//x", "https://example.org", "d//x"),
        ("https://example.org//x%09", "https://example.org", "/x\t"),
        ("/data/a?b#c", "/data", "a?b#c"),
        ("/x", "/", "x"),
        ("file:///data/my%20file", "/data", "my file"),
    ],
)
def test_the_url_of_an_object_is_a_root_and_a_path(given: str, root: str, path: str) -> None:
    assert split_object(given) == (root, path)


@pytest.mark.parametrize(
    "given",
    [
        "gs://b/a//x",
        "az://b//x",
        "gs://b//d/x",
        "https://h/d/a%2Fx",
        "https://h/d/a%2fx",
    ],
)
def test_what_would_be_another_object_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"has (//|%2F) in its"):
        split_object(given)


@pytest.mark.parametrize(
    "given",
    [
        "http://example.org/d/a#b",
        "http://example.org/d/a?sig=b#c",
        "http://example.org?sig=b",
        "https://example.org/d/a?b",
        "s3://b",
        "s3://b/",
        "s3:///x",
    ],
)
def test_what_names_no_object_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"fragment|%3F|names no"):
        split_object(given)
