"""A dataset made now sees what is there now: directories and buckets, one process and several, old listings when asked for."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from torchvision import datasets as torchvision_datasets

import prefeed
import servers
from e2e.images import image_files, make_image_folder
from prefeed.client.node import NodeClient
from prefeed.config import current
from prefeed.datasets.origin import Origin
from prefeed.errors import SourceError
from prefeed.sources.manifest import Manifest
from process.conditions import wait_for

FORK = multiprocessing.get_context("fork")
_numbers = itertools.count()
ODD_FOLDERS = ["a b", "100%", "x#y", "\u00fc", "a+b", "q?", "%41", "*", "{z}", "~t"]


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


class Place(Protocol):
    """Where data lies: a directory, or a bucket that is like one."""

    url: str

    def apply(self) -> None: ...


class Directory:
    def __init__(self, root: Path) -> None:
        self.url = str(root)

    def apply(self) -> None:
        """The files are the place."""


class Bucket:
    """Has what the directory has; an object is put only when its file was."""

    def __init__(self, root: Path, client: Any, name: str) -> None:
        self.root, self.client, self.name = root, client, name
        self.url = f"s3://{name}/train"
        self.there: dict[str, bytes] = {}
        client.create_bucket(Bucket=name)

    def apply(self) -> None:
        now = {f"train/{file.relative_to(self.root)}": file.read_bytes() for file in image_files(self.root)}
        for key in self.there.keys() - now.keys():
            self.client.delete_object(Bucket=self.name, Key=key)
        for key in now:
            if self.there.get(key) != now[key]:
                self.client.put_object(Bucket=self.name, Key=key, Body=now[key])
        self.there = now


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with servers.moto_server() as url:
        yield url


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


@pytest.fixture(params=["directory", "bucket"])
def place(
    request: pytest.FixtureRequest, root: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "directory":
        yield Directory(root)
        return
    import boto3

    for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": s3_endpoint}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
    bucket = Bucket(root, client, f"listings-{os.getpid()}-{next(_numbers)}")
    bucket.apply()
    yield bucket
    client.close()


def add(root: Path) -> None:
    shutil.copy(image_files(root)[0], root / "class1" / "000-new.png")


def remove(root: Path) -> None:
    image_files(root)[5].unlink()


def replace(root: Path) -> None:
    """Other bytes of the same number, another time, and the directory unchanged."""
    file = image_files(root)[7]
    status, of_directory = file.stat(), file.parent.stat()
    data = bytearray(file.read_bytes())
    data[-13] ^= 1  # within the last chunk's checksum: it is still a picture
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert file.parent.stat().st_mtime_ns == of_directory.st_mtime_ns


def rename(root: Path) -> None:
    image_files(root)[2].rename(root / "class2" / "renamed.png")


def add_class(root: Path) -> None:
    (root / "another").mkdir()
    shutil.copy(image_files(root)[0], root / "another" / "first.png")


def remove_class(root: Path) -> None:
    shutil.rmtree(root / "class1")


CHANGES = [add, remove, replace, rename, add_class, remove_class]


def in_another_process(function: Callable[[], Any]) -> Any:
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: sender.send(function()))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()
        process.close()
        receiver.close()


@contextmanager
def another() -> Iterator[Callable[[Callable[[Path], None], Path], None]]:
    """A process that began before any loader did, and changes files: this one does not know of it."""
    mine, its = FORK.Pipe()

    def change_files() -> None:
        while (told := its.recv()) is not None:
            function, root = told
            function(root)
            its.send(None)

    def change(function: Callable[[Path], None], root: Path) -> None:
        mine.send((function, root))
        mine.recv()

    process = FORK.Process(target=change_files)
    process.start()
    try:
        yield change
    finally:
        mine.send(None)
        process.join()
        process.close()
        mine.close()
        its.close()


def seen(url: str) -> tuple[list[str], list[str], list[int], list[bytes]]:
    """Return what a dataset that is made now says, and the bytes of its samples."""
    dataset = prefeed.datasets.ImageFolder(url, loader=lambda file: file.read())
    paths = [os.path.relpath(path, url) for path, _ in dataset.samples]
    loader = prefeed.DataLoader(dataset, batch_size=None)
    try:
        return dataset.classes, paths, dataset.targets, [data for data, _ in loader]
    finally:
        prefeed.datasets._readers.close()


def expected(root: Path) -> tuple[list[str], list[str], list[int], list[bytes]]:
    reference = torchvision_datasets.ImageFolder(str(root))
    paths = [os.path.relpath(path, root) for path, _ in reference.samples]
    return reference.classes, paths, reference.targets, [(root / path).read_bytes() for path in paths]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same process", "other processes"])
def test_a_dataset_made_now_is_torchvisions_made_now(root: Path, place: Place, elsewhere: bool) -> None:
    """After each change; only what changed is fetched, however many listings there were."""
    assert seen(place.url) == expected(root)
    asked = prefeed.statistics().origin_requests
    assert asked == len(image_files(root))
    for change in CHANGES:
        before = expected(root)
        change(root)
        place.apply()
        now = expected(root)
        assert (in_another_process(lambda: seen(place.url)) if elsewhere else seen(place.url)) == now
        known = dict(zip(before[1], before[3], strict=True))
        asked += sum(known.get(path) != data for path, data in zip(now[1], now[3], strict=True))
        assert prefeed.statistics().origin_requests == asked, change.__name__
    assert prefeed.statistics().errors == {}


def age(root: Path) -> None:
    """Directories were last changed an hour ago: what is known of their names is trusted."""
    for directory in [root, *(path for path in root.iterdir() if path.is_dir())]:
        os.utime(directory, ns=(0, time.time_ns() - 3600 * 10**9))


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same process", "other processes"])
def test_names_that_are_known_are_not_listed_again_and_files_are_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Sizes and times are asked for aside; nothing is read before they have come, and only changed files are fetched."""
    place = Directory(root)
    age(root)
    settled: list[bool] = []
    settle = Origin.settle

    def seen_now() -> Any:
        return in_another_process(lambda: seen(place.url)) if elsewhere else seen(place.url)

    def counted(origin: Origin) -> Any:
        settled.append(origin._is_settled)
        return settle(origin)

    assert seen_now() == expected(root)
    asked = prefeed.statistics().origin_requests
    monkeypatch.setattr(Origin, "settle", counted)
    for _ in range(2):
        assert seen(place.url) == expected(root)
        assert settled[0] is False
        del settled[:]
    for index in range(3):
        replace(root)
        assert seen_now() == expected(root)
        assert prefeed.statistics().origin_requests == asked + index + 1
    for index, change in enumerate((add, remove, rename, add_class, remove_class)):
        change(root)
        assert seen_now() == expected(root)
        replace(root)
        assert seen_now() == expected(root)
        age(root)
        assert seen_now() == expected(root), index
        assert seen_now() == expected(root), index


def test_a_copy_of_a_dataset_looks_at_the_files_before_it_reads(root: Path) -> None:
    """Made by names alone, then pickled or forked; the server that knew it has ended."""
    place = Directory(root)
    age(root)
    first = prefeed.datasets.Objects(place.url)
    before = [first[index] for index in range(len(first))]
    dataset = prefeed.datasets.Objects(place.url)
    assert not dataset._origin._is_settled
    assert in_another_process(lambda: [dataset[index] for index in range(len(dataset))]) == before
    stopped = prefeed.datasets.Objects(place.url)
    with NodeClient.connect(current()) as node:
        node.stop()
    replace(root)
    copied = pickle.loads(pickle.dumps(stopped))
    now = [file.read_bytes() for file in image_files(root)]
    assert now != before
    assert [copied[index] for index in range(len(copied))] == now
    prefeed.datasets._readers.close()


def test_what_runs_keeps_its_listing(root: Path, place: Place) -> None:
    """An epoch under way, later epochs, a pickled copy, and the whole after the server has ended."""
    with another() as change:
        dataset = prefeed.datasets.Objects(place.url)
        before = [file.read_bytes() for file in image_files(root)]
        loader = prefeed.DataLoader(dataset, batch_size=None)
        epoch = iter(loader)
        data = [next(epoch)]
        for function in (add, remove, replace):
            change(function, root)
            place.apply()
            assert len(prefeed.datasets.Objects(place.url)) == len(image_files(root))
    assert data + list(epoch) == before
    assert list(loader) == before
    copied = pickle.loads(pickle.dumps(dataset))
    assert [copied[index] for index in range(len(copied))] == before
    assert list(prefeed.DataLoader(dataset, batch_size=None, num_workers=2)) == before
    assert prefeed.statistics().direct_reads == 0


def test_a_loader_that_takes_the_place_of_another_has_what_that_had(root: Path, place: Place) -> None:
    """The old one is alive while the new one's dataset is made: nothing is fetched but what changed."""
    loader = prefeed.DataLoader(prefeed.datasets.Objects(place.url), batch_size=None)
    assert len(list(loader)) == prefeed.statistics().origin_requests
    for index in range(3):
        asked = prefeed.statistics().origin_requests
        shutil.copy(image_files(root)[0], root / "class1" / f"new-{index}.png")
        place.apply()
        dataset = prefeed.datasets.Objects(place.url)
        loader = prefeed.DataLoader(dataset, batch_size=None)
        assert list(loader) == [file.read_bytes() for file in image_files(root)]
        # The loader may have read the file itself, where storage is quick: the cache gets it aside.
        wait_for(lambda asked=asked: prefeed.statistics().origin_requests > asked, "the new file's fetch")
        assert prefeed.statistics().origin_requests == asked + 1
    assert prefeed.statistics().origin_requests == len(image_files(root))


def test_who_wants_an_old_listing_says_so(root: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prefeed.datasets.ImageFolder(place.url)
    add(root)
    place.apply()
    for old in (
        prefeed.datasets.ImageFolder(place.url, listing_age=math.inf),
        prefeed.datasets.ImageFolder(place.url, listing_age=1000),
    ):
        assert (len(old), old.listed_at) == (len(first), pytest.approx(first.listed_at, abs=1e-3))
        assert 0 < old.listing_age_seconds < 1000
        assert (
            repr(old) == f"<ImageFolder {place.url}: {len(first)} samples, listed {old.listing_age_seconds:.0f} s ago>"
        )
    monkeypatch.setenv("PREFEED_LISTING_AGE", "inf")
    assert len(prefeed.datasets.Objects(place.url)) == len(first)
    latest = prefeed.datasets.Objects(place.url, listing_age=0)
    assert latest[len(first)]  # it is in force when something of it was read
    assert len(latest) == len(first) + 1
    monkeypatch.setenv("PREFEED_ENABLED", "0")
    add_class(root)
    place.apply()
    assert len(prefeed.datasets.Objects(place.url)) == len(first) + 1
    assert len(prefeed.datasets.Objects(place.url, listing_age=0)) == len(first) + 2


@pytest.mark.parametrize("column", ["paths", "offsets"])
def test_a_damaged_listing_never_names_a_file_wrongly(root: Path, monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    """Found on the disk by the next server: one line in its log, and the listing is made anew though an old one would do."""
    monkeypatch.setenv("PREFEED_LISTING_AGE", "inf")
    assert seen(str(root)) == expected(root)
    with NodeClient.connect(current()) as node:
        log = node.connection.runtime_dir / "server.log"
        file = Path(node.open_dataset(str(root), listing_age=math.inf).manifest_dir) / "columns"
        node.stop()
    manifest = Manifest.open(file.parent)
    data = bytearray(file.read_bytes())
    at = data.rindex(manifest.path_blob if column == "paths" else manifest.offsets.data)
    del manifest
    data[at + 6 if column == "paths" else at + 8] ^= 1  # class0 becomes class1; the second path begins elsewhere
    file.write_bytes(data)
    assert seen(str(root)) == expected(root)
    assert log.read_text().count(f"its column '{column}' is not what was written") == 1
    assert prefeed.statistics().errors == {}


def test_an_origin_that_is_gone_is_an_error_and_the_old_listing_can_be_had(root: Path) -> None:
    dataset = prefeed.datasets.Objects(root)
    data = [dataset[index] for index in range(len(dataset))]
    root.rename(root.with_name("unmounted"))
    with pytest.raises(FileNotFoundError, match=r"does not exist.*; its listing of \d+ s ago.*listing_age=inf"):
        prefeed.datasets.Objects(root)
    old = prefeed.datasets.Objects(root, listing_age=math.inf)
    assert [old[index] for index in range(len(old))] == data
    with pytest.raises(
        SourceError, match=r"does not exist; check the path, and that the storage is mounted on this node$"
    ):
        prefeed.datasets.Objects(root.with_name("never"))


def test_another_node_of_the_loader_has_the_datasets_own_listing(root: Path, tmp_path: Path) -> None:
    """The listing goes to the other home as it is, though the files there are others by now."""
    dataset = prefeed.datasets.Objects(root)
    before = [file.read_bytes() for file in image_files(root)]
    add(root)
    other = prefeed.config.resolve({"home": tmp_path / "other"})
    try:
        assert list(prefeed.DataLoader(dataset, batch_size=None, config=other)) == before
    finally:
        with NodeClient.connect(other) as node:
            node.stop()
    assert current().home != other.home


def test_a_large_bucket_is_listed_prefix_by_prefix(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a URL would write in another way are found below their prefixes."""
    import boto3

    for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": s3_endpoint}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
    bucket = f"listings-{os.getpid()}-{next(_numbers)}"
    client.create_bucket(Bucket=bucket)
    client.close()
    names = [f"train/{folder}/{index:03}" for folder in ODD_FOLDERS for index in range(300)] + ["train/list.txt"]
    for name in names:
        servers.put_into_moto(bucket, name, b"1")
    servers.put_into_moto(bucket, f"train/{ODD_FOLDERS[0]}/", b"")
    objects = prefeed.datasets.Objects(f"s3://{bucket}/train")
    assert [objects.path(index) for index in range(len(objects))] == sorted(
        (name.removeprefix("train/") for name in names), key=str.encode
    )
