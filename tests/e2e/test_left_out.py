"""A listing is not ruined by one entry: what cannot be a sample is left out, counted and named."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import pytest

import prefeed
import servers
from cover import crossed
from e2e.images import make_image_folder
from e2e.parity import stop_server
from limits import set_limits
from mounting import dead_fuse, mounted, needs_root, obey_modes, with_own_mounts
from prefeed.config import current
from prefeed.copying.staging import StageRequest, stage
from prefeed.errors import BadTargetNameError, CannotPackError, JobError, SourceError
from prefeed.files import close
from prefeed.files.filesystem import PrefeedFileSystem
from prefeed.jobs.options import SyncOptions
from prefeed.jobs.places import locate_place
from prefeed.jobs.sync import sync
from prefeed.jobs.warming import WarmupOptions, warm_up
from prefeed.packing.driver import PackRequest, pack
from prefeed.sources import listing
from prefeed.sources.plain_s3 import is_odd
from prefeed.sources.urls import open_source
from sandbox import Sandbox
from slow_files import write_files


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()
    close()
    PrefeedFileSystem.clear_instance_cache()


class Warnings(logging.Handler):
    """Texts of the warnings of this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        logging.getLogger("prefeed").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def about(self, name: str) -> list[str]:
        return [text for text in self.texts if name in text]


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    """Warnings of this process during one test."""
    handler = Warnings()
    yield handler
    logging.getLogger("prefeed").removeHandler(handler)


@needs_root
def test_directories_that_cannot_be_entered(tmp_path: Path, sandbox: Sandbox) -> None:
    with_own_mounts(_list_around_closed_directories, tmp_path)


def _list_around_closed_directories(root: Path) -> None:
    """One mode that closes a directory, one that lists names and opens none, and a file system whose daemon has died."""
    os.environ["PREFEED_ENABLED"] = "0"
    for name in ("a", "lost+found", "only names", "z"):
        make_image_folder(root / name, num_images=2, num_classes=1)
    (root / "dead").mkdir()
    (root / "lost+found").chmod(0)
    (root / "only names").chmod(0o600)
    obey_modes()
    warnings = Warnings()
    with dead_fuse(root / "dead"):
        for _ in range(2):
            data = prefeed.datasets.Objects(root)
            assert {data.path(index).split("/")[0] for index in range(len(data))} == {"a", "z"}
            assert len(data) == 4
        assert all(len(data[index]) for index in range(4))
        images = prefeed.datasets.ImageFolder(root)
        assert len(images) == 4
        place = root.with_name(f"{root.name}-copies")
        place.mkdir()
        assert stage(StageRequest(url=str(root), place=place), current()).record.num_files == 4
        (root / "z").chmod(0)
        again = stage(StageRequest(url=str(root), place=place), current())
        assert (again.record.num_files, len([*place.rglob("*.png")])) == (2, 4), "the copy of what is closed now stays"
        (root / "z").chmod(0o700)
        assert len(fsspec.filesystem("prefeed").find(str(root))) == 4
        with pytest.raises(PermissionError):
            fsspec.filesystem("prefeed").ls(str(root / "lost+found"))
    text = next(text for text in warnings.texts if "left out (3)" in text)
    assert warnings.texts.count(text) == 1
    assert all(name in text for name in ("'lost+found/'", "'only names/'", "'dead'")), text


@needs_root
def test_what_a_server_leaves_out_is_named_where_the_dataset_is_made(tmp_path: Path, sandbox: Sandbox) -> None:
    with_own_mounts(_list_through_a_server, tmp_path)


def _list_through_a_server(root: Path) -> None:
    make_image_folder(root / "a", num_images=2, num_classes=1)
    warnings = Warnings()
    with dead_fuse(root / "b/dead"):
        data = prefeed.datasets.Objects(root)
        assert len(data) == 2
        assert data[0]
        [text] = warnings.about("left out")
        assert "left out (1)" in text
        assert "'b/dead'" in text
        images = prefeed.datasets.ImageFolder(root)  # names are listed first, and sizes asked later
        assert len(images) == 2
        assert images[0]
        assert warm_up(locate_place(str(root), current()), WarmupOptions()).objects == 2
        assert warnings.about("left out") == [text]
        prefeed.datasets._readers.close()
        stop_server()  # its mount namespace is this one, which dead_fuse leaves as it was


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ETIMEDOUT])
def test_an_error_that_is_not_of_one_directory_fails_the_listing(
    number: int, tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_image_folder(tmp_path, num_images=2, num_classes=2)
    scandir = os.scandir

    def fail(path: Any) -> Any:
        if isinstance(path, bytes) and b"class1" in path:
            raise OSError(number, os.strerror(number))
        return scandir(path)

    monkeypatch.setenv("PREFEED_ENABLED", "0")
    set_limits(monkeypatch, retry_seconds=0.1)
    with monkeypatch.context() as patched, pytest.raises(prefeed.errors.SourceError, match="class1"):
        patched.setattr(os, "scandir", fail)
        prefeed.datasets.Objects(tmp_path)


ODD_KEYS = (
    "/lead.txt", "/", "//", "d/b//c.txt", "d/b/", "d/./x", "d/../y", "d/../../etc/z", "d//", ".", "..", "d/tab\tin", "d/line\nbreak",
    "d/del\x7f", "Icon\r", "d/one\x01", "d/sub\tdir/x y+z", "d/plain.txt", "d/plain.txt/below", "d/empty", "e.txt",
)  # fmt: skip
"""Of which those that end in a slash have bytes, so that they are no markers."""


@pytest.fixture
def bucket(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.BucketServer]:
    objects = {key: b"" if key == "d/empty" else f"bytes of {key}".encode() for key in ODD_KEYS}
    with servers.bucket_server(objects) as server:
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        set_limits(monkeypatch, start_seconds=120)
        yield server
        close()
        prefeed.datasets._readers.close()


@pytest.mark.parametrize(("page_size", "enabled"), [(1000, True), (1000, False), (3, False), (1, False)])
def test_keys_that_are_no_paths_are_samples(
    page_size: int, enabled: bool, bucket: servers.BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.page_size = page_size
    if not enabled:
        monkeypatch.setenv("PREFEED_ENABLED", "0")
    data = prefeed.datasets.Objects("s3://b")
    assert {data.path(index): data[index] for index in range(len(data))} == bucket.objects
    below = prefeed.datasets.Objects("s3://b/d")
    expected = {key[2:]: value for key, value in bucket.objects.items() if key.startswith("d/") and key != "d/"}
    assert {below.path(index): below[index] for index in range(len(below))} == expected


@pytest.fixture
def other_store(bucket: servers.BucketServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the bucket, spoken to as Google's or Azure's, without the keys that begin with a slash."""
    bucket.objects = {key: data for key, data in bucket.objects.items() if not key.startswith("/")} | {"d/marker/": b""}
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    if request.param == "gs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
    else:
        text = f"AccountName=me;AccountKey=c2VjcmV0LWtleQ==;BlobEndpoint={bucket.url}"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    return f"{request.param}://b"


@pytest.mark.parametrize("other_store", ["gs", "az"], indirect=True)
@pytest.mark.parametrize(("page_size", "enabled"), [(1000, True), (3, False)])
def test_keys_that_other_clients_refuse_are_left_out(
    page_size: int,
    enabled: bool,
    other_store: str,
    bucket: servers.BucketServer,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Warnings,
) -> None:
    bucket.page_size = page_size
    if not enabled:
        monkeypatch.setenv("PREFEED_ENABLED", "0")
    monkeypatch.setattr(listing, "_warned", set())
    kept = {key: data for key, data in bucket.objects.items() if not is_odd(key)}
    for root in ("", "/d"):
        data = prefeed.datasets.Objects(other_store + root)
        start = f"{root}/"[1:]
        assert {start + data.path(index): data[index] for index in range(len(data))} == {
            key: value for key, value in kept.items() if key.startswith(start)
        }
    text = warnings.about("left out")[0]
    assert f"({len(bucket.objects) - len(kept) - 1})" in text, "the marker is not counted"
    assert "'d/../y' (has an empty part" in text
    names = [{name.lower(): value for name, value in headers.items()} for _, _, headers in bucket.requests]
    assert all(one.get("authorization", "").startswith("SharedKey me:") == (other_store == "az://b") for one in names)


@pytest.mark.parametrize("other_store", ["gs", "az"], indirect=True)
def test_other_stores_are_copied_and_listed_without_odd_keys(
    other_store: str, bucket: servers.BucketServer, tmp_path: Path
) -> None:
    kept = {key for key in bucket.objects if not is_odd(key)}
    fs = fsspec.filesystem("prefeed")
    assert set(fs.find(f"{other_store}/d")) == {f"{other_store}/{key}" for key in kept if key.startswith("d/")}
    assert {f"{other_store}/d/b", f"{other_store}/d/empty"} <= set(fs.ls(f"{other_store}/d", detail=False))
    bucket.objects.pop("d/plain.txt/below")
    result = sync(other_store, str(tmp_path / "copy"), SyncOptions(), current())
    assert (result.num_failed, result.num_copied) == (0, len(kept) - 1)
    assert not [thread for thread in threading.enumerate() if thread.name == "prefeed-relay"]


def test_keys_that_are_no_paths_are_opened(bucket: servers.BucketServer) -> None:
    for key, data in bucket.objects.items():
        if not key.endswith("/"):  # a URL of a directory names no object
            with prefeed.open(f"s3://b/{key}") as file:
                assert file.read() == data


MARKERS = ("", "alone/", "train/", "nested/a/", "nested/", "same/", *(f"many/{number}/" for number in range(12)))
"""Below ``d/``, whose own marker is the first; put after the objects, so that an unsorted listing has them at its end."""

OBJECTS = {
    "train/a.bin": b"a", "train-b": b"b", "zero": b"", "nested/a/zero": b"", "same": b"not empty", "out": b"", "out/x": b"x",
    **{f"many/{number}/empty{other}": b"" for number in range(2) for other in range(7)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("page", "is_sorted", "extra"),
    crossed([(1000, 0), (1000, 403), (5, 0), (2, 405)], [True, False], [None, "d//odd"]),
)
def test_markers_of_directories_are_no_samples(
    page: tuple[int, int],
    is_sorted: bool,
    extra: str | None,
    bucket: servers.BucketServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page_size, head_status = page
    bucket.objects = {f"d/{key}": data for key, data in OBJECTS.items()}
    bucket.objects |= {f"d/{key}": b"" for key in MARKERS} | ({extra: b"odd"} if extra else {})
    bucket.is_sorted, bucket.page_size, bucket.head_status = is_sorted, page_size, head_status
    monkeypatch.setenv("PREFEED_ENABLED", "0")
    data = prefeed.datasets.Objects("s3://b/d")
    assert {data.path(index): data[index] for index in range(len(data))} == OBJECTS | (
        {"/odd": b"odd"} if extra else {}
    )


def test_markers_are_not_warmed_listed_or_walked(bucket: servers.BucketServer) -> None:
    bucket.objects = {f"d/{key}": data for key, data in OBJECTS.items()} | {f"d/{key}": b"" for key in MARKERS}
    warmed = warm_up(locate_place("s3://b/d", current()), WarmupOptions())
    assert (warmed.objects, warmed.resident, warmed.failed) == (len(OBJECTS), len(OBJECTS), 0)
    fs = fsspec.filesystem("prefeed")
    urls = {f"s3://b/d/{key}" for key in OBJECTS}
    assert set(fs.find("s3://b/d")) == urls
    walked = [(where, name) for where, _, names in fs.walk("s3://b/d") for name in names]
    assert {f"{where}/{name}".rstrip("/") for where, name in walked} == urls
    assert len(walked) == len(urls)
    assert fs.ls("s3://b/d/alone") == []


def test_the_file_system_returns_every_key(bucket: servers.BucketServer, tmp_path: Path) -> None:
    fs = fsspec.filesystem("prefeed")
    urls = {f"s3://b/{key}": len(data) for key, data in bucket.objects.items()}
    assert set(fs.find("s3://b")) == urls.keys()
    assert fs.du("s3://b") == sum(urls.values())
    walked = [f"{where}/{name}" for where, _, names in fs.walk("s3://b") for name in names]
    assert sorted(walked) == sorted(urls)
    assert {name.removeprefix("prefeed://") for name in fs.glob("s3://b/**") if fs.isfile(name)} >= {
        name for name in urls if not name.endswith("/")
    }
    level = fs.ls("s3://b/d")
    names = [one["name"] for one in level]
    assert len(names) == len(set(names)), "each name once"
    assert {"s3://b/d/b", "s3://b/d/tab\tin", "s3://b/d/plain.txt", "s3://b/d/.."} <= set(names)
    assert fs.ls("s3://b/d/b", detail=False) == ["s3://b/d/b/", "s3://b/d/b//c.txt"]
    assert "s3://b/d/plain.txt" in fs.ls("s3://b/d/plain.txt", detail=False), (
        "the object is listed with what is below it"
    )
    assert fs.ls("s3://b/d/..", detail=False) == ["s3://b/d/../..", "s3://b/d/../y"]
    for name in urls:
        if not name.endswith("/"):
            assert fs.cat_file(name) == bucket.objects[name.removeprefix("s3://b/")]
            assert fs.info(name)["size"] == urls[name]


@pytest.mark.parametrize("key", ["d/../../../escaped", "d/./x", "d//x"])
def test_a_copy_by_fsspec_stays_below_its_directory(key: str, bucket: servers.BucketServer, tmp_path: Path) -> None:
    bucket.objects = {key: b"odd", "d/x": b"plain"}
    fs = fsspec.filesystem("prefeed")
    (tmp_path / "a/b").mkdir(parents=True)
    with pytest.raises((BadTargetNameError, ValueError), match=r"cannot be copied|outside the destination"):
        fs.get("s3://b/d", str(tmp_path / "a/b/c"), recursive=True)
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and file != tmp_path / "a/b/c/x"]
    fs.get_file(f"s3://b/{key}", str(tmp_path / "named"))
    assert (tmp_path / "named").read_bytes() == b"odd"


FILES = {
    "d/tab\tin",
    "d/line\nbreak",
    "d/del\x7f",
    "Icon\r",
    "d/one\x01",
    "d/sub\tdir/x y+z",
    "d/plain.txt/below",
    "d/empty",
    "e.txt",
}
"""Of ``ODD_KEYS``, those that can be files beside one another."""


def test_a_copy_leaves_out_what_cannot_be_a_file(
    bucket: servers.BucketServer, tmp_path: Path, warnings: Warnings
) -> None:
    target = tmp_path / "a/b/copy"
    bucket.objects |= {"../../up": b"up", "..": b"up", "d/plain.txt-": b"", "d/marker/": b""}
    for _ in range(2):
        result = sync("s3://b", str(target), SyncOptions(delete_dst=True), current())
        assert (result.num_failed, result.is_complete, result.num_deleted_dst) == (0, True, 0)
    files = {str(file.relative_to(target)): file.read_bytes() for file in target.rglob("*") if file.is_file()}
    assert files == {name: bucket.objects[name] for name in {*FILES, "d/plain.txt-"}}
    assert [file for file in tmp_path.rglob("*") if file.is_file() and target not in file.parents] == []
    [text] = warnings.about("left out")
    assert f"({len(ODD_KEYS) - len(FILES) + 1})" in text
    assert "'../../up' (has '..'" in text
    assert "more" in text
    sync("s3://b", str(target), SyncOptions(delete_src=False, dry=True), current())


NO_MORE = "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"


@pytest.mark.parametrize(
    "page", ["<html><body>Sign in</body></html>", "<Error><Code>InternalError</Code></Error>", NO_MORE]
)
def test_nothing_is_deleted_after_a_listing_that_was_cut(
    page: str, bucket: servers.BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.objects, bucket.page_size = {f"{number}.bin": b"data" for number in range(6)}, 2
    options = SyncOptions(delete_dst=True)
    sync("s3://b", str(tmp_path / "copy"), options, current())
    (tmp_path / "copy/old.bin").write_bytes(b"not there any more")
    listed = servers.BucketHandler._listed

    def cut(handler: servers.BucketHandler, asked: dict[str, str]) -> str:
        return page if "continuation-token" in asked else listed(handler, asked)

    with monkeypatch.context() as patched:
        patched.setattr(servers.BucketHandler, "_listed", cut)
        with pytest.raises(JobError, match=r"leaves out '2\.bin': nothing was deleted"):
            sync("s3://b", str(tmp_path / "copy"), options, current())
    assert len(list((tmp_path / "copy").iterdir())) == 7
    assert sync("s3://b", str(tmp_path / "copy"), options, current()).num_deleted_dst == 1


@pytest.mark.parametrize("below", ["", "d0/", "d{}/"], ids=["flat", "one directory", "directories"])
def test_a_listing_that_was_cut_is_an_error(
    below: str, bucket: servers.BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.objects = {f"{below.format(number % 2)}{number:04}": b"x" for number in range(3000)}
    assert len(prefeed.datasets.Objects("s3://b")) == 3000
    listed = servers.BucketHandler._listed

    def cut(handler: servers.BucketHandler, asked: dict[str, str]) -> str:
        return NO_MORE if "continuation-token" in asked or "start-after" in asked else listed(handler, asked)

    monkeypatch.setattr(servers.BucketHandler, "_listed", cut)
    with pytest.raises(SourceError, match="IsTruncated"):
        prefeed.datasets.Objects("s3://b")


@pytest.mark.parametrize(
    "last",
    [("train.txt", "train/", "train/a\x01"), ("zz//odd", "zzz")],
    ids=["marker at the seam", "marker of the root"],
)
def test_a_copy_of_a_bucket_with_markers_and_odd_keys(
    last: tuple[str, ...], bucket: servers.BucketServer, tmp_path: Path
) -> None:
    """The second client goes on after a page of a thousand keys, in order and with none twice."""
    names = [*(f"{number:04}" for number in range(2000 if "zzz" in last else 998)), *last]
    bucket.objects = {
        f"p/{name}": b"" if name.endswith("/") else b"x" for name in ["", *names] if name or "zzz" in last
    }
    result = sync("s3://b/p", str(tmp_path / "copy"), SyncOptions(), current())
    files = {name for name in names if not name.endswith("/") and "//" not in name}
    assert {
        str(file.relative_to(tmp_path / "copy")) for file in (tmp_path / "copy").rglob("*") if file.is_file()
    } == files
    assert (result.num_failed, result.num_copied) == (0, len(files))


def test_nothing_is_deleted_after_a_line_of_an_index_that_was_left_out(sandbox: Sandbox, tmp_path: Path) -> None:
    write_files(tmp_path / "root", {"a": b"one", "b": b"two"})
    write_files(tmp_path / "copy", {"b": b"two", "old": b""})
    with servers.http_server(tmp_path / "root") as server:
        (tmp_path / "root/index.txt").write_text("a\t3\nb\tunknown\n")
        with pytest.raises(JobError, match=r"leaves out .*line 2.*nothing was deleted"):
            sync(server.url, str(tmp_path / "copy"), SyncOptions(delete_dst=True), current())
        assert {file.name for file in (tmp_path / "copy").iterdir()} == {"a", "b", "old"}
        (tmp_path / "root/index.txt").write_text("a\t3\nb\t\n")
        assert sync(server.url, str(tmp_path / "copy"), SyncOptions(delete_dst=True), current()).num_deleted_dst == 1


def test_a_file_in_the_way_of_a_directory_says_what_to_do(bucket: servers.BucketServer, tmp_path: Path) -> None:
    bucket.objects = {"out": b"1", "out/x": b"2", "z": b"3"}
    (tmp_path / "out").write_bytes(b"of an earlier copy")
    result = sync("s3://b", str(tmp_path), SyncOptions(), current())
    assert (result.num_failed, (tmp_path / "z").read_bytes()) == (1, b"3")
    assert "remove or rename it" in result.failures[0].message


@needs_root
def test_a_mount_leaves_out_what_cannot_be_a_file(bucket: servers.BucketServer, tmp_path: Path) -> None:
    with_own_mounts(_mount_odd_keys, tmp_path, {**bucket.objects, "..": b"up"}, dict(os.environ))


def _mount_odd_keys(root: Path, objects: dict[str, bytes], environment: dict[str, str]) -> None:
    warnings = Warnings()
    with mounted("s3://b", root / "mount") as mounting:
        point = Path(mounting.point)
        files = {str(file.relative_to(point)): file.read_bytes() for file in point.rglob("*") if file.is_file()}
    assert files == {name: objects[name] for name in FILES}
    [text] = warnings.about("left out")
    assert f"({len(ODD_KEYS) - len(FILES)})" in text
    assert "cannot be files" in text
    stop_server()


def test_odd_names_of_a_web_index(sandbox: Sandbox, tmp_path: Path, warnings: Warnings) -> None:
    files = {"d/x": b"one", "plain": b"two", "tab\tin": b"three"}
    write_files(tmp_path / "root", files)
    (tmp_path / "secret").write_bytes(b"secret")
    lines = ["d//x\t3", "./plain\t3", "tab\tin\t5", "../secret\t6", "d/./x\t3", "plain\tunknown", "pl\0ain\t3"]
    (tmp_path / "root/index.txt").write_text("\n".join(lines))
    expected = {"d//x": b"one", "plain": b"two", "tab\tin": b"three"}
    with servers.http_server(tmp_path) as server:
        server.ranges = True
        data = prefeed.datasets.Objects(f"{server.url}/root")
        assert {data.path(index): data[index] for index in range(len(data))} == expected
        fs = fsspec.filesystem("prefeed")
        found = fs.find(f"{server.url}/root")
        assert sorted(map(fs.cat_file, found)) == sorted(expected.values())
        walked = [f"{where}/{name}" for where, _, names in fs.walk(f"{server.url}/root") for name in names]
        assert sorted(walked) == found
        result = sync(f"{server.url}/root", str(tmp_path / "a/copy"), SyncOptions(), current())
        assert (result.num_copied, result.num_failed) == (2, 0)
        prefeed.datasets._readers.close()
        close()
    assert not (tmp_path / "a/secret").exists()
    text = warnings.about("left out")[0]
    assert "(4)" in text
    assert "'../secret'" in text
    assert "zero byte" in text
    assert "line 6" in text


@pytest.mark.parametrize("layout", ["lmdb", "tfrecord"])
def test_odd_keys_in_a_pack(layout: str, bucket: servers.BucketServer, sandbox: Sandbox, tmp_path: Path) -> None:
    pack(PackRequest(source="s3://b", out=str(tmp_path / "pack"), layout=layout), current())
    data = prefeed.datasets.Objects(f"pack+file://{tmp_path}/pack")
    assert {data.path(index): data[index] for index in range(len(data))} == bucket.objects


@pytest.mark.parametrize("key", ["../up.txt", "d/../../up.txt", "/up.txt"])
def test_no_tar_leads_out_of_the_directory_that_it_is_unpacked_in(
    key: str, bucket: servers.BucketServer, tmp_path: Path
) -> None:
    bucket.objects = {key: b"up", "d/x.txt": b"x"}
    with pytest.raises(CannotPackError, match="up"):
        pack(PackRequest(source="s3://b", out=str(tmp_path / "pack"), layout="webdataset"), current())


def _read_in_child(expected: dict[str, bytes]) -> None:
    with closing(open_source("s3://b", current())) as source:
        paths = [info.path for infos in source.list_objects() for info in infos]
        found = {path: bytes(source.fetch(path).data) for path in paths}
    assert found == expected


def test_odd_keys_in_a_forked_worker(bucket: servers.BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ENABLED", "0")
    assert len(prefeed.datasets.Objects("s3://b")) == len(
        bucket.objects
    )  # the native client cannot be used after a fork
    worker = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(bucket.objects,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
