"""Hugging Face's streaming reads Parquet through ``prefeed://`` and ``prefeed::``: the same rows, each byte fetched once."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import servers
from leaks import wait_until
from limits import set_limits
from sandbox import Sandbox

if importlib.util.find_spec("datasets") is None:
    pytest.skip("the libraries are not installed: make test-programs", allow_module_level=True)

ROWS = 300


def in_child(scenario: Callable[..., None], *arguments: Any) -> None:
    """Run it in a forked process: libraries keep threads and descriptors until the end of theirs."""
    process = multiprocessing.get_context("fork").Process(target=scenario, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()


def write_tables(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number in range(3):
        ids = list(range(number * 100, number * 100 + 100))
        table = pa.table({"id": ids, "data": [os.urandom(5000) for _ in ids]})
        pq.write_table(table, root / f"{number}.parquet", row_group_size=20)


def ids_of(data_files: str | list[str]) -> list[int]:
    from datasets import load_dataset

    return [row["id"] for row in load_dataset("parquet", data_files=data_files, split="train", streaming=True)]


@pytest.fixture
def root(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {
        "PREFEED_ROOTS": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    set_limits(monkeypatch, block_bytes=64 * 1024, start_seconds=120)
    data = tmp_path / "data"
    data.mkdir()
    return data


def test_files(root: Path) -> None:
    in_child(_stream_files, root)


def _stream_files(root: Path) -> None:
    import prefeed
    from prefeed.loaders import hugging_face

    write_tables(root)
    for data_files in (
        f"prefeed://{root}/*.parquet",
        [f"prefeed://{root}/{number}.parquet" for number in range(3)],
        f"prefeed::file://{root}/*.parquet",
    ):
        assert ids_of(data_files) == list(range(ROWS))
    after = [hugging_face.following(f"{root}/{number}.parquet") for number in range(3)]
    assert after == [f"{root}/1.parquet", f"{root}/2.parquet", None]
    statistics = prefeed.statistics()
    assert statistics.origin_bytes <= sum(file.stat().st_size for file in root.iterdir())


def test_a_bucket(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_child(write_tables, root)
    with servers.moto_server() as endpoint:
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        create_bucket(endpoint)
        for file in root.iterdir():
            servers.put_into_moto("tables", f"d/{file.name}", file.read_bytes())
        in_child(_stream_bucket)


def create_bucket(endpoint: str) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="tables")
    client.close()


def _stream_bucket() -> None:
    forms = ["prefeed://s3://tables/d/*.parquet"]
    if importlib.util.find_spec("s3fs") is not None:  # fsspec asks for it in this form
        forms.append("prefeed::s3://tables/d/*.parquet")
    for data_files in forms:
        assert ids_of(data_files) == list(range(ROWS))


COLUMNS = ["b", "d"]
COLUMN_BYTES = 1_000_000


@pytest.mark.parametrize("num_row_groups", [1, 2])
def test_of_the_next_file_the_same_columns_are_fetched(
    root: Path, monkeypatch: pytest.MonkeyPatch, num_row_groups: int
) -> None:
    in_child(write_columns, root, num_row_groups)
    requests: list[tuple[str, str, str]] = []
    with servers.moto_server(requests) as endpoint:
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        create_bucket(endpoint)
        for file in root.iterdir():
            servers.put_into_moto("tables", f"d/{file.name}", file.read_bytes())
        in_child(_stream_columns, num_row_groups, endpoint)
    marks = [index for index, request in enumerate(requests) if request[1] == "/mark"]
    assert len(marks) == 2
    expected = num_row_groups * len(COLUMNS) * COLUMN_BYTES
    for number in range(3):
        ahead = bytes_of(requests[: marks[max(0, number - 1)]], number)
        in_all = bytes_of(requests, number)
        assert ahead > 0.8 * expected, "the columns of a file are fetched while the one before is read"
        assert expected <= in_all <= 1.1 * (expected + 64 * 1024) + 64 * 1024
    num_requests = sum(method == "GET" and path.endswith(".parquet") for method, path, _ in requests)
    assert num_requests < 3 * (expected // (64 * 1024) + 12)


def bytes_of(requests: list[tuple[str, str, str]], number: int) -> int:
    """Return how many bytes of a file were asked for."""
    ranges = [
        part.removeprefix("bytes=").split("-")
        for _, path, part in requests
        if path == f"/tables/d/{number}.parquet" and part
    ]
    return sum(int(end) - int(begin) + 1 for begin, end in ranges)


def write_columns(root: Path, num_row_groups: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_rows = 100 * num_row_groups
    for number in range(3):
        columns = {name: [os.urandom(COLUMN_BYTES // 100) for _ in range(num_rows)] for name in "abcde"}
        table = pa.table({"id": range(number * num_rows, (number + 1) * num_rows), **columns})
        pq.write_table(table, root / f"{number}.parquet", row_group_size=100, compression="none", use_dictionary=False)


def _stream_columns(num_row_groups: int, endpoint: str) -> None:
    from datasets import load_dataset

    import prefeed

    files = [f"prefeed://s3://tables/d/{number}.parquet" for number in range(3)]
    rows = load_dataset("parquet", data_files=files, split="train", streaming=True, columns=COLUMNS)
    per_file = 100 * num_row_groups
    file_bytes = num_row_groups * len(COLUMNS) * COLUMN_BYTES
    for number, row in enumerate(rows):
        assert sorted(row) == COLUMNS
        assert [len(row[name]) for name in COLUMNS] == [COLUMN_BYTES // 100] * 2
        if number in (per_file - 1, 2 * per_file - 1):  # the last row of a file: the next one has not been asked for
            num_files = (number + 1) // per_file + 1
            assert wait_until(
                lambda least=0.97 * num_files * file_bytes: prefeed.statistics().origin_bytes > least,
                timeout_seconds=60,
            )
            mark(endpoint)
    assert number + 1 == 3 * per_file


def mark(endpoint: str) -> None:
    """Leave a request among those that the server notes."""
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"))
    with contextlib.closing(connection):
        connection.request("GET", "/mark")
        connection.getresponse().read()


NUM_SHUFFLED = 24
NUM_AT_ONCE = 10
"""Files that ``shuffle`` reads in turn from the beginning, each in a thread of its own."""


def test_of_a_shuffled_stream_all_files_but_the_first_ones_are_opened_ahead(root: Path) -> None:
    in_child(_shuffle, root)


def _shuffle(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import load_dataset

    from prefeed.files import filesystem

    for number in range(NUM_SHUFFLED):
        ids = list(range(number * 40, number * 40 + 40))
        pq.write_table(pa.table({"id": ids}), root / f"{number:02}.parquet", row_group_size=10)
    given: list[bool] = []
    own = filesystem.PrefeedFileSystem._open

    def opened(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        given.append((self._full_url(path), None) in filesystem._ahead)
        return own(self, path, *args, **kwargs)

    filesystem.PrefeedFileSystem._open = opened
    files = load_dataset("parquet", data_files=f"prefeed://{root}/*.parquet", split="train", streaming=True)
    plain = load_dataset("parquet", data_files=f"{root}/*.parquet", split="train", streaming=True)
    found, expected = (rows.shuffle(seed=2, buffer_size=100) for rows in (files, plain))
    for rows in (found, expected):
        rows.set_epoch(3)
    given.clear()
    assert [row["id"] for row in found] == [row["id"] for row in expected]
    is_interleaved = len(given) - sum(given) > 1  # datasets 5; 4 reads one file after the other
    assert (len(given), sum(given)) == (NUM_SHUFFLED, NUM_SHUFFLED - (NUM_AT_ONCE if is_interleaved else 1))


def test_the_doctor_examines_a_stream(root: Path) -> None:
    in_child(_examine, root)


def _examine(root: Path) -> None:
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    import prefeed

    write_tables(root)
    rows = load_dataset("parquet", data_files=f"prefeed://{root}/*.parquet", split="train", streaming=True)
    report = prefeed.doctor(DataLoader(rows.with_format("torch"), batch_size=10), lambda batch: None, steps=4)
    assert report.costs is not None
    assert report.costs.decoding > 0
    assert report.loader.samples is None
    assert str(report).startswith("This job waits for data")
