"""``prefeed://`` for fsspec, and the libraries that read through fsspec or from a file object."""

from __future__ import annotations

import gzip
import io
import itertools
import multiprocessing
import os
import resource
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import prefeed
import servers
from leaks import wait_until
from limits import set_limits
from prefeed.errors import ConfigError, SampleSetNotFoundError, UnknownSchemeError
from prefeed.files import close, filesystem
from prefeed.files.filesystem import PrefeedFileSystem
from prefeed.loaders import hugging_face
from prefeed.sources.fork_proxy import ForkedReader
from sandbox import Sandbox
from unit.sampleset.documents import apply, sample_set

BLOCK = 64 * 1024
ROWS = 60_000


@pytest.fixture
def root(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    set_limits(monkeypatch, block_bytes=64 * 1024, start_seconds=120)
    yield tmp_path
    close()
    PrefeedFileSystem.clear_instance_cache()


@pytest.fixture
def bucket(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    objects = {name: name.encode() * 30_000 for name in ("d/a", "d/a?b", "d/a#b", "d/a%20b", "d/e/x.bin", "d?/y")}
    with servers.moto_server() as endpoint:
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        import boto3

        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket="files")
        client.close()
        for name, data in objects.items():
            servers.put_into_moto("files", name, data)
        yield objects
        close()


def test_names_that_a_web_server_lists_are_those_that_open(root: Path) -> None:
    """Whatever is in them: by its name as it is, one would be another object."""
    objects = {name: name.encode() * 30_000 for name in ("a b", "a%20b", "a%2520b", "a?b", "d%/x y")}
    for name, data in objects.items():
        (root / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "data" / name).write_bytes(data)
    servers.write_index(root / "data")
    with servers.http_server(root / "data") as server:
        server.ranges = True
        fs = fsspec.filesystem("prefeed")
        found = fs.find(server.url)
        assert sorted(fs.cat_file(name) for name in found) == sorted(objects.values())
        level = fs.ls(server.url)
        contents = [fs.cat_file(one["name"]) for one in level if one["type"] == "file"]
        assert sorted(contents) == sorted(data for name, data in objects.items() if "/" not in name)
        assert [one["name"] for one in level if one["type"] == "directory"] == [f"{server.url}/d%25"]
        close()


def test_a_bucket(bucket: dict[str, bytes]) -> None:
    fs = fsspec.filesystem("prefeed")
    names = sorted(f"s3://files/{name}" for name in bucket)
    assert fs.find("s3://files") == names
    assert fs.ls("prefeed://s3://files/d", detail=False) == sorted(
        [*(name for name in names if name.startswith("s3://files/d/a")), "s3://files/d/e"]
    )
    assert fs.glob("s3://files/d/**/*.bin") == ["prefeed://s3://files/d/e/x.bin"]
    assert fs.info("s3://files/d/e") == {"name": "s3://files/d/e", "size": 0, "type": "directory"}
    assert fs.isdir("s3://files/d")
    assert fs.isfile("s3://files/d/a?b")
    assert not fs.exists("s3://files/none")
    for name, data in bucket.items():
        assert fs.info(f"s3://files/{name}")["size"] == len(data)
        with fsspec.open(f"prefeed://s3://files/{name}") as file:
            assert file.read() == data
        assert fs.cat_file(f"s3://files/{name}", 5, -7) == data[5:-7]
    paths = ["s3://files/d/a", "s3://files/d/e/x.bin", "s3://files/d/a", "s3://files/none"]
    *found, missing = fs.cat_ranges(paths, [0, 70_000, -5, 0], [10, 70_010, None, 1])
    assert found == [bucket["d/a"][:10], bucket["d/e/x.bin"][70_000:70_010], bucket["d/a"][-5:]]
    assert isinstance(missing, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, 0, 1, on_error="raise")
    assert prefeed.statistics().origin_bytes <= sum(map(len, bucket.values()))


def test_a_forked_child_reads_a_bucket_that_its_parent_has_read(bucket: dict[str, bytes], root: Path) -> None:
    with prefeed.open("s3://files/d/a?b") as file:
        assert file.read(10) == bucket["d/a?b"][:10]
        in_child(_read_bucket, root)
        assert file.read() == bucket["d/a?b"][10:]


def test_a_forked_child_needs_no_process_of_its_own_to_open_and_read(bucket: dict[str, bytes], root: Path) -> None:
    """The node server asks the origin for size and version: a helper would take half a second to start, in each worker."""
    assert fsspec.filesystem("prefeed").cat_file("s3://files/d/a#b") == bucket["d/a#b"]
    in_child(_read_bucket_without_helper, root)


def _read_bucket_without_helper(_: Path) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a helper process was asked")

    ForkedReader._ask = refuse  # type: ignore[method-assign]  # this process ends with the test
    fs = fsspec.filesystem("prefeed")
    for name in ("d/a#b", "d/e/x.bin"):
        assert fs.cat_file(f"s3://files/{name}") == name.encode() * 30_000
    with pytest.raises(FileNotFoundError, match="s3://files/none"):
        fs.cat_file("s3://files/none")
    close()


def _read_bucket(_: Path) -> None:
    fs = fsspec.filesystem("prefeed")
    for name in ("d/a#b", "d/e/x.bin"):
        assert fs.cat_file(f"s3://files/{name}") == name.encode() * 30_000
    assert fs.ls("s3://files/d/e", detail=False) == ["s3://files/d/e/x.bin"]
    close()


def test_it_is_read_only_and_takes_no_credentials(root: Path) -> None:
    fs = fsspec.filesystem("prefeed")
    with pytest.raises(ConfigError, match="only reads"):
        fs.open(str(root / "x"), "wb")
    for act in (
        lambda: fs.rm(str(root)),
        lambda: fs.mkdir(str(root / "x")),
        lambda: fs.pipe_file(str(root / "x"), b""),
    ):
        with pytest.raises((NotImplementedError, ConfigError)):
            act()
    for options in (
        {"target_options": {"secret": "x"}},
        {"anon": True},
        {"endpoint_url": "http://host"},
        {"client_kwargs": {"headers": {"Authorization": "x"}}},
        {"account-key": "x"},
        {"aws_session_token": "x"},
        {"requester_pays": True},
    ):
        with pytest.raises(ConfigError, match="set credentials and endpoints in the environment") as refused:
            fsspec.filesystem("prefeed", **options)
        assert "'x'" not in str(refused.value)
    with pytest.raises(UnknownSchemeError, match="no source reads ftp://"):
        fsspec.filesystem("prefeed").ls("ftp://host/x")


def test_options_of_other_file_systems_are_accepted_and_ignored(
    root: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Libraries pass them to every file system: Hugging Face's datasets, pandas, dask, zarr."""
    (root / "x.txt").write_bytes("ä\r\nb".encode("latin-1") * BLOCK)
    options: dict[str, Any] = {
        "encoding": "latin-1", "errors": "strict", "block_size": 0, "cache_type": "readahead", "cache_options": {},
        "client_kwargs": {"trust_env": True, "headers": {"Accept-Encoding": "identity"}}, "anon": False, "token": None,
        "default_fill_cache": False, "use_ssl": True, "auto_mkdir": True, "size_policy": "get", "version_aware": False,
    }  # fmt: skip
    url = f"prefeed://{root}/x.txt"
    with caplog.at_level("DEBUG", "prefeed"):
        fs, path = fsspec.url_to_fs(url, **options)
    (line,) = (line for line in caplog.messages if "do not apply" in line)
    assert "block_size" in line
    assert "client_kwargs" in line
    with fs.open(path, "rt", encoding="latin-1", errors="strict", newline="", block_size=0, cache_type="all") as file:
        assert file.read(5) == "ä\r\nbä"
    for opened in (
        fsspec.open(url, "rb", **options),
        fsspec.open(f"prefeed::file://{root}/x.txt", file={"auto_mkdir": False}),
    ):
        with opened as file:
            assert file.read() == (root / "x.txt").read_bytes()
    assert fs.ls(str(root), refresh=True) == fs.listdir(str(root))
    assert fs.find(str(root), refresh=True) == [str(root / "x.txt")]
    fs.get_file(path, str(tmp_path / "copy"), callback=fsspec.callbacks.NoOpCallback(), block_size=5)
    assert (tmp_path / "copy").read_bytes() == (root / "x.txt").read_bytes()


@pytest.mark.parametrize("scheme", ["prefeed://", "prefeed://file://", "prefeed::file://", "prefeed:/"])
def test_what_is_in_an_archive_or_compressed(root: Path, scheme: str) -> None:
    """Also by ``prefeed:/`` and an absolute path: pathlib, which Hugging Face's datasets use on URLs, drops a slash."""
    data = os.urandom(3 * BLOCK)
    (root / "x.gz").write_bytes(gzip.compress(data))
    with zipfile.ZipFile(root / "x.zip", "w") as archive, tarfile.open(root / "x.tar", "w") as tar:
        archive.writestr("d/x.bin", data)
        tar.add(root / "x.gz", "d/x.gz")
    with fsspec.open(f"{scheme}{root}/x.gz", compression="infer", block_size=0) as file:
        assert file.read() == data
    for kind, name, compression in (("zip", "d/x.bin", None), ("tar", "d/x.gz", "gzip")):
        with fsspec.open(f"{kind}://{name}::{scheme}{root}/x.{kind}", compression=compression) as file:
            assert file.read() == data
    assert fsspec.filesystem("prefeed").isfile(f"{scheme}{root}/x.zip")
    with pytest.raises(FileNotFoundError, match=str(root / "none")):
        fsspec.open(f"{scheme}{root}/none").open()


def test_a_sample_set_named_as_a_directory_of_the_root_comes_first(root: Path) -> None:
    (root / "x.bin").write_bytes(b"in the set")
    fs = fsspec.filesystem("prefeed")
    first = root.parts[1]
    assert fs.cat_file(f"prefeed:/{root}/x.bin") == b"in the set"
    with pytest.raises(SampleSetNotFoundError, match="no-such-directory"):
        fs.cat_file("prefeed://no-such-directory/x.bin")
    apply(sample_set(name=first, source={"uri": str(root)}))
    assert fs.cat_file(f"prefeed://{first}/x.bin") == b"in the set"
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"prefeed:/{root}/x.bin")


@pytest.mark.parametrize("scheme", ["", "prefeed://", "prefeed://file://", "prefeed:/", "sampleset://"])
def test_a_directory_is_copied_to_local_files(
    root: Path, scheme: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = {"d/a": b"a", "d/e/b": b"b" * BLOCK}
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    if scheme == "sampleset://":
        apply(sample_set(name="numbers", source={"uri": str(root)}))
    base = "sampleset://numbers" if scheme == "sampleset://" else f"{scheme}{root}"
    fs = fsspec.filesystem("prefeed")
    for number, (path, prefix) in enumerate(((f"{base}/d", "d/"), (f"{base}/d/", "d/"), ([f"{base}/d/a"], "d/"))):
        copy = tmp_path_factory.mktemp("copies") / str(number)
        fs.get(path, f"{copy}/" if isinstance(path, list) else str(copy), recursive=True)
        found = {str(file.relative_to(copy)): file.read_bytes() for file in copy.rglob("*") if file.is_file()}
        names = ["d/a"] if isinstance(path, list) else list(files)
        assert found == {name.removeprefix(prefix): files[name] for name in names}


def test_an_account_in_a_url_is_no_container(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("prefeed")
    url = "abfs://images@ours.dfs.core.windows.net/a/b.bin"
    with pytest.raises(
        ConfigError, match=r"in the account 'ours', and prefeed is configured for none: .*ACCOUNT_NAME=ours"
    ):
        fs._full_url(url)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "theirs")
    with pytest.raises(ConfigError, match="is configured for theirs"):
        fs._full_url(url)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "ours")
    assert fs._full_url(url) == fs._full_url("prefeed://abfss://images/a/b.bin") == "az://images/a/b.bin"


def test_ranges_that_cannot_be_read_stand_among_those_that_can(root: Path) -> None:
    (root / "x").write_bytes(b"0123456789")
    fs = fsspec.filesystem("prefeed")
    paths = [str(root / "x"), str(root / "none"), "ftp://host/x", str(root / "x")]
    found = fs.cat_ranges(paths, [0, 0, 0, 2], [3, 3, 3, 4], on_error="return")
    assert (found[0], found[3]) == (b"012", b"23")
    assert isinstance(found[1], FileNotFoundError)
    assert isinstance(found[2], UnknownSchemeError)
    assert found[1].__traceback__ is None
    with pytest.raises(UnknownSchemeError):
        fs.cat_ranges(paths[2:], 0, 3, on_error="raise")


def test_ranges_of_many_files_of_a_local_disk_hold_no_descriptors(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("local")
    paths = [str(directory / f"{number}") for number in range(64)]
    for path in paths:
        Path(path).write_bytes(path.encode())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    free = (number for number in itertools.count() if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, 32, None)), limits[1]))
    try:
        found = fsspec.filesystem("prefeed").cat_ranges(paths, 0, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert found == [path.encode() for path in paths]


def test_as_an_outer_protocol(root: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (root / name).write_bytes(name.encode() * 20_000)
    inner = f"prefeed::file://{root}"
    with fsspec.open(f"{inner}/a.txt") as file:
        assert file.read() == b"a.txt" * 20_000
    opened = fsspec.open_files(f"{inner}/*.txt")
    assert [one.path for one in opened] == [f"prefeed://file://{root}/{name}.txt" for name in "ab"]
    for one, name in zip(fsspec.open_files([f"{inner}/b.txt", f"{inner}/a.txt"]), "ba", strict=True):
        with one as file:
            assert file.read() == f"{name}.txt".encode() * 20_000


@pytest.mark.parametrize("inner", ["nfs5://host/x", "ftp://host/x"])
def test_an_inner_protocol_that_no_source_reads_is_named(root: Path, inner: str) -> None:
    with pytest.raises((UnknownSchemeError, ValueError), match=inner[: inner.index(":")]):
        fsspec.open(f"prefeed::{inner}").open()


def test_a_sample_set(root: Path) -> None:
    (root / "x.bin").write_bytes(data := os.urandom(3 * BLOCK))
    apply(sample_set(name="numbers", source={"uri": str(root)}))
    for url in ("prefeed://numbers/x.bin", "prefeed://sampleset://numbers/x.bin", "sampleset://numbers/x.bin"):
        with fsspec.open(url) as file:
            assert file.read() == data
    assert fsspec.filesystem("prefeed").ls("numbers", detail=False) == ["sampleset://numbers/x.bin"]


# ------------------------------------------------------------ libraries


def in_child(scenario: Callable[[Path], None], root: Path) -> None:
    """Run it in a forked process: libraries keep threads and descriptors until the end of theirs."""
    process = multiprocessing.get_context("fork").Process(target=scenario, args=(root,))
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()


def write_parquet(root: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(1)
    table = pa.table({"id": np.arange(ROWS), "value": random.random(ROWS), "text": [f"row {i}" for i in range(ROWS)]})
    pq.write_table(table, root / "x.parquet", row_group_size=10_000)
    return root / "x.parquet"


def test_pandas_pyarrow_and_polars(root: Path) -> None:
    in_child(_read_tables, root)


def _read_tables(root: Path) -> None:
    parquet = write_parquet(root)
    import pandas as pd
    import polars as pl
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    expected = pq.read_table(parquet)
    url = f"prefeed://{parquet}"
    assert pd.read_parquet(url).equals(expected.to_pandas())
    fs = PyFileSystem(FSSpecHandler(fsspec.filesystem("prefeed")))
    assert pq.read_table(str(parquet), filesystem=fs).equals(expected)
    assert (
        ds.dataset(str(parquet.parent), filesystem=fs, format="parquet")
        .to_table(columns=["id"])
        .equals(expected.select(["id"]))
    )
    with prefeed.open(parquet) as file:
        assert pq.ParquetFile(file).read_row_group(3).equals(expected.slice(30_000, 10_000))
        file.seek(0)
        assert pl.read_parquet(file).to_arrow().column("value").to_pylist() == expected.column("value").to_pylist()
    with fsspec.open(url) as file:
        assert pl.read_parquet(file, columns=["id"])["id"].to_list() == list(range(ROWS))
    with fsspec.open(url) as file:
        assert pl.scan_parquet(file).filter(pl.col("id") < 3).select("text").collect()["text"].to_list() == [
            "row 0", "row 1", "row 2"
        ]  # fmt: skip
    with pytest.raises((OSError, pl.exceptions.ComputeError), match=r"eed:///"):  # it shortens long paths
        pl.read_parquet(url)
    changing = root / "changing.parquet"
    pq.write_table(expected, changing, row_group_size=10_000)
    with prefeed.open(changing, readahead=False) as file:
        opened = pq.ParquetFile(file)
        assert opened.read_row_group(0).equals(expected.slice(0, 10_000))
        pq.write_table(expected.slice(10), changing, row_group_size=10_000)
        with pytest.raises(OSError, match="changed while it was read"):
            opened.read_row_group(4)
    with prefeed.open(changing) as file:
        assert pq.ParquetFile(file).read_row_group(0).equals(expected.slice(10, 10_000))
    frame = pd.DataFrame({"a": range(20_000), "b": [f"t{i}" for i in range(20_000)]})
    frame.to_csv(root / "x.csv", index=False)
    assert pd.read_csv(f"prefeed://{root}/x.csv").equals(frame)


def test_parquet_is_read_ahead_and_so_is_the_file_that_is_streamed_next(root: Path) -> None:
    in_child(_stream_parquet, root)


def _stream_parquet(root: Path) -> None:
    import pyarrow.parquet as pq

    first = write_parquet(root)
    second = first.rename(root / "y.parquet")
    write_parquet(root)
    size, expected = first.stat().st_size, pq.read_table(second)
    assert size > 10 * BLOCK
    urls = [f"prefeed://{first}", f"prefeed://{second}"]
    for shard in hugging_face.InOrder([{"files": [url]} for url in urls]):
        (url,) = shard["files"]
        with fsspec.open(url) as file:
            opened = pq.ParquetFile(file)
            parts = [opened.read_row_group(number) for number in range(4)]  # of six
            # the rest, and all of the next file, while this one is read
            assert wait_until(lambda: prefeed.statistics().origin_bytes == 2 * size, timeout_seconds=60)
            parts += [opened.read_row_group(number) for number in range(4, 6)]
        assert _joined(parts).equals(expected)
    statistics = prefeed.statistics()
    assert statistics.origin_bytes == 2 * size
    with pytest.MonkeyPatch.context() as patch, fsspec.open(urls[0]) as file:
        patch.setattr("prefeed.client.block_file.row_groups_of", lambda _: pytest.fail("all of it is cached"))
        assert pq.read_table(file).equals(expected)
    assert hugging_face.following(str(second)) is None


def test_of_a_parquet_file_that_is_streamed_next_the_same_columns_are_fetched(root: Path) -> None:
    in_child(_stream_columns, root)


def _stream_columns(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_files, column_bytes = 3, 30 * BLOCK
    for number in range(num_files):
        columns = {name: [os.urandom(column_bytes // 100) for _ in range(100)] for name in "abcd"}
        pq.write_table(pa.table(columns), root / f"{number}.parquet", compression="none", use_dictionary=False)
    urls = [f"prefeed://{root}/{number}.parquet" for number in range(num_files)]
    for number, shard in enumerate(hugging_face.InOrder([{"files": [url]} for url in urls])):
        (url,) = shard["files"]
        with fsspec.open(url) as file:
            ahead = getattr(file, "_consumer", 0)
            assert bool(ahead) == (number > 0)
            part = pq.ParquetFile(file).read(columns=["b", "d"])
            assert part.equals(pq.read_table(root / f"{number}.parquet", columns=["b", "d"]))
            num_known = min(number + 2, num_files)
            expected = num_known * 2 * column_bytes  # the ends of columns may be read without a block
            assert wait_until(
                lambda least=0.9 * expected: prefeed.statistics().origin_bytes >= least, timeout_seconds=60
            )
            assert prefeed.statistics().origin_bytes <= 1.1 * (expected + num_known * 64 * 1024) + num_known * BLOCK


def _joined(parts: list[Any]) -> Any:
    import pyarrow as pa

    return pa.concat_tables(parts)


def test_a_file_that_was_opened_ahead_long_ago_is_used_if_it_has_not_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / "x"
    path.write_bytes(b"a" * BLOCK)
    fs = fsspec.filesystem("prefeed")
    with fs.open(str(path)) as before:
        for fresh_seconds, changes in ((60, False), (0, False), (0, True)):
            monkeypatch.setattr("prefeed.files.filesystem._FRESH_SECONDS", fresh_seconds)
            fs._open_ahead(str(path), before)
            (ahead,) = (file for _, file in filesystem._ahead.values())
            if changes:
                path.write_bytes(b"b" * BLOCK)
            with in_thread(lambda: fsspec.filesystem("prefeed").open(str(path))) as file:
                assert (file is ahead) == (not changes)  # asked for again, it is the same
                assert file.read() == (b"b" if changes else b"a") * BLOCK
            assert ahead.closed
            assert not filesystem._ahead
    fs._open_ahead(str(root / "none"), before)  # its reader meets the error
    assert not filesystem._ahead


def in_thread(act: Callable[[], Any]) -> Any:
    """Return what is returned in another thread: fsspec makes a file system for each."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(act).result()


def test_zarr(root: Path) -> None:
    in_child(_use_zarr, root)


def _use_zarr(root: Path) -> None:
    import zarr

    array = zarr.create_array(str(root / "x.zarr"), shape=(300, 400), chunks=(100, 100), dtype="f4")
    array[:] = expected = np.random.default_rng(1).random((300, 400), dtype=np.float32)
    found: Any = zarr.open_array(f"prefeed://{root}/x.zarr", mode="r")
    np.testing.assert_array_equal(found[:], expected)
    np.testing.assert_array_equal(found[10:20, 350:], expected[10:20, 350:])


def test_h5py(root: Path) -> None:
    import h5py

    expected = np.random.default_rng(1).random((500, 300))
    with h5py.File(root / "x.h5", "w") as made:
        made.create_dataset("x", data=expected, chunks=(50, 30), compression="gzip")
    with prefeed.open(root / "x.h5") as file, h5py.File(file) as found:
        np.testing.assert_array_equal(found["x"][:], expected)
        np.testing.assert_array_equal(found["x"][100:120, 7], expected[100:120, 7])


def test_safetensors(root: Path) -> None:
    from safetensors.numpy import load, save_file

    tensors = {name: np.random.default_rng(1).random((200, 300)) for name in ("a", "b")}
    save_file(tensors, root / "x.safetensors")
    with prefeed.open(root / "x.safetensors") as file:
        found = load(file.read())
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor)


def make_shards(root: Path, num_shards: int, samples: int) -> list[str]:
    random = np.random.default_rng(1)
    for shard in range(num_shards):
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for sample in range(samples):
                data = random.integers(0, 256, 30_000, dtype=np.uint8).tobytes()
                member = tarfile.TarInfo(f"{shard}-{sample}.bin")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return [str(root / f"{shard}.tar") for shard in range(num_shards)]


def members(path: str) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(one.name.removesuffix(".bin"), tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]


def test_webdataset(root: Path) -> None:
    import webdataset as wds

    from prefeed.files.webdataset import register

    register()
    paths = make_shards(root, 3, 20)
    plain = [member for path in paths for member in members(path)]
    urls = [f"prefeed:{path}" for path in paths]
    for _ in range(2):
        assert [(one["__key__"], one["bin"]) for one in wds.WebDataset(urls, shardshuffle=False)] == plain
    assert prefeed.statistics().origin_bytes == sum(os.stat(path).st_size for path in paths)
