"""Which names each format takes, and what webdataset itself makes of them."""

from __future__ import annotations

import io
import tarfile

import pytest
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_iterator

from prefeed.errors import CannotPackError
from prefeed.packing.order import check_names, sample_of

PATHS = [
    "a.jpg", "a/b.jpg", "a/b.seg.PNG", "a.b/c.jpg", "a/.hidden", "a/.b.jpg", ".hidden", "noext", "a.b/noext", "a.",
    "a/b.", "__meta__", "__meta__/a.jpg", "a/__b__.jpg", "__a__.jpg", "ü/ñ.JPG", "a b/c d.e f", "..a", "a..b", "x/y/z.t",
]  # fmt: skip


def webdatasets_own(path: str) -> tuple[str, str] | None:
    """Return key and extension by which webdataset reads a file; None when it passes over it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(path), io.BytesIO())
    buffer.seek(0)
    files = [{**file, "__url__": "x"} for file in tar_file_iterator(buffer)]
    for sample in group_by_keys(files):
        (extension,) = sample.keys() - {"__key__", "__url__"}
        return sample["__key__"], extension
    return None


@pytest.mark.parametrize("path", PATHS)
def test_samples_are_webdatasets(path: str) -> None:
    assert sample_of(path) == webdatasets_own(path)


def test_key_of_a_path_is_webdatasets() -> None:
    assert base_plus_ext("a/b.seg.png") == sample_of("a/b.seg.png") == ("a/b", "seg.png")


def check(layout: str, *paths: str, size: int = 10) -> None:
    check_names(layout, ((path.encode(), path, size) for path in paths))


@pytest.mark.parametrize(
    "paths", [("noext",), (".hidden",), ("a/.hidden",), ("__x__/a.jpg",), ("a.jpg", "a.JPG"), ("a.__key__",)]
)
def test_names_that_break_a_web_dataset(paths: tuple[str, ...]) -> None:
    with pytest.raises(CannotPackError, match="choose lmdb or tfrecord"):
        check("webdataset", "good.jpg", *paths)
    check("lmdb", "good.jpg", *paths)
    check("tfrecord", "good.jpg", *paths)


def test_names_that_are_fine() -> None:
    check(
        "webdataset", "a.b/c.jpg", "a.b/c.txt", "a.jpg", "d/a.jpg", "größe/日本.jpg", "x.seg.png", "x.png", "a/b\nc.jpg"
    )


def test_only_the_first_few_are_named() -> None:
    with pytest.raises(CannotPackError, match="'x0', 'x1', 'x2' and 97 more") as caught:
        check("webdataset", *(f"x{i}" for i in range(100)))
    assert caught.value.details == {"files": 100}


def test_keys_of_lmdb_end() -> None:
    check("lmdb", "é" * 255)
    with pytest.raises(CannotPackError, match="511 bytes"):
        check("lmdb", "é" * 256)


def test_values_of_lmdb_end() -> None:
    check("lmdb", "a", size=2**32 - 1)
    with pytest.raises(CannotPackError, match="4 GiB"):
        check("lmdb", "a", size=2**32)


def test_tar_would_cut_a_name() -> None:
    with pytest.raises(CannotPackError):
        check("webdataset", "a\0b.jpg")


def test_records_end() -> None:
    check("tfrecord", "a", size=2**31 - 2**20)
    with pytest.raises(CannotPackError, match="2 GiB"):
        check("tfrecord", "a", size=2**31)
