"""Signals that schedulers send to all processes of a job end none of prefeed's: only TERM, INT and QUIT do."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

import servers
from mounting import daemon_of, has_ended, mounted
from prefeed.client import launch
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.sources.fork_proxy import ForkedReader
from prefeed.sources.store_access import StoreAccess
from process.conditions import kill, server_pid, wait_for
from sandbox import Sandbox
from slow_files import write_files

ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
FAULTS = {"ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP"}
HARMLESS = {"CHLD", "CONT", "KILL", "STOP", "TSTP", "TTIN", "TTOU", "URG", "WINCH"}
OF_JOBS = sorted(signal.valid_signals() - ENDING - {signal.Signals[f"SIG{name}"] for name in FAULTS | HARMLESS})


def send_all(pids: Iterable[int]) -> None:
    for pid in pids:
        for number in OF_JOBS:
            os.kill(pid, number)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = write_files(tmp_path / "data", {f"{number}.bin": bytes([number]) * 1000 for number in range(8)})
    servers.write_index(root)
    return root


def test_what_is_meant() -> None:
    names = {signal.Signals(number).name for number in OF_JOBS if number in set(signal.Signals)}
    assert {f"SIG{name}" for name in ("USR1", "USR2", "HUP", "ALRM", "VTALRM", "PROF", "IO", "PWR", "XCPU")} <= names
    assert {signal.SIGRTMIN, signal.SIGRTMIN + 7, signal.SIGRTMAX} <= set(OF_JOBS)


def test_the_server_and_its_fetch_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_FETCH_PROCESSES", "1")
    with servers.http_server(root) as server, NodeClient.connect(resolve()) as node:
        node.open_dataset(server.url)
        wait_for(lambda: node.status().fetch_processes, "a fetch process")
        store, pids = Path(node.status().store), (server_pid(), *node.status().fetch_processes)
        send_all(pids)
        assert node.warm(server.url).fetched == 8
        assert (server_pid(), *node.status().fetch_processes) == pids
        kill(pids[0], signal.SIGTERM)
        wait_for(lambda: all(map(has_ended, pids)), "all have ended")
        assert not store.exists(), "it did not end in order"


@pytest.mark.parametrize("end", sorted(ENDING - {signal.SIGTERM}))
def test_other_signals_that_end_a_server(end: signal.Signals) -> None:
    with NodeClient.connect(resolve()) as node:
        store, pid = Path(node.status().store), node.status().pid
        kill(pid, end)
        wait_for(lambda: has_ended(pid), "it has ended")
        assert not store.exists(), "it did not end in order"


@pytest.mark.cold
def test_a_server_that_has_not_begun_yet() -> None:
    """Its interpreter has just started, and has not got as far as to choose signals."""
    config = resolve()
    assert launch.start_ahead(config)
    pid = launch._ahead[config.home_id][0].pid
    send_all([pid])
    with NodeClient.connect(config) as node:
        assert node.status().pid == pid


def test_a_mount(root: Path, sandbox: Sandbox) -> None:
    with mounted(root, sandbox.root / "mnt") as mounting:
        pids = mounting.holder.pid, daemon_of(mounting)
        send_all(pids)
        assert (sandbox.root / "mnt" / "3.bin").read_bytes() == bytes([3]) * 1000
        mounting.holder.send_signal(signal.SIGTERM)
        assert mounting.holder.wait(60) == 0
        assert "has ended with status" not in mounting.log.read_text()


def test_the_process_that_reads_for_a_forked_worker(root: Path) -> None:
    with servers.http_server(root) as server:
        reader = ForkedReader(server.url, Config(), None, StoreAccess(options={}, proxies={}))
        with contextlib.closing(reader):
            assert bytes(reader.fetch("1.bin").data) == bytes([1]) * 1000
            assert reader._process is not None
            pid = reader._process.pid
            send_all([pid])
            assert bytes(reader.fetch("2.bin").data) == bytes([2]) * 1000
            assert reader._process.pid == pid
