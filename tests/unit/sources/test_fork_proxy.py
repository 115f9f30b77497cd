"""The native client after a fork: requests go through a helper process."""

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import servers
from prefeed.config import Config
from prefeed.errors import ObjectNotFoundError, TransientSourceError
from prefeed.sources import fork_proxy
from prefeed.sources.fork_proxy import ForkedReader
from prefeed.sources.store_access import StoreAccess

pytestmark = pytest.mark.usefixtures("sandbox")

PREAMBLE = """
import os, signal, sys, traceback
from prefeed.config import Config
from prefeed.sources import objectstore
from prefeed.sources.urls import open_source
url = sys.argv[1]

def in_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            work()
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed or hung"

def fetch():
    source = open_source(url, Config())
    assert bytes(source.fetch("a.bin").data) == b"first"
    assert [info.path for batch in source.list_objects() for info in batch] == ["a.bin"]
    source.close()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.FileServer]:
    (tmp_path / "a.bin").write_bytes(b"first")
    servers.write_index(tmp_path)
    with servers.http_server(tmp_path) as server:
        yield server


def run_script(body: str, url: str) -> str:
    script = PREAMBLE + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_child_of_a_process_that_has_fetched(server: servers.FileServer) -> None:
    script = """
        import weakref
        sources = [open_source(url, Config())]
        sources[0].fetch("a.bin")
        client = weakref.ref(sources[0]._store)
        fetch()
        def work():
            assert objectstore.runtime_is_foreign()
            sources.clear()
            assert client() is not None, "taken apart: a thread that is not here may hold a lock of the runtime"
            fetch()
        in_child(work)
        in_child(lambda: in_child(work))
        sources.clear()
        assert client() is None
        fetch()
        print("done")
    """
    assert run_script(script, server.url) == "done\n"


def test_child_of_a_process_in_which_another_library_used_the_client(server: servers.FileServer) -> None:
    script = """
        import obstore
        names = set()
        while objectstore._RUNTIME_THREAD not in names:  # A new thread takes its name when it first runs.
            obstore.put(obstore.store.MemoryStore(), "x", b"")
            names = {objectstore._thread_name(thread) for thread in os.listdir("/proc/self/task")}
        def work():
            assert objectstore.runtime_is_foreign()
            fetch()
        in_child(work)
        print("done")
    """
    assert run_script(script, server.url) == "done\n"


def test_child_of_a_process_that_has_only_opened_a_source_needs_no_helper(server: servers.FileServer) -> None:
    script = """
        source = open_source(url, Config())
        def work():
            assert not objectstore.runtime_is_foreign()
            fetch()
        in_child(work)
        fetch()
        print("done")
    """
    assert run_script(script, server.url) == "done\n"


def test_helper_ends_when_its_owner_is_killed(server: servers.FileServer) -> None:
    script = """
        fetch()
        def work():
            source = open_source(url, Config())
            source.fetch("a.bin")
            print(source._reader._process.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        pid = os.fork()
        if pid == 0:
            work()
        os.waitpid(pid, 0)
    """
    _wait_until_gone(int(run_script(script, server.url)))


def _wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 60.0)[0], f"process {pid} is still there"
    finally:
        os.close(descriptor)


@pytest.fixture
def reader(server: servers.FileServer) -> Iterator[ForkedReader]:
    reader = ForkedReader(server.url, Config(), None, StoreAccess())
    yield reader
    reader.close()


def test_a_helper_that_is_suspended_is_not_waited_for(reader: ForkedReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, and another one reads."""
    assert reader.fetch("a.bin").data == b"first"
    assert reader._process is not None
    suspended = reader._process
    suspended.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr("prefeed.sources.fork_proxy._GRACE_SECONDS", -Config().limits.request_seconds + 0.1)
        with pytest.raises(TransientSourceError, match="a new one is started"):
            reader.fetch("a.bin")
    assert suspended.returncode == -signal.SIGKILL
    assert reader.fetch("a.bin").data == b"first"


def test_a_helper_that_died_is_replaced(reader: ForkedReader) -> None:
    assert reader.fetch("a.bin").data == b"first"
    assert reader._process is not None
    reader._process.send_signal(signal.SIGKILL)
    reader._process.wait()
    with pytest.raises(TransientSourceError) as caught:
        reader.fetch("a.bin")
    assert caught.value.retryable
    assert reader.fetch("a.bin").data == b"first"


def test_errors_are_those_of_the_source(reader: ForkedReader, server: servers.FileServer) -> None:
    with pytest.raises(ObjectNotFoundError, match=f"{server.url}/none.bin"):
        reader.fetch("none.bin")
    assert reader.fetch("a.bin").data == b"first"


def test_a_listing_that_is_left_early_does_not_mix_with_the_next_answer(
    reader: ForkedReader, server: servers.FileServer
) -> None:
    (server.directory / "index.txt").write_text("".join(f"{i}.bin\t1\n" for i in range(500_000)))
    listing = reader.list_objects()
    assert next(listing)[0].path == "0.bin"
    listing.close()
    assert reader.fetch("a.bin").data == b"first"


def test_an_answer_that_was_not_awaited_is_not_taken_for_the_next(
    reader: ForkedReader, server: servers.FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(pipe: Any) -> bytes:
        raise KeyboardInterrupt

    (server.directory / "b.bin").write_bytes(b"second")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(fork_proxy, "_read_frame", interrupted)
        reader.fetch("b.bin")
    assert reader.fetch("a.bin").data == b"first"


def test_a_listing_that_fails_midway_raises(reader: ForkedReader, server: servers.FileServer) -> None:
    server.answers["/index.txt"] = servers.status(503)
    with pytest.raises(TransientSourceError):
        list(reader.list_objects())
    assert reader.fetch("a.bin").data == b"first"


def test_credentials_reach_the_helper_over_the_pipe(server: servers.FileServer) -> None:
    reader = ForkedReader(server.url, Config(), "Basic abc", StoreAccess())
    reader.fetch("a.bin")
    headers = {name.lower(): value for name, value in server.requests[-1][2].items()}
    assert headers["authorization"] == "Basic abc"
    assert reader._process is not None
    assert b"abc" not in Path(f"/proc/{reader._process.pid}/cmdline").read_bytes()
    reader.close()
