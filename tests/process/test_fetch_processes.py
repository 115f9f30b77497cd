"""Fetch processes of a real server: every object is asked for once, and their deaths change nothing but the time it takes."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

import prefeed
import prefeed.api
import servers
from leaks import read_proc
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import ObjectNotFoundError
from process.conditions import NUM_OBJECTS, kill, make_objects, server_pid, wait_for
from sandbox import Sandbox


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFEED_FETCH_PROCESSES", "1")
    root = make_objects(tmp_path / "objects")
    servers.write_index(root)
    return root


@pytest.fixture
def server(root: Path) -> Iterator[servers.FileServer]:
    with servers.http_server(root) as server:
        yield server


@pytest.fixture
def node(server: servers.FileServer) -> Iterator[NodeClient]:
    """A client of a server that has opened the dataset, and whose fetch process is ready."""
    with NodeClient.connect(resolve()) as node:
        node.open_dataset(server.url)
        wait_for(lambda: fetch_process(node) != 0, "a fetch process")
        yield node


def fetch_process(node: NodeClient) -> int:
    """Return its process id; 0 without one."""
    return next(iter(node.status().fetch_processes), 0)


def requests_of(server: servers.FileServer) -> Counter[str]:
    return Counter(path for _, path, _ in server.requests if path.endswith(".bin"))


def by_process(server: servers.FileServer) -> int:
    """Return how many requests came from fetch processes, whose client calls itself so."""
    return sum(headers.get("User-Agent") == "prefeed" for _, path, headers in server.requests if path.endswith(".bin"))


def is_gone(pid: int) -> bool:
    stat = read_proc(pid, "stat")
    return not stat or stat.rpartition(b")")[2].split()[0] == b"Z"


def assert_reads_right(server: servers.FileServer, root: Path) -> None:
    objects = prefeed.datasets.Objects(server.url)
    loader = prefeed.DataLoader(objects, batch_size=8, shuffle=True, num_workers=0, collate_fn=list)
    seen = sorted(sample for batch in loader for sample in batch)
    assert seen == sorted(file.read_bytes() for file in root.glob("*.bin"))


def test_each_object_is_asked_for_once_by_the_process(node: NodeClient, server: servers.FileServer, root: Path) -> None:
    warmed = node.warm(server.url, listing_age=math.inf)
    assert (warmed.fetched, warmed.failed) == (NUM_OBJECTS, 0)
    assert requests_of(server) == Counter({f"/{file.name}": 1 for file in root.glob("*.bin")})
    assert by_process(server) == NUM_OBJECTS
    assert_reads_right(server, root)
    assert node.statistics().origin_requests == NUM_OBJECTS


class UntilKilled:
    """Stalls the first request of some objects, and serves the later ones."""

    def __init__(self, server: servers.FileServer, names: list[str]) -> None:
        self._lock = threading.Lock()
        self.stalled: set[str] = set()
        for name in names:
            server.answers[f"/{name}"] = self

    def __call__(self, handler: servers.Handler) -> None:
        with self._lock:
            is_first = handler.path not in self.stalled
            self.stalled.add(handler.path)
        if is_first:
            servers.stalled(handler)
        else:
            file = handler.server.directory / handler.path.lstrip("/")
            handler.reply(200, file.read_bytes(), {"ETag": f'"{file.stat().st_mtime_ns:x}-{file.stat().st_size:x}"'})


def test_fetches_of_a_process_that_dies_are_made_again(
    node: NodeClient, server: servers.FileServer, root: Path
) -> None:
    names = [f"{index:04}.bin" for index in range(0, NUM_OBJECTS, 20)]
    stalling = UntilKilled(server, names)
    pid = fetch_process(node)

    def kill_when_stalled() -> None:
        wait_for(lambda: len(stalling.stalled) == len(names), "requests that stall")
        kill(pid)

    killing = threading.Thread(target=kill_when_stalled)
    killing.start()
    warmed = node.warm(server.url, listing_age=math.inf)
    killing.join()
    assert (warmed.fetched, warmed.failed) == (NUM_OBJECTS, 0)
    counts = requests_of(server)
    assert {path for path, count in counts.items() if count > 1} >= {f"/{name}" for name in names}
    wait_for(lambda: is_gone(pid), "the end of the process")
    assert_reads_right(server, root)


def test_process_that_is_killed_while_a_loader_reads(node: NodeClient, server: servers.FileServer, root: Path) -> None:
    objects = prefeed.datasets.Objects(server.url)
    loader = prefeed.DataLoader(objects, batch_size=8, shuffle=True, num_workers=0, collate_fn=list)
    expected = sorted(file.read_bytes() for file in root.glob("*.bin"))
    killed = set()
    for _ in range(2):
        seen = []
        for step, batch in enumerate(loader):
            seen += batch
            pid = fetch_process(node)
            if step % 5 == 0 and pid and pid not in killed:
                killed.add(pid)
                kill(pid)
        assert sorted(seen) == expected
    assert killed


@pytest.mark.parametrize("is_suspended", [False, True], ids=["", "suspended"])
def test_process_ends_with_a_killed_server(node: NodeClient, sandbox: Sandbox, is_suspended: bool) -> None:
    pid = fetch_process(node)
    if is_suspended:
        os.kill(pid, signal.SIGSTOP)
    kill(server_pid())
    wait_for(lambda: is_gone(pid), "the end of the process")


def test_process_ends_with_a_stopped_server(node: NodeClient) -> None:
    pid = fetch_process(node)
    node.stop()
    wait_for(lambda: is_gone(pid), "the end of the process")


def test_odd_answers_are_asked_for_again_by_the_server(
    node: NodeClient, server: servers.FileServer, root: Path
) -> None:
    """The library follows redirects and reads chunks; what is missing is an error with its URL."""
    server.answers["/0001.bin"] = servers.redirected(302, f"{server.url}/copy")
    (root / "copy").write_bytes((root / "0001.bin").read_bytes())
    server.answers["/0002.bin"] = servers.chunked
    server.answers["/0003.bin"] = servers.status(404)
    warmed = node.warm(server.url, listing_age=math.inf)
    assert (warmed.fetched, warmed.failed) == (NUM_OBJECTS - 1, 1)
    with pytest.raises(ObjectNotFoundError, match=r"0003\.bin: does not exist"):
        prefeed.read(f"{server.url}/0003.bin")
    for name in ("0001.bin", "0002.bin"):
        assert bytes(prefeed.read(f"{server.url}/{name}")) == (root / name).read_bytes()
    counts = requests_of(server)
    assert counts["/0003.bin"] == 1


def test_disk_tier_gets_what_processes_fetched(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks there first, then lets a process fetch; objects without a version are not stored."""
    monkeypatch.setenv("PREFEED_DISK", "64MiB")
    (root / "index.txt").unlink()
    with servers.http_server(root, webdav=True) as server, NodeClient.connect(resolve()) as node:
        node.open_dataset(server.url)
        wait_for(lambda: fetch_process(node) != 0, "a fetch process")
        node.warm(server.url, listing_age=math.inf)
        wait_for(lambda: node.statistics().disk.objects == NUM_OBJECTS, "all objects on disk")
        assert by_process(server) == NUM_OBJECTS


def test_zero_processes_is_the_server_itself(server: servers.FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_FETCH_PROCESSES", "0")
    with NodeClient.connect(resolve()) as node:
        warmed = node.warm(server.url)
        assert warmed.fetched == NUM_OBJECTS
        assert node.status().fetch_processes == ()
    assert by_process(server) == 0


def test_objects_of_a_bucket_are_asked_for_by_signed_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_FETCH_PROCESSES", "1")
    with servers.moto_server() as store, servers.http_server(tmp_path) as server:
        server.behind = store
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=store, region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        client.close()
        expected = {f"{index:03}.bin": bytes([index]) * 1000 for index in range(40)}
        for path, data in expected.items():
            servers.put_into_moto("bucket", path, data)
        with NodeClient.connect(resolve()) as node:
            node.open_dataset("s3://bucket")
            wait_for(lambda: fetch_process(node) != 0, "a fetch process")
            assert node.warm("s3://bucket", listing_age=math.inf).fetched == 40
        assert by_process(server) == 40
        for path, data in expected.items():
            assert bytes(prefeed.read(f"s3://bucket/{path}")) == data
