"""Input that cannot work: the error that Python would have, and a message that says what to change."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, UnidentifiedImageError
from torchvision import datasets as torchvision_datasets

import prefeed
import servers
from e2e.images import Pixels, make_image_folder
from limits import set_limits
from prefeed import errors
from prefeed.files import close
from prefeed.vision import ResizeCropNormalize
from unit.packing.packs import packed

Objects = prefeed.datasets.Objects
ImageFolder = prefeed.datasets.ImageFolder


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    """Samples that were read outside prefeed's loader have a reader that the process keeps."""
    yield
    prefeed.datasets._readers.close()


@pytest.fixture(params=["with the server", "without"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are the same whether the node server lists or the process itself."""
    if request.param == "without":
        monkeypatch.setenv("PREFEED_ENABLED", "0")


both_ways = pytest.mark.usefixtures("_both_ways")


@both_ways
def test_unknown_scheme() -> None:
    for dataset in (Objects, ImageFolder):
        with pytest.raises(
            ValueError, match=r"no source reads ftp:// \(in ftp://host/data\); choose a directory"
        ) as caught:
            dataset("ftp://user:secret@host/data?token=1")
        assert isinstance(caught.value, errors.UnknownSchemeError)
        assert "secret" not in str(caught.value)


@both_ways
def test_missing_directory(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    for dataset in (Objects, ImageFolder):
        with pytest.raises(FileNotFoundError, match="nowhere does not exist; check the path") as caught:
            dataset(missing)
        assert str(missing) in str(caught.value)


@both_ways
def test_file_instead_of_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "data.zip"
    file.write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match="pass the directory that holds the files"):
        Objects(file)


@both_ways
def test_empty_listing(tmp_path: Path) -> None:
    with pytest.raises(errors.EmptyListingError) as caught:
        Objects(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)


@both_ways
def test_nothing_that_matches(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"none of the 1 objects below .* matches '\*\.jpg'"):
        Objects(tmp_path, pattern="*.jpg")
    with pytest.raises(FileNotFoundError, match=r"no class folder with an image .* wanted <class>/<name> .*\.jpeg"):
        ImageFolder(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1.jpg").write_bytes(b"x")
    with pytest.raises(
        FileNotFoundError, match=f"found 1 images in no folder.* give the directory above it, {tmp_path}$"
    ):
        ImageFolder(tmp_path / "cat")


@pytest.fixture
def refusing_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.FileServer]:
    with servers.http_server(tmp_path) as server:
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": server.url, "AWS_ALLOW_HTTP": "1"}.items():
            monkeypatch.setenv(name, value)
        yield server


@both_ways
def test_bucket_that_refuses(refusing_s3: servers.FileServer) -> None:
    refusing_s3.answers["/private"] = servers.status(403, b"<Error><Code>AccessDenied</Code></Error>")
    with pytest.raises(PermissionError, match=r"s3://private.*check AWS_ACCESS_KEY_ID") as caught:
        Objects("s3://private/train")
    assert "testing-secret" not in str(caught.value)
    assert "GOOGLE" not in str(caught.value)


@both_ways
def test_bucket_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the bucket, and the server that was asked."""
    with servers.moto_server() as url:
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        told = rf"s3://none/train/x: the bucket none does not exist .*; the endpoint is {url} \(AWS_ENDPOINT_URL\)"
        for act in (Objects, prefeed.open, prefeed.read):
            with pytest.raises(FileNotFoundError, match=told):
                act("s3://none/train/x")
        close()


@both_ways
def test_endpoint_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers there, or a server that is no store."""
    set_limits(monkeypatch, retry_seconds=0.1)
    for name, value in servers.S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with servers.http_server(tmp_path) as server:
        url = server.url
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        server.ranges = True
        for act in (Objects, prefeed.open):
            with pytest.raises(errors.ObjectNotFoundError, match=rf"; the endpoint is {url} \(AWS_ENDPOINT_URL\)"):
                act("s3://photos/train")
    for act in (Objects, prefeed.open):
        with pytest.raises(
            errors.TransientSourceError, match=rf"no connection.*; the endpoint is {url} \(AWS_ENDPOINT_URL\)"
        ):
            act("s3://photos/train")
    close()


def test_a_scheme_of_a_store_that_speaks_s3() -> None:
    for scheme, act in product(("bos", "oss", "cos", "obs", "minio"), (Objects, prefeed.open, prefeed.read)):
        with pytest.raises(
            errors.UnknownSchemeError, match=r"write s3://b/x, and set AWS_ENDPOINT_URL=https?://"
        ) as caught:
            act(f"{scheme}://key:secret@b/x")
        assert "secret" not in str(caught.value)


@both_ways
def test_web_server_without_listing(tmp_path: Path) -> None:
    """Plain HTTP has no listing: the message names the index file."""
    (tmp_path / "a.bin").write_bytes(b"x")
    with servers.http_server(tmp_path) as server, pytest.raises(errors.CannotListError, match=r"index\.txt"):
        Objects(server.url)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PREFEED_MEMORY", "lots", "PREFEED_MEMORY: 'lots' is not a size; write it like 8GiB"),
        ("PREFEED_FETCH_PROCESSES", "65", "PREFEED_FETCH_PROCESSES: must be 0 to 64"),
        ("PREFEED_ENABLED", "maybe", "PREFEED_ENABLED: 'maybe' is neither true nor false"),
    ],
)
def test_unusable_setting(name: str, value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(errors.ConfigError) as caught:
        Objects(tmp_path)
    assert words in str(caught.value)


def test_index_out_of_range(tmp_path: Path) -> None:
    """A sampler that draws what is not there: torch's own error."""
    root = make_image_folder(tmp_path / "data")
    reference = torchvision_datasets.ImageFolder(str(root), Pixels())
    for dataset in (reference, ImageFolder(root, Pixels())):
        for loader_class in (torch.utils.data.DataLoader, prefeed.DataLoader):
            assert steps_until_index_error(loader_class(dataset, batch_size=2, sampler=[0, 1, 2, 99])) == 1


def steps_until_index_error(loader: Any) -> int:
    steps = 0
    try:
        for _ in loader:
            steps += 1
    except IndexError:
        return steps
    raise AssertionError("no IndexError")


def test_wrong_arguments_are_torchs_errors(tmp_path: Path) -> None:
    dataset = ImageFolder(make_image_folder(tmp_path / "data"))
    for kwargs in ({"shuffle": True, "sampler": [1]}, {"num_workers": -1}, {"batch_size": None, "drop_last": True}):
        with pytest.raises(ValueError) as expected:
            torch.utils.data.DataLoader(dataset, **kwargs)
        with pytest.raises(ValueError) as actual:
            prefeed.DataLoader(dataset, **kwargs)
        assert str(actual.value) == str(expected.value)


def test_vanished_file_of_torchvision_is_the_original_error(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "data")
    dataset = torchvision_datasets.ImageFolder(str(root), Pixels())
    path = Path(dataset.samples[5][0])
    loader = prefeed.DataLoader(dataset, batch_size=None)
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        list(loader)
    assert type(caught.value) is FileNotFoundError
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(path)


# ------------------------------------------------------------ objects that cannot be decoded


class UndecodableError(Exception):
    """Of a program: takes more than a message, and has an attribute."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason, code)
        self.code = code


def refuse(_: Any) -> Any:
    raise UndecodableError("unknown header", 7)


def load_lazily(file: Any) -> Any:
    return Image.open(file)  # whose pixels the transform reads


def write_broken(root: Path) -> Path:
    """Write three images, the second of which is truncated and the third no image."""
    make_image_folder(root, num_images=3, num_classes=1)
    second, third = (root / "class0" / f"{number:03}.png" for number in (1, 2))
    second.write_bytes(second.read_bytes()[:60])
    third.write_bytes(b"no image")
    return root


BROKEN = {
    "an image": (lambda root: ImageFolder(root, Pixels()), 2, UnidentifiedImageError),
    "half an image": (lambda root: ImageFolder(root, Pixels()), 1, OSError),
    "half an image that is loaded lazily": (lambda root: ImageFolder(root, Pixels(), loader=load_lazily), 1, OSError),
    "for vision": (lambda root: ImageFolder(root, loader=ResizeCropNormalize(8, 8)), 2, errors.ImageDecodeError),
    "by a transform": (lambda root: ImageFolder(root, refuse), 0, UndecodableError),
    "by a target transform": (lambda root: ImageFolder(root, Pixels(), refuse), 0, UndecodableError),
    "by a decoder": (lambda root: Objects(root, decode=refuse), 0, UndecodableError),
    "in a group": (lambda root: _packed(root, refuse, group=True), 0, UndecodableError),
    "in a pack": (lambda root: _packed(root, json.loads), 2, json.JSONDecodeError),
}


def _packed(root: Path, decode: Any, *, group: bool = False) -> Any:
    packed(root, root.parent / "packed", "webdataset")
    return prefeed.datasets.Packed(root.parent / "packed", decode, group=group)


@pytest.mark.parametrize("case", BROKEN)
def test_an_error_of_decoding_names_the_object_and_keeps_its_type(case: str, tmp_path: Path) -> None:
    create, index, expected = BROKEN[case]
    dataset = create(write_broken(tmp_path / "data"))
    name = rf"class0/{index:03}" + ("" if case == "in a group" else r"\.png")
    for _ in range(2):
        with pytest.raises(expected, match=name) as caught:
            dataset[index]
        assert type(caught.value) is expected
        assert len(caught.value.__notes__) == 1
    if expected is UndecodableError:
        assert (caught.value.args, caught.value.code) == (("unknown header", 7), 7)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_raises_the_error_of_decoding_with_the_name(num_workers: int, tmp_path: Path) -> None:
    dataset = ImageFolder(write_broken(tmp_path / "data"), Pixels())
    for loader_class in (torch.utils.data.DataLoader, prefeed.DataLoader):
        iterator = iter(loader_class(dataset, batch_size=None, sampler=[0, 2], num_workers=num_workers))
        with pytest.raises(UnidentifiedImageError, match=f"cannot identify .*{tmp_path}/data/class0/002.png"):
            list(iterator)
        if num_workers:  # an error that torch raises anew keeps the iterator: its workers would end after 5 s each
            iterator._shutdown_workers()
