"""An origin that fails while it is read: what may pass is tried again, what may not reaches the reader of that sample."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import prefeed
import servers
from limits import set_limits
from prefeed import errors

NUM_OBJECTS = 24


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for index in range(NUM_OBJECTS):
        (root / f"{index:02}.bin").write_bytes(bytes([index]) * 1000)
    servers.write_index(root)
    return root


@pytest.fixture
def server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.FileServer]:
    set_limits(monkeypatch, request_seconds=1, retry_seconds=3)
    with servers.http_server(root) as server:
        yield server


@pytest.fixture
def one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server fetches one object ahead, and no more: what comes later in the epoch is still at the origin."""
    set_limits(monkeypatch, lookahead_bytes=1)


def first(times: int, answer: servers.Answer) -> servers.Answer:
    """Answer so the first times, then serve the file."""
    lock = threading.Lock()
    left = times

    def fail_or_serve(handler: servers.Handler) -> None:
        nonlocal left
        with lock:
            left -= 1
            fails = left >= 0
        if fails:
            answer(handler)
        else:
            path = handler.path.lstrip("/")
            handler.reply(200, (handler.server.directory / path).read_bytes())

    return fail_or_serve


def objects(origin: Any) -> Any:
    return prefeed.datasets.Objects(origin, pattern="*.bin")


def read_all(dataset: Any, **kwargs: Any) -> list[bytes]:
    loader = prefeed.DataLoader(dataset, batch_size=4, collate_fn=list, **kwargs)
    return [data for batch in loader for data in batch]


@pytest.mark.parametrize("enabled", ["1", "0"])
def test_a_listing_waits_for_an_origin_that_asks_for_patience(
    server: servers.FileServer, enabled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More refusals than the client library takes by itself; what a listing cannot have at all is said at once, see test_bad_input."""
    monkeypatch.setenv("PREFEED_ENABLED", enabled)
    set_limits(monkeypatch, retry_seconds=30)
    server.answers["/index.txt"] = first(6, servers.status(503))
    assert len(objects(server.url)) == NUM_OBJECTS


def test_a_listing_is_given_up_when_the_origin_asks_for_patience_for_too_long(server: servers.FileServer) -> None:
    server.answers["/index.txt"] = servers.status(503)
    with pytest.raises(errors.ThrottledError, match="asks for fewer requests"):
        objects(server.url)


def expected(root: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(root.glob("*.bin"))]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (servers.truncated, "truncated-body"),
        (servers.status(429), "source-throttled"),
        (servers.status(503), "source-throttled"),
        (servers.status(500), "source-transient"),
        (servers.silent, "source-transient"),
        (servers.stalled, None),
    ],
    ids=["truncated", "429", "503", "500", "silent", "stalled"],
)
def test_passing_fault(server: servers.FileServer, root: Path, answer: servers.Answer, code: str | None) -> None:
    """Five objects fail at first: the bytes are right, nobody but the statistics hears of it."""
    dataset = objects(server.url)
    for index in range(3, 8):
        server.answers[f"/{index:02}.bin"] = first(2 if code and "throttled" in code else 1, answer)
    assert read_all(dataset, num_workers=1) == expected(root)
    statistics = prefeed.statistics()
    assert sum(statistics.errors.values()) >= 5
    assert code is None or statistics.errors[code] >= 5
    assert statistics.origin_requests > NUM_OBJECTS
    server.released.set()


def test_endpoint_that_stops_answering(server: servers.FileServer, root: Path) -> None:
    """Every request hangs until the endpoint is back; then the epoch goes on, with every byte right."""
    dataset = objects(server.url)
    back = threading.Event()
    asked = threading.Event()

    def hang(handler: servers.Handler) -> None:
        asked.set()
        back.wait()
        handler.reply(200, (handler.server.directory / handler.path.lstrip("/")).read_bytes())

    for index in range(6, NUM_OBJECTS):
        server.answers[f"/{index:02}.bin"] = hang
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.extend(read_all(dataset)))
    reader.start()
    assert asked.wait(60)
    back.set()
    reader.join()
    assert seen == expected(root)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (servers.truncated, errors.TruncatedBodyError, "broke off"),
        (servers.status(503), errors.ThrottledError, "asks for fewer requests"),
        (servers.status(403), errors.AccessDeniedError, "credentials.json"),
        (servers.status(404), errors.ObjectNotFoundError, "does not exist"),
    ],
    ids=["truncated", "503", "403", "404"],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_lasting_fault(
    server: servers.FileServer,
    root: Path,
    answer: servers.Answer,
    error: type[Exception],
    words: str,
    num_workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader of that sample gets the origin's error with the full path; the samples before it were right."""
    set_limits(monkeypatch, retry_seconds=0.5)
    dataset = objects(server.url)
    server.answers["/13.bin"] = answer
    loader = prefeed.DataLoader(dataset, batch_size=None, num_workers=num_workers)
    iterator = iter(loader)
    seen = [next(iterator) for _ in range(13)]
    with pytest.raises(error, match=words) as caught:
        next(iterator)
    assert f"{server.url}/13.bin" in str(caught.value)
    seen += iterator  # a loop that catches it goes on
    assert seen == [data for index, data in enumerate(expected(root)) if index != 13]
    del caught


def test_permanent_fault_is_asked_once_an_epoch(server: servers.FileServer, root: Path) -> None:
    """404 is remembered until the next epoch begins, and then asked for anew."""
    dataset = objects(server.url)
    server.answers["/05.bin"] = servers.status(404)
    loader = prefeed.DataLoader(dataset, batch_size=None)

    def asked() -> int:
        return Counter(path for _, path, _ in server.requests)["/05.bin"]

    def run() -> None:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        with pytest.raises(FileNotFoundError):
            next(iterator)

    run()
    assert asked() == 1
    del server.answers["/05.bin"]
    assert list(loader) == expected(root)
    assert asked() == 2


def remove_elsewhere(file: Path) -> None:
    """Remove a file in a program of its own: what this process removes, it does not find any more."""
    subprocess.run(["rm", file], check=True)


def write_elsewhere(file: Path, data: bytes) -> None:
    """Write a file in a program of its own: what this process writes, it reads past the cache."""
    subprocess.run(["dd", f"of={file}", "status=none"], input=data, check=True)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.usefixtures("one_ahead")
def test_object_vanishes_mid_epoch(root: Path, num_workers: int) -> None:
    """A directory: FileNotFoundError for that sample, with its path; what is in the cache is still served."""
    dataset = objects(root)
    kwargs = {"prefetch_factor": 1} if num_workers else {}
    loader = prefeed.DataLoader(dataset, batch_size=None, num_workers=num_workers, **kwargs)
    iterator = iter(loader)
    data = expected(root)
    seen = [next(iterator)]
    remove_elsewhere(root / "20.bin")
    seen += [next(iterator) for _ in range(19)]
    with pytest.raises(FileNotFoundError, match=r"20\.bin does not exist"):
        next(iterator)
    seen += iterator
    assert seen == data[:20] + data[21:]
    remove_elsewhere(root / "03.bin")
    assert dataset[3] == data[3]
    prefeed.datasets._readers.close()


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:10], lambda data: b"", lambda data: data + b"more"],
    ids=["shorter", "empty", "longer"],
)
@pytest.mark.usefixtures("one_ahead")
def test_object_changes_mid_epoch(root: Path, change: Callable[[bytes], bytes]) -> None:
    """Its new bytes are read, as without prefeed; they are counted as changed and not kept."""
    dataset = objects(root)
    loader = prefeed.DataLoader(dataset, batch_size=None)
    iterator = iter(loader)
    data = expected(root)
    seen = [next(iterator)]
    data[20] = change(data[20])
    write_elsewhere(root / "20.bin", data[20])
    seen += iterator
    assert seen == data
    statistics = prefeed.statistics()
    assert statistics.errors["object-changed"] >= 1
    assert statistics.resident_objects == NUM_OBJECTS - 1


def test_changed_object_behind_a_web_server(server: servers.FileServer, root: Path) -> None:
    dataset = objects(server.url)
    (root / "07.bin").write_bytes(b"other, and shorter")
    for _ in range(2):
        assert read_all(dataset) == expected(root)
    assert prefeed.statistics().errors["object-changed"] >= 1
