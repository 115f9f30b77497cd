"""Every builder of Hugging Face ``datasets`` reads ``prefeed://`` as it reads paths: streamed and not, compressed, and in zip archives."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import multiprocessing
import tarfile
import wave
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import servers
from limits import set_limits
from sandbox import Sandbox

if importlib.util.find_spec("datasets") is None:
    pytest.skip("the libraries are not installed: make test-programs", allow_module_level=True)

NUM_ROWS = 50
FORMS = (
    "{scheme}{root}/plain/**",
    "{scheme}{root}/plain/{one}",
    "{scheme}{root}/gz/**",
    "{scheme}{root}/zst/**",
    "{scheme}{root}/x.zip",
    "zip://{one}::{scheme}{root}/x.zip",
    "zip://**::{scheme}{root}/x.zip",
)


@pytest.fixture
def root(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {
        "PREFEED_ROOTS": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    set_limits(monkeypatch, block_bytes=64 * 1024, start_seconds=120)
    return tmp_path


def in_child(scenario: Callable[..., None], *arguments: Any) -> None:
    """Run it in a forked process: libraries keep threads and descriptors until the end of theirs."""
    process = multiprocessing.get_context("fork").Process(target=scenario, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()


# ------------------------------------------------------------ the files


def files_of(builder: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and contents of the files that a builder reads."""
    rows = [{"id": number, "text": f"line {number} ä"} for number in range(NUM_ROWS)]
    match builder:
        case "parquet" | "arrow":
            yield f"x.{builder}", _table(rows, builder)
        case "json":
            yield "x.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        case "csv":
            yield (
                "x.csv",
                "".join(f"{row['id']},{row['text']}\n" for row in [{"id": "id", "text": "text"}, *rows]).encode(),
            )
        case "text":
            yield "x.txt", "".join(f"{row['text']}\n" for row in rows).encode()
        case "webdataset":
            yield "x.tar", _shard()
        case "imagefolder":
            yield from ((f"{label}/{number}.png", _image(number)) for label in "ab" for number in range(3))
        case "audiofolder":
            yield from ((f"{label}/{number}.wav", _sound(number)) for label in "ab" for number in range(3))
        case "hdf5":
            yield "x.h5", _hdf5()


def _table(rows: list[dict[str, Any]], kind: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, file = pa.Table.from_pylist(rows), io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    return file.getvalue()


def _shard() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number in range(5):
            for extension, data in (("txt", b"t%d" % number), ("json", b'{"n": %d}' % number), ("png", _image(number))):
                member = tarfile.TarInfo(f"{number}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def _image(number: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(file, "png")
    return file.getvalue()


def _sound(number: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((1, 2, 8000, 0, "NONE", ""))
        written.writeframes(np.arange(number, number + 800, dtype="<i2").tobytes())
    return file.getvalue()


def _hdf5() -> bytes:
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made["id"] = np.arange(NUM_ROWS)
    return file.getvalue()


def write_forms(builder: str, root: Path) -> str:
    """Write the files of a builder plain, compressed and into an archive; return the name of the first."""
    import zstandard

    files = dict(files_of(builder))
    for kind, compress in {"plain": bytes, "gz": gzip.compress, "zst": zstandard.compress}.items():
        for name, data in files.items():
            path = root / kind / (name if kind == "plain" else f"{name}.{kind}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(compress(data))
    with zipfile.ZipFile(root / "x.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return next(iter(files))


# ------------------------------------------------------------ what is read


def rows_of(builder: str, data_files: str, *, streaming: bool, cache_dir: Path) -> list[Any] | str:
    """Return all rows, or the type of the error."""
    import datasets

    try:
        found = datasets.load_dataset(
            builder, data_files=data_files, split="train", streaming=streaming, cache_dir=str(cache_dir)
        )
        if builder == "audiofolder":
            found = found.cast_column("audio", datasets.Audio(decode=False))
        return [{name: _comparable(value) for name, value in row.items() if name != "__url__"} for row in found]
    except Exception as err:  # noqa: BLE001 - whatever is raised for a path is expected for the URL
        return f"{type(err).__name__} {type(err.__cause__).__name__}"


def _comparable(value: Any) -> Any:
    if isinstance(value, dict) and "bytes" in value:
        from datasets.utils.file_utils import xopen

        with io.BytesIO(value["bytes"]) if value["bytes"] else xopen(value["path"], "rb") as file:
            return file.read()
    return value.tobytes() if hasattr(value, "tobytes") else value


def _compare(builder: str, root: Path, one: str, schemes: tuple[str, ...]) -> None:
    import datasets

    datasets.disable_progress_bars()
    num_read = 0
    for form in FORMS:
        for streaming in (True, False):
            expected, *found = (
                rows_of(
                    builder,
                    form.format(scheme=scheme, root=root, one=one),
                    streaming=streaming,
                    cache_dir=root / "cache" / f"{streaming} {number}",
                )
                for number, scheme in enumerate(("", *schemes))
            )
            if (builder, form, streaming) == ("csv", "{scheme}{root}/zst/**", False):
                expected = "DatasetGenerationError OSError"  # of any URL: datasets and pandas seek in the stream
            assert found == [expected] * len(schemes), f"{form}, streaming={streaming}"
            num_read += isinstance(expected, list)
    assert num_read >= len(FORMS) - 2, "paths themselves cannot be read"


@pytest.mark.parametrize(
    "builder", ["parquet", "json", "csv", "arrow", "text", "webdataset", "imagefolder", "audiofolder", "hdf5"]
)
def test_a_builder_reads_the_same_rows_through_prefeed_as_from_paths(root: Path, builder: str) -> None:
    if builder == "audiofolder" and importlib.util.find_spec("torchcodec") is None:
        pytest.skip("no decoder of sounds is installed: torchcodec")
    one = write_forms(builder, root)
    in_child(_compare, builder, root, one, ("prefeed://", "prefeed://file://"))


@pytest.mark.parametrize("builder", ["text", "webdataset"])
def test_a_builder_reads_the_same_rows_from_a_bucket(root: Path, builder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = write_forms(builder, root)
    with servers.moto_server() as endpoint:
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        in_child(_create_bucket, endpoint)
        for path in root.rglob("*"):
            if path.is_file() and "home" not in path.parts:
                servers.put_into_moto("tables", str(path).removeprefix("/"), path.read_bytes())
        in_child(_compare, builder, root, one, ("prefeed://s3://tables",))


def test_load_from_disk_copies_through_prefeed(root: Path) -> None:
    in_child(_load_from_disk, root)


def _load_from_disk(root: Path) -> None:
    import datasets

    import prefeed

    rows = [{"id": number} for number in range(NUM_ROWS)]
    datasets.Dataset.from_list(rows).save_to_disk(root / "saved")
    for scheme in ("prefeed://", "prefeed://file://"):
        assert list(datasets.load_from_disk(f"{scheme}{root}/saved")) == rows
    assert prefeed.statistics().origin_bytes


def _create_bucket(endpoint: str) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="tables")
    client.close()
