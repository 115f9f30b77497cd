"""``prefeed.read`` of cached objects: the process keeps what it needs for it, and gets right bytes whatever happens meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import pytest

import prefeed
from e2e.parity import stop_server
from leaks import descriptors_beyond, open_descriptors, wait_until
from prefeed.client import object_index, readers
from prefeed.client.connection import Connection
from prefeed.client.node import NodeClient
from prefeed.config import current
from process.children import child_running, stopped
from process.conditions import kill, server_pid
from slow_files import write_files

FILES = {f"{number:02}.bin": bytes([number]) * 3000 for number in range(20)}


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Files of a dataset that is open on the node, in the cache."""
    return cached(tmp_path / "data")


def cached(root: Path) -> Path:
    write_files(root, FILES)
    with NodeClient.connect(current()) as node:
        node.warm(str(root))
    return root


def assert_right(root: Path) -> None:
    assert {name: prefeed.read(root / name) for name in FILES} == FILES


class Actions:
    """Counts what this process does: messages to servers, files and sockets that it opens."""

    def __init__(self) -> None:
        self.messages = 0
        self.opened: list[str] = []
        self.is_counting = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: Any) -> None:
        if self.is_counting and event in ("open", "socket.__new__", "socket.connect"):
            self.opened.append(f"{event} {args}")

    @contextmanager
    def counted(self) -> Iterator[Actions]:
        self.messages, self.opened, self.is_counting = 0, [], True
        try:
            yield self
        finally:
            self.is_counting = False


@pytest.fixture(scope="module")
def hook() -> Actions:
    return Actions()  # a hook of the interpreter cannot be removed


@pytest.fixture
def actions(hook: Actions, monkeypatch: pytest.MonkeyPatch) -> Actions:
    send = Connection._send

    def counting(connection: Connection, message: Any) -> None:
        hook.messages += 1
        send(connection, message)

    monkeypatch.setattr(Connection, "_send", counting)
    return hook


def test_a_cached_object_needs_no_message_no_file_and_no_socket(root: Path, actions: Actions) -> None:
    with actions.counted():
        prefeed.read(root / "00.bin")
        assert actions.messages, "the first read asks"
    with actions.counted():
        assert_right(root)  # also of objects that were not read before
        assert (actions.messages, actions.opened) == (1, []), "one report, as each 16 hits have"
    assert prefeed.statistics().hits == 21


def test_an_object_without_a_dataset_opens_no_socket_from_the_second_read_on(root: Path, actions: Actions) -> None:
    (root.parent / "other").write_bytes(b"other")
    with NodeClient.connect(current()):
        assert prefeed.read(root.parent / "other") == b"other"
        with actions.counted():
            assert prefeed.read(root.parent / "other") == b"other"
    assert actions.messages == 1
    assert not [what for what in actions.opened if what.startswith("socket")]


def _read_in_child(root: Path, pipe: Pipe) -> None:
    assert_right(root)
    pipe.send(len({os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_socket(fd)}))
    pipe.recv()
    assert_right(root)
    pipe.send(prefeed.statistics().misses)


def _is_socket(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:
        return False


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_reads_at_the_same_time(root: Path, method: str) -> None:
    assert_right(root)
    with child_running(_read_in_child, root, method=method) as (_, pipe):
        assert pipe.recv()
        assert_right(root)
        pipe.send("again")
        assert_right(root)
        assert pipe.recv() == 0


def test_the_server_is_killed(root: Path) -> None:
    assert_right(root)
    kill(server_pid())
    assert_right(root)
    assert_right(cached(root))  # another server serves
    assert prefeed.statistics().direct_reads == 0


def test_a_reader_that_has_met_another_server_is_used_again(root: Path) -> None:
    found = prefeed.datasets._readers.objects.find(str(root / "00.bin"), current())
    assert found is not None
    seat = readers.Seat(1)
    reader = seat.reader(found[0])
    reader.dataset = replace(found[0], number=7, instance="another")  # as it does when it reconnects
    assert seat.reader(found[0]) is reader
    seat.close()


def test_the_server_is_killed_and_a_file_changes(root: Path) -> None:
    assert_right(root)
    kill(server_pid())
    (root / "05.bin").write_bytes(b"new")
    assert prefeed.read(root / "05.bin") == b"new"


def test_the_server_stops(root: Path) -> None:
    assert_right(root)
    stop_server()
    assert_right(root)
    cached(root)
    assert_right(root)


def test_the_server_is_suspended(root: Path) -> None:
    assert_right(root)
    with stopped(server_pid()):
        assert_right(root)


@pytest.mark.parametrize("data", [b"\xff" * 3000, b"longer" * 3000], ids=["same size", "another size"])
def test_a_file_changes(root: Path, data: bytes) -> None:
    assert_right(root)
    (root / "05.bin").write_bytes(data)
    assert prefeed.read(root / "05.bin") == data
    assert prefeed.read(root / "06.bin") == FILES["06.bin"]
    (root / "05.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"05\.bin"):
        prefeed.read(root / "05.bin")


def test_a_new_listing_counts_from_the_next_read_on(root: Path, actions: Actions) -> None:
    assert_right(root)
    (root / "05.bin").write_bytes(b"new")
    (root / "new.bin").write_bytes(b"added")
    with NodeClient.connect(current()) as node:
        node.warm(str(root))
    prefeed.read(root / "00.bin")
    with actions.counted():
        assert (prefeed.read(root / "05.bin"), prefeed.read(root / "new.bin")) == (b"new", b"added")
    assert (actions.messages, actions.opened) == (0, []), "they are cached"


def test_another_home_and_other_settings(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actions: Actions
) -> None:
    assert_right(root)
    with monkeypatch.context() as other:
        other.setenv("PREFEED_HOME", str(tmp_path / "home"))
        assert_right(root)
        assert prefeed.statistics().hits == 0, "no dataset is open in this home"
        prefeed.datasets._readers.close()
        stop_server()
        other.setenv("PREFEED_ENABLED", "0")
        with actions.counted():
            assert_right(root)
        assert actions.messages == 0
    assert_right(root)
    assert prefeed.statistics().direct_reads == 0


def test_many_roots_keep_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_index, "_MOST_ROOTS", 2)
    monkeypatch.setattr(readers, "_MOST_DATASETS", 3)
    roots = [cached(tmp_path / name) for name in "abcdefgh"]
    before = open_descriptors()
    for root in (*roots, *roots):
        assert_right(root)
    listings = [name for name in descriptors_beyond(before) if name.endswith("/columns")]
    assert len(listings) <= 2 + 3


def test_threads_read_at_once(root: Path) -> None:
    begin = threading.Barrier(8)
    failures: list[BaseException] = []

    def read() -> None:
        try:
            begin.wait()
            for _ in range(5):
                assert_right(root)
        except BaseException as err:  # noqa: BLE001 - raised by the test
            failures.append(err)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert prefeed.statistics().hits == 8 * 5 * len(FILES)


def test_a_process_that_ends_warns_of_nothing_and_reports_its_reads(root: Path) -> None:
    program = f"import prefeed; [prefeed.read({str(root)!r} + f'/{{n:02}}.bin') for n in range(5)]"
    words = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
    with NodeClient.connect(current(), autostart=False) as node:
        assert wait_until(lambda: node.statistics().hits == 5, timeout_seconds=60)
        assert wait_until(lambda: node.status().clients == 1, timeout_seconds=60)
