"""What `prefeed stage` made is a copy to `prefeed sync`, and the other way round: nothing is copied twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from click.testing import CliRunner

from prefeed.cli.main import cli
from prefeed.config import resolve
from prefeed.copying.staging import StageRequest, StageResult, stage
from prefeed.jobs.options import SyncOptions
from prefeed.jobs.sync import sync
from sandbox import Sandbox
from servers import S3_ENVIRONMENT, FileServer, http_server, moto_server, write_index
from slow_files import write_files
from unit.jobs.trees import make, tree

FILES = {f"class {number % 3}/{number}.jpg": bytes([number]) * (number * 100) for number in range(12)}


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    root = write_files(sandbox.root / "origin", FILES)
    os.utime(root / "class 0/0.jpg", (0, 0))  # as in images of containers
    write_index(root)
    return root


@pytest.fixture(params=["index", "webdav"])
def server(request: pytest.FixtureRequest, origin: Path) -> Iterator[FileServer]:
    if request.param == "webdav":
        (origin / "index.txt").unlink()
    with http_server(origin, webdav=request.param == "webdav") as server:
        yield server


def staged(url: str, sandbox: Sandbox) -> StageResult:
    return stage(StageRequest(url=url, place=sandbox.memory_dir), resolve())


def bodies_asked_for(server: FileServer) -> list[str]:
    return sorted(path for method, path, _ in server.requests if method == "GET" and path != "/index.txt")


def emptied(directory: Path) -> Path:
    for path in directory.iterdir():
        shutil.rmtree(path)
    return directory


def test_a_sync_onto_what_stage_made_asks_for_no_object(server: FileServer, sandbox: Sandbox) -> None:
    data = staged(server.url, sandbox).record.data
    assert len(bodies_asked_for(server)) == len(FILES)
    server.requests.clear()

    result = CliRunner().invoke(cli, ["sync", server.url, str(data)])

    assert result.exit_code == 0, result.output
    assert bodies_asked_for(server) == []
    assert tree(data) == FILES


def test_stage_onto_what_a_sync_made_asks_for_no_object(server: FileServer, sandbox: Sandbox) -> None:
    data = emptied(staged(server.url, sandbox).record.data)
    assert sync(server.url, str(data), SyncOptions(), resolve()).num_copied == len(FILES)
    server.requests.clear()

    result = staged(server.url, sandbox)

    assert (result.summary.num_copied, result.plan.num_kept) == (0, len(FILES))
    assert bodies_asked_for(server) == []


def test_the_same_with_a_directory(origin: Path, sandbox: Sandbox) -> None:
    files = tree(origin)
    data = staged(str(origin), sandbox).record.data
    assert sync(str(origin), str(data), SyncOptions(), resolve()).num_copied == 0
    for path in data.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert sync(str(origin), str(data), SyncOptions(), resolve()).num_copied == len(files)
    assert staged(str(origin), sandbox).summary.num_copied == 0
    make(origin, {"class 1/1.jpg": b"other, of another size"})
    assert sync(str(origin), str(data), SyncOptions(), resolve()).num_copied == 1
    assert staged(str(origin), sandbox).summary.num_copied == 0


def test_the_same_with_a_bucket(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with moto_server() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        client = boto3.client("s3", endpoint_url=url)
        client.create_bucket(Bucket="photos")
        for path, data in FILES.items():
            client.put_object(Bucket="photos", Key=f"train/{path}", Body=data)
        place = "s3://photos/train"

        copy = staged(place, sandbox).record.data
        assert sync(place, str(copy), SyncOptions(), resolve()).num_copied == 0
        assert sync(place, str(emptied(copy)), SyncOptions(), resolve()).num_copied == len(FILES)
        assert staged(place, sandbox).summary.num_copied == 0
        client.put_object(Bucket="photos", Key="train/class 1/1.jpg", Body=b"!" * 100)  # of the same size
        assert sync(place, str(copy), SyncOptions(), resolve()).num_copied == 1
        assert staged(place, sandbox).summary.num_copied == 0
        client.close()
    assert tree(copy) == {**FILES, "class 1/1.jpg": b"!" * 100}
