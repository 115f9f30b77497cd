"""Packing from end to end: round trips, going on, and what is refused."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest

import servers
from prefeed.config import Config, current
from prefeed.errors import (
    CannotPackError,
    EmptyListingError,
    ObjectNotFoundError,
    PackError,
    PackFullError,
    PackOccupiedError,
    PackSourceChangedError,
)
from prefeed.packing import driver, place, writing
from prefeed.packing.driver import PackRequest, pack
from prefeed.packing.environment import EnvironmentWriter
from prefeed.packing.journal import Journal
from prefeed.sources.pack_index import INDEX_NAME
from prefeed.sources.posix import PosixSource
from sandbox import Sandbox
from unit.packing.packs import LAYOUTS, make_files, names, packed, read_back, shards

pytestmark = pytest.mark.usefixtures("sandbox")
_ticks = itertools.count()
layouts = pytest.mark.parametrize("layout", LAYOUTS)


@layouts
@pytest.mark.parametrize("seed", [None, 5])
def test_round_trip(tmp_path: Path, layout: str, seed: int | None) -> None:
    files = make_files(tmp_path / "src")
    result = packed(tmp_path / "src", tmp_path / "out", layout, seed=seed, **shards(layout))

    assert read_back(tmp_path / "out") == files
    assert (result.objects, result.bytes, result.packed, result.kept) == (60, sum(map(len, files.values())), 60, 0)
    assert result.data_files == len(names(tmp_path / "out")) - 1
    assert (result.data_files > 2) == (layout != "lmdb")
    assert not any(name.endswith((".partial", ".journal")) for name in names(tmp_path / "out"))


@layouts
def test_the_same_files_make_the_same_pack(tmp_path: Path, layout: str) -> None:
    make_files(tmp_path / "src")
    for out in ("one", "two"):
        packed(tmp_path / "src", tmp_path / out, layout, seed=1, **shards(layout))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in names(directory)}


@layouts
def test_a_finished_pack_stays_as_it_is(tmp_path: Path, layout: str) -> None:
    make_files(tmp_path / "src")
    packed(tmp_path / "src", tmp_path / "out", layout)
    before = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in names(tmp_path / "out")}
    again = packed(tmp_path / "src", tmp_path / "out", layout)

    assert (again.packed, again.kept) == (0, 60)
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in names(tmp_path / "out")} == before


def test_a_finished_pack_of_files_that_changed_is_not_touched(tmp_path: Path) -> None:
    make_files(tmp_path / "src")
    packed(tmp_path / "src", tmp_path / "out", "tfrecord")
    before = contents(tmp_path / "out")
    (tmp_path / "src" / "cat" / "0000.jpg").write_bytes(b"other")

    with pytest.raises(PackOccupiedError, match="changed since"):
        packed(tmp_path / "src", tmp_path / "out", "tfrecord")
    with pytest.raises(PackOccupiedError, match=r"holds a finished pack of .* --format tfrecord"):
        packed(tmp_path / "src", tmp_path / "out", "lmdb")
    assert contents(tmp_path / "out") == before


# ------------------------------------------------------------ going on

KILLED_AT_EVERY_STEP = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from prefeed.config import current
from prefeed.packing.driver import PackRequest, pack
from prefeed.packing import writing

source, out, layout, shard_bytes = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
writing._BATCH_OBJECTS = 20
request = PackRequest(source=source, out=str(out), layout=layout, shard_bytes=shard_bytes)
left = 0

def killing(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(os, name, call)

def run(steps):
    global left
    pid = os.fork()
    if not pid:
        left = steps
        if steps:
            for name in ("fsync", "replace", "pwrite", "ftruncate", "unlink"):
                killing(name)
        try:
            result = pack(request, current())
            os._exit(0 if steps else 100 + bool(result.kept))
        except BaseException as err:
            print(repr(err), file=sys.stderr)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]

assert os.waitstatus_to_exitcode(run(0)) == 100
whole = {path.name: path.read_bytes() for path in out.iterdir()}
kept = 0
for steps in itertools.count(1):
    shutil.rmtree(out)
    code = os.waitstatus_to_exitcode(run(steps))
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    if (out / "prefeed-pack.index").exists():
        assert {p.name: p.read_bytes() for p in out.iterdir() if p.name not in ("prefeed-pack.journal", "lock.mdb")} == whole, steps
    code = os.waitstatus_to_exitcode(run(0))
    assert code in (100, 101), (steps, code)
    kept += code == 101
    found = {path.name: path.read_bytes() for path in out.iterdir()}
    if layout == "lmdb":  # transactions that were begun again lie elsewhere in the file
        assert found.keys() == whole.keys(), steps
    else:
        assert found == whole, steps
print(steps, kept)
"""


@layouts
def test_killed_at_every_step_it_continues(tmp_path: Path, layout: str, sandbox: Sandbox) -> None:
    """SIGKILL before each call that changes something: the next run ends with the same pack, and keeps what was done."""
    files = make_files(tmp_path / "src")
    out = sandbox.memory_dir / "out"  # where fsync, which each step waits for, costs nothing
    arguments = [str(tmp_path / "src"), str(out), layout, "0" if layout == "lmdb" else "120000"]
    ran = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_STEP, *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    steps, kept = map(int, ran.stdout.split())
    assert steps > 12
    assert kept > 2
    assert read_back(out) == files


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return what packs ``src`` into ``out`` and is stopped after some parts."""

    def stop_after(layout: str, parts: int) -> Path:
        monkeypatch.setattr(writing, "_BATCH_OBJECTS", 10)
        real = Journal.add

        def add(journal: Journal, part: Any) -> None:
            real(journal, part)
            if len(journal.parts) == parts:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Journal, "add", add)
            packed(tmp_path / "src", tmp_path / "out", layout, **shards(layout))
        return tmp_path / "out"

    return stop_after


@layouts
def test_what_was_packed_is_not_read_again(
    tmp_path: Path, layout: str, interrupted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_files(tmp_path / "src")
    out = interrupted(layout, 2)
    fetched: list[str] = []
    real = PosixSource.fetch

    def fetch(source: PosixSource, path: str) -> Any:
        fetched.append(path)
        return real(source, path)

    monkeypatch.setattr(PosixSource, "fetch", fetch)
    result = packed(tmp_path / "src", out, layout, **shards(layout))

    assert result.kept > 10
    assert len(fetched) == result.packed == 60 - result.kept
    assert read_back(out) == files


@layouts
def test_files_that_changed_meanwhile_are_packed_again(
    tmp_path: Path, layout: str, interrupted: Callable[..., Path]
) -> None:
    files = make_files(tmp_path / "src")
    out = interrupted(layout, 2)
    first = min(files)
    for path in (first, "größe/9999.jpg"):
        (tmp_path / "src" / path).write_bytes(b"new")
        files[path] = b"new"
    (tmp_path / "src" / "cat/0003.jpg").unlink()
    del files["cat/0003.jpg"]
    result = packed(tmp_path / "src", out, layout, **shards(layout))

    assert result.kept == 0
    assert read_back(out) == files
    assert len([name for name in names(out) if name != INDEX_NAME]) == result.data_files


def test_what_was_written_and_not_noted_goes_when_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between a batch and its note; then one of its files was removed."""
    files = make_files(tmp_path / "src")
    monkeypatch.setattr(writing, "_BATCH_OBJECTS", 20)

    real = Journal.add

    def killed(journal: Journal, part: Any) -> None:
        if journal.parts:
            raise KeyboardInterrupt
        real(journal, part)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Journal, "add", killed)
        packed(tmp_path / "src", tmp_path / "out", "lmdb")
    of_the_second = sorted(files, key=str.encode)[25]
    (tmp_path / "src" / of_the_second).unlink()
    del files[of_the_second]
    assert packed(tmp_path / "src", tmp_path / "out", "lmdb").kept == 20
    assert values_of(tmp_path / "out") == files


def test_a_sample_that_has_grown_is_not_split(tmp_path: Path, interrupted: Callable[..., Path]) -> None:
    """A file more for the last sample of the last whole data file: that data file is packed anew."""
    import tarfile

    files = make_files(tmp_path / "src")
    out = interrupted("webdataset", 1)
    with tarfile.open(out / "shard-000000.tar") as tar:
        last = tar.getnames()[-1]
    added = last.removesuffix(".seg.PNG") + ".txt"
    (tmp_path / "src" / added).write_bytes(b"more")
    result = packed(tmp_path / "src", out, "webdataset", **shards("webdataset"))

    assert result.kept == 0
    assert read_back(out) == {**files, added: b"more"}


def test_other_options_do_not_resume(tmp_path: Path, interrupted: Callable[..., Path]) -> None:
    make_files(tmp_path / "src")
    out = interrupted("tfrecord", 1)
    with pytest.raises(PackOccupiedError, match=r"unfinished pack of .* --shard-size 60000"):
        packed(tmp_path / "src", out, "tfrecord", shard_bytes=70_000)


def test_two_do_not_pack_into_one_directory(tmp_path: Path) -> None:
    make_files(tmp_path / "src")
    (tmp_path / "out").mkdir()
    with Journal.open(tmp_path / "out"), pytest.raises(PackOccupiedError, match="another process"):
        packed(tmp_path / "src", tmp_path / "out", "lmdb")


# ------------------------------------------------------------ refused


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    make_files(tmp_path / "src")
    for name in ("thesis.txt", "shard-000000.tar", "data.mdb"):
        out = tmp_path / f"with-{name}"
        out.mkdir()
        (out / name).write_bytes(b"precious")
        with pytest.raises(PackOccupiedError, match="something else"):
            packed(tmp_path / "src", out, "webdataset")
        assert contents(out) == {name: b"precious"}
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PackOccupiedError, match="is a file"):
        packed(tmp_path / "src", tmp_path / "file", "lmdb")


def test_names_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    make_files(tmp_path / "src")
    (tmp_path / "src" / "README").write_bytes(b"x")
    with pytest.raises(CannotPackError, match="does not take 'README'"):
        packed(tmp_path / "src", tmp_path / "out", "webdataset")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "zip"}, "choose one of lmdb, webdataset, tfrecord"),
        ({"layout": "lmdb", "shard_bytes": 5}, "one file"),
        ({"layout": "lmdb", "out": "src/out"}, "lies in"),
        ({"layout": "lmdb", "out": "src"}, "lies in"),
        ({"layout": "lmdb", "out": "https://host/x"}, "cannot be written"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    make_files(tmp_path / "src")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CannotPackError, match=words):
        pack(PackRequest(**{"source": "src", "out": "out", **options}), current())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "out"), [("src", "link/out"), ("link", "src/out"), ("link", "src"), ("src", "link")]
)
def test_the_origin_is_not_written_through_a_link(tmp_path: Path, source: str, out: str) -> None:
    files = make_files(tmp_path / "src")
    (tmp_path / "link").symlink_to(tmp_path / "src")
    with pytest.raises(CannotPackError, match="the directory to pack"):
        packed(tmp_path / source, tmp_path / out, "lmdb")
    assert sum(len(found) for _, _, found in os.walk(tmp_path / "src")) == len(files)


def test_all_of_the_machine_is_not_packed_into_itself(tmp_path: Path) -> None:
    with pytest.raises(CannotPackError, match="the directory to pack"):
        packed("/", tmp_path / "out", "lmdb")


@pytest.mark.parametrize("out", ["/proc/none", "file/out", "n" * 300])
def test_a_place_that_cannot_be_written(tmp_path: Path, out: str) -> None:
    make_files(tmp_path / "src", samples=1)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PackError, match=out):
        packed(tmp_path / "src", tmp_path / out, "lmdb")


def test_an_empty_or_missing_source(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(EmptyListingError):
        packed(tmp_path / "src", tmp_path / "out", "lmdb")
    with pytest.raises(ObjectNotFoundError):
        packed(tmp_path / "none", tmp_path / "out", "lmdb")
    assert not (tmp_path / "out").exists()


@layouts
def test_room_is_asked_for_beforehand(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_files(tmp_path / "src")
    total = sum(map(len, files.values()))
    monkeypatch.setattr(place.shutil, "disk_usage", lambda path: SimpleNamespace(free=total - 1))
    with pytest.raises(PackFullError, match=f"{total - 1:,} bytes free"):
        packed(tmp_path / "src", tmp_path / "out", layout)
    assert not any("shard" in name or name == "data.mdb" for name in names(tmp_path / "out"))


@layouts
def test_a_full_disk_is_said_and_what_is_packed_stays(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_files(tmp_path / "src")
    monkeypatch.setattr(writing, "_BATCH_OBJECTS", 20)
    full = os.strerror(errno.ENOSPC)
    calls = itertools.count()

    def fail_later(real: Any, error: Exception) -> Any:
        def call(*args: Any) -> Any:
            if next(calls) == 1:
                raise error
            return real(*args)

        return call

    with monkeypatch.context() as patched, pytest.raises(PackFullError, match="run the same command again"):
        put = fail_later(EnvironmentWriter.put, lmdb.Error(f"mdb_txn_commit: {full}"))
        patched.setattr(EnvironmentWriter, "put", put)
        finish = fail_later(writing._Shard.finish, OSError(errno.ENOSPC, full))
        patched.setattr(writing._Shard, "finish", finish)
        packed(tmp_path / "src", tmp_path / "out", layout, **shards(layout))
    assert packed(tmp_path / "src", tmp_path / "out", layout, **shards(layout)).kept > 0
    assert read_back(tmp_path / "out") == files


@layouts
def test_a_file_that_changes_while_it_is_packed(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_files(tmp_path / "src")
    changing = sorted(files)[40]
    real = PosixSource.fetch

    def fetch(source: PosixSource, path: str) -> Any:
        if path == changing:
            (tmp_path / "src" / path).write_bytes(b"changed")
        return real(source, path)

    with monkeypatch.context() as patched, pytest.raises(PackSourceChangedError, match="run the same command again"):
        patched.setattr(PosixSource, "fetch", fetch)
        packed(tmp_path / "src", tmp_path / "out", layout, **shards(layout))
    assert not (tmp_path / "out" / INDEX_NAME).exists()
    packed(tmp_path / "src", tmp_path / "out", layout, **shards(layout))
    assert read_back(tmp_path / "out") == {**files, changing: b"changed"}


# ------------------------------------------------------------ other places


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3

    with servers.moto_server() as endpoint:
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        name = f"packs-{next(_ticks)}"  # moto's servers of one process share what they hold
        client.create_bucket(Bucket=name)
        yield SimpleNamespace(client=client, name=name, url=f"s3://{name}")
        client.close()


@layouts
def test_into_and_from_a_bucket(tmp_path: Path, layout: str, bucket: Any) -> None:
    files = make_files(tmp_path / "src", samples=9)
    for path, data in files.items():
        servers.put_into_moto(bucket.name, f"src/{path}", data)
    result = packed(f"{bucket.url}/src", f"{bucket.url}/out", layout, **shards(layout))

    assert result.url == f"pack+{bucket.url}/out"
    assert read_back(f"{bucket.url}/out") == files
    assert packed(f"{bucket.url}/src", f"{bucket.url}/out", layout, **shards(layout)).packed == 0
    assert list((current().home / "packing").glob("*/*")) == []
    with pytest.raises(PackOccupiedError, match="something else"):
        packed(f"{bucket.url}/src", f"{bucket.url}/sr", layout)  # no directory: a prefix of names
        packed(tmp_path / "src", f"{bucket.url}/src", layout)


def test_a_bucket_that_does_not_exist(tmp_path: Path, bucket: Any) -> None:
    """Found before anything is packed, whether it is read from or written into; the message names the server that was asked."""
    make_files(tmp_path / "src")
    for source, out in ((tmp_path / "src", "s3://none/out"), ("s3://none/src", tmp_path / "out")):
        with pytest.raises(ObjectNotFoundError, match=r"the bucket none does not exist .*the endpoint is http://127"):
            packed(source, out, "lmdb")
    assert not list((current().home / "packing").glob("*/*.mdb"))


def test_a_pack_in_a_bucket_continues(tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_files(tmp_path / "src")
    real = Journal.add

    def add(journal: Journal, part: Any) -> None:
        real(journal, part)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Journal, "add", add)
        packed(tmp_path / "src", f"{bucket.url}/out", "tfrecord", **shards("tfrecord"))
    result = packed(tmp_path / "src", f"{bucket.url}/out", "tfrecord", **shards("tfrecord"))
    assert result.kept > 10
    assert read_back(f"{bucket.url}/out") == files


def test_data_files_of_a_listing_before_do_not_stay_in_a_bucket(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others read all of ``shard-*``: those of files that are gone would be read with them."""
    files = make_files(tmp_path / "src")

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(driver, "write_index", stopped)
        packed(tmp_path / "src", f"{bucket.url}/out", "tfrecord", **shards("tfrecord"))
    bucket.client.put_object(Bucket=bucket.name, Key="out/shard-000099.tfrecord", Body=b"somebody's")
    kept = {path: files[path] for path in sorted(files)[:3]}
    for path in files.keys() - kept.keys():
        (tmp_path / "src" / path).unlink()
    result = packed(tmp_path / "src", f"{bucket.url}/out", "tfrecord", **shards("tfrecord"))

    found = {entry["Key"] for entry in bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]}
    assert result.data_files == 1
    assert found == {"out/shard-000000.tfrecord", "out/shard-000099.tfrecord", f"out/{INDEX_NAME}"}
    assert read_back(f"{bucket.url}/out") == kept


def test_a_pack_can_be_packed(tmp_path: Path) -> None:
    files = make_files(tmp_path / "src")
    url = packed(tmp_path / "src", tmp_path / "one", "lmdb").url
    packed(url, tmp_path / "two", "tfrecord")
    assert read_back(tmp_path / "two") == files


def test_a_pack_can_be_moved(tmp_path: Path) -> None:
    files = make_files(tmp_path / "src")
    packed(tmp_path / "src", tmp_path / "out", "webdataset")
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    assert read_back(tmp_path / "elsewhere") == files


def test_names_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    name = os.fsdecode(b"caf\xe9.bin")
    (tmp_path / "src" / name).write_bytes(b"x")
    for layout in LAYOUTS:
        packed(tmp_path / "src", tmp_path / layout, layout)
        assert read_back(tmp_path / layout) == {name: b"x"}


def test_values_of_an_environment_are_lmdbs(tmp_path: Path) -> None:
    files = make_files(tmp_path / "src")
    packed(tmp_path / "src", tmp_path / "out", "lmdb")
    assert values_of(tmp_path / "out") == files


def values_of(directory: Path) -> dict[str, bytes]:
    with lmdb.open(str(directory), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return {key.decode(): value for key, value in transaction.cursor()}


def test_settings_name_the_home(tmp_path: Path) -> None:
    make_files(tmp_path / "src")
    home = tmp_path / "home"
    pack(PackRequest(source=str(tmp_path / "src"), out=str(tmp_path / "out"), layout="lmdb"), Config(home=home))
    assert {entry.name for entry in home.iterdir()} == {"manifests"}
