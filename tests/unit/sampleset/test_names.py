from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.config import resolve as settings
from prefeed.errors import ConfigError, CredentialsError, SampleSetNotFoundError, SpecError
from prefeed.sampleset import records
from prefeed.sampleset.names import resolve, resolve_roots
from prefeed.sampleset.records import find
from sandbox import Sandbox
from unit.sampleset.documents import applied, apply, sample_set


@pytest.mark.parametrize("url", ["s3://photos/train", "/data", "data/x", "pack+file:///a", "samplesets://a"])
def test_other_urls_are_as_they_were(url: str) -> None:
    config = settings()
    assert resolve(url, config) == (url, config)


@pytest.mark.parametrize(
    ("uri", "name", "expected"),
    [
        ("/data/photos", "sampleset://imagenet", "/data/photos"),
        ("/data/photos", "sampleset://imagenet/", "/data/photos"),
        ("/data/photos", "sampleset://imagenet/train//a/./b", "/data/photos/train/a/b"),
        ("/", "sampleset://imagenet/train", "/train"),
        ("s3://photos/all", "sampleset://imagenet/train", "s3://photos/all/train"),
        ("bos://photos.hkg.bcebos.com", "sampleset://imagenet/train", "s3://photos/train"),
    ],
)
def test_a_name_is_where_the_data_is_and_who_caches_it(uri: str, name: str, expected: str) -> None:
    found = applied(sample_set(source={"uri": uri}))
    url, config = resolve(name, settings())
    assert url == expected
    assert config == found.settings(settings())
    assert config.home == found.directory / "node"


def test_a_directory_below_the_source() -> None:
    applied(sample_set(source={"uri": "s3://photos"}, csi={"juiceFSMountOptions": {"sub-dir": "/2012/"}}))
    assert resolve("sampleset://imagenet/train", settings())[0] == "s3://photos/2012/train"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sampleset://", "names no sample set"),
        ("sampleset:///train", "names no sample set"),
        ("sampleset://imagenet/../other", r"write its path without \.\."),
        ("sampleset://../train", "must be made of"),
        ("sampleset://Imagenet", "must be made of"),
    ],
)
def test_what_is_no_name(name: str, said: str) -> None:
    apply(sample_set(source={"uri": "/data"}))
    with pytest.raises(SpecError, match=said):
        resolve(name, settings())


def test_a_set_that_is_not_there_says_which_are() -> None:
    with pytest.raises(SampleSetNotFoundError, match=r"there is no sample set 'b' in .* \(there: none\)"):
        resolve("sampleset://b", settings())
    apply(sample_set("a", source={"uri": "/data"}), sample_set("c", source={"uri": "/data"}))
    with pytest.raises(SampleSetNotFoundError, match=r"\(there: a, c\).*prefeed sampleset apply -f FILE"):
        resolve("sampleset://b", settings())


# ---------------------------------------------------------------- roots


def test_roots_are_the_directories_of_the_set_and_its_node(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    found = applied(sample_set(source={"uri": "/data/photos"}))
    monkeypatch.setenv("PREFEED_ROOTS", "sampleset://imagenet/train:/mnt/b:sampleset://imagenet")
    config = settings()
    assert config.roots == ("sampleset://imagenet/train", "/mnt/b", "sampleset://imagenet")
    resolved = resolve_roots(config)
    assert resolved.roots == ("/data/photos/train", "/mnt/b", "/data/photos")
    assert resolved.home == found.home


def test_in_a_file_of_settings_too(tmp_path: Path) -> None:
    file = tmp_path / "prefeed.toml"
    file.write_text('roots = ["sampleset://imagenet", "/mnt/b"]\n')
    assert settings(environ={}, toml_path=file).roots == ("sampleset://imagenet", "/mnt/b")


@pytest.mark.parametrize("value", ["/a:/b", "auto", "/a://b"])
def test_other_roots_are_as_they_were(value: str) -> None:
    config = settings({"roots": value})
    assert resolve_roots(config) is config


def test_a_set_that_is_in_a_store_says_what_to_use() -> None:
    apply(sample_set(source={"uri": "s3://photos/all"}))
    with pytest.raises(
        ConfigError, match=r"in s3://photos/all.*prefeed\.datasets\.ImageFolder\(\"sampleset://imagenet\"\)"
    ):
        resolve_roots(settings({"roots": "sampleset://imagenet"}))


def test_one_node_serves_files_opened_by_path() -> None:
    apply(sample_set("a", source={"uri": "/a"}), sample_set("b", source={"uri": "/b"}))
    with pytest.raises(ConfigError, match="names the sample sets a and b"):
        resolve_roots(settings({"roots": "sampleset://b:sampleset://a"}))


def test_the_set_of_another_user_says_whose_it_is(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    applied(sample_set(source={"uri": "s3://bucket/a"}))

    def refuse(path: Path) -> None:
        raise CredentialsError(f"cannot read {path}: Permission denied", path=str(path)) from PermissionError(
            13, "denied"
        )

    monkeypatch.setattr(records, "read_private", refuse)
    monkeypatch.setattr(records, "_found", {})
    with pytest.raises(CredentialsError, match=rf"user {os.geteuid()} owns .* run this as that user.* prefeed.io/user"):
        find("imagenet", settings())
