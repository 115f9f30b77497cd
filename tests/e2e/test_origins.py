"""The same dataset on a directory, in a bucket and behind a plain web server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import datasets as torchvision_datasets

import prefeed
import servers
from e2e.images import Augment, Pixels, image_files, make_image_folder
from e2e.steps import Setup, assert_same, observe, seed_all


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with servers.moto_server() as url:
        yield url


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


@pytest.fixture(params=["directory", "file", "s3", "http", "webdav"])
def url(request: pytest.FixtureRequest, s3_endpoint: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "directory":
        yield str(root)
    elif request.param == "file":
        yield root.as_uri()
    elif request.param == "s3":
        yield from _bucket(root, s3_endpoint, monkeypatch)
    else:
        webdav = request.param == "webdav"
        if not webdav:
            servers.write_index(root)
        with servers.http_server(root, webdav=webdav) as server:
            yield server.url


def _bucket(root: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    import boto3

    for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    bucket = f"images-{root.parent.name.lower().replace('_', '-')}"[:60].rstrip("-")
    client.create_bucket(Bucket=bucket)
    for file in image_files(root):
        client.put_object(Bucket=bucket, Key=f"train/{file.relative_to(root)}", Body=file.read_bytes())
    yield f"s3://{bucket}/train"
    client.close()


def see(loader_class: Any, dataset: Any, **kwargs: Any) -> list[Any]:
    seed_all()
    return observe(loader_class(dataset, batch_size=4, shuffle=True, **kwargs), Setup({}), epochs=2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_image_folder(root: Path, url: str, num_workers: int) -> None:
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    own = prefeed.datasets.ImageFolder(url, Augment())
    expected = see(torch.utils.data.DataLoader, reference, num_workers=num_workers)
    assert_same(expected, see(prefeed.DataLoader, own, num_workers=num_workers))
    assert own.classes == reference.classes
    assert own.class_to_idx == reference.class_to_idx
    assert own.targets == reference.targets
    statistics = prefeed.statistics()
    assert statistics.origin_requests == len(own)
    assert statistics.direct_reads == 0


def test_objects(root: Path, url: str) -> None:
    files = image_files(root)
    objects = prefeed.datasets.Objects(url, pattern="**/*.png")
    assert [objects.path(i) for i in range(len(objects))] == [str(file.relative_to(root)) for file in files]
    assert [objects[i] for i in range(len(objects))] == [file.read_bytes() for file in files]
    loader = prefeed.DataLoader(objects, batch_size=4, shuffle=True, num_workers=2, collate_fn=list)
    assert sorted(data for batch in loader for data in batch) == sorted(file.read_bytes() for file in files)
    sizes = prefeed.datasets.Objects(url, decode=len, pattern="class0/*")
    assert sizes[0] == files[0].stat().st_size
    assert len(sizes) == 9
    assert prefeed.statistics().origin_requests == len(files)


def test_read_of_one_object(root: Path, url: str) -> None:
    file = image_files(root)[3]
    assert prefeed.read(f"{url}/{file.relative_to(root)}") == file.read_bytes()
    with pytest.raises(FileNotFoundError, match=r"class0/none\.png"):
        prefeed.read(f"{url}/class0/none.png")


# ------------------------------------------------------------ what torchvision takes for a sample


def make_odd_folder(root: Path) -> Path:
    image = Image.new("RGB", (4, 4), (1, 2, 3))
    names = [
        "b/2.png", "b/10.png", "b/1.PNG", "b/sub/9.png", "b/sub-dir/8.JPG", "b/sub/deep/7.jpeg", "b/sub.png",
        "a b/ü ñ.png", "a b/ #%?.png", "a b/.hidden.png", "Z/x.bmp", "Z/x.tiff", "Z/x.ppm", "Z/x.webp", ".cache/3.png",
        "é/0.png", "b0/5.png", "b/sub0/1.png", "b/SUB/1.png", "b/sub/9.png.jpg", "B/x.TIF",
    ]  # fmt: skip
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, format="PNG")
    for other in ("b/notes.txt", "b/sub/9.png.txt", "readme.md", "loose.png", "b/png", "b/archive.npz"):
        (root / other).write_bytes(b"not an image")
    return root


def test_samples_are_torchvisions(tmp_path: Path) -> None:
    """Nested folders, odd names, capital endings, other files: the same samples in the same order."""
    root = make_odd_folder(tmp_path / "odd")
    reference = torchvision_datasets.ImageFolder(str(root), Pixels())
    own = prefeed.datasets.ImageFolder(root, Pixels())
    assert own.samples == reference.samples
    assert own.imgs == reference.imgs
    assert own.classes == reference.classes
    assert own.class_to_idx == reference.class_to_idx
    assert own.targets == reference.targets
    assert len(own) == len(reference)
    assert [own[i][1] for i in (0, -1)] == [reference[i][1] for i in (0, -1)]
    assert_same(see(torch.utils.data.DataLoader, reference), see(prefeed.DataLoader, own))
    assert_same(see(torch.utils.data.DataLoader, reference), see(prefeed.DataLoader, reference))


def test_target_transform_and_loader(root: Path) -> None:
    reference = torchvision_datasets.ImageFolder(str(root), Pixels(), target_transform=str)
    own = prefeed.datasets.ImageFolder(root, Pixels(), target_transform=str)
    assert_same(see(torch.utils.data.DataLoader, reference), see(prefeed.DataLoader, own))
    sizes = prefeed.datasets.ImageFolder(root, loader=lambda file: len(file.read()))
    assert sizes[0] == (Path(reference.samples[0][0]).stat().st_size, 0)
