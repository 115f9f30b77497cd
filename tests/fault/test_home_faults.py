"""A home, a memory tier or a server that cannot be used: training goes on without, and one line says why."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import datasets as torchvision_datasets

import prefeed
from e2e.images import Augment, make_image_folder
from e2e.stages import Files, Log, values, write_files
from e2e.steps import Setup, assert_same, observe, seed_all
from leaks import wait_until
from prefeed import errors
from prefeed.client.connection import Connection
from prefeed.client.launch import start_server
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.jobs.records import JobRecord, JobRecords
from prefeed.sampleset.records import remove_deleted
from prefeed.server.main import disk_notice
from prefeed.sources.library import ManifestLibrary
from prefeed.store.node_directory import name_of
from prefeed.system.memory import read_memory
from prefeed.wire import messages as m
from process.conditions import kill, server_pid
from sandbox import Sandbox, servers_of
from small_files import small_file_system


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    """Samples that were read outside prefeed's loader have a reader that the process keeps."""
    yield
    prefeed.datasets._readers.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


def see(loader_class: Any, dataset: Any, **kwargs: Any) -> list[Any]:
    seed_all()
    return observe(loader_class(dataset, batch_size=4, shuffle=True, **kwargs), Setup({}), epochs=2)


def assert_trains(root: Path, num_workers: int = 1) -> None:
    """Both kinds of dataset give torch's batches."""
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    expected = see(torch.utils.data.DataLoader, reference, num_workers=num_workers)
    for dataset in (reference, prefeed.datasets.ImageFolder(root, Augment())):
        assert_same(expected, see(prefeed.DataLoader, dataset, num_workers=num_workers))


def lines_of(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return what the user was told, by the log or on stderr."""
    logged = [record.getMessage() for record in caplog.records if record.name == "prefeed"]
    return logged + [line for line in capfd.readouterr().err.splitlines() if line.startswith("prefeed")]


def notices_of_the_server() -> str:
    """Return what the server wrote."""
    return (resolve().runtime_dir / "server.log").read_text()


# ------------------------------------------------------------ home and memory


@pytest.mark.parametrize("home", ["/proc/prefeed", "file"])
def test_read_only_home(
    root: Path,
    home: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A home that cannot be made, for root either: no cache, the same batches, and what to change is said."""
    if home == "file":
        (tmp_path / "file").write_bytes(b"")
        home = str(tmp_path / "file" / "home")
    monkeypatch.setenv("PREFEED_HOME", home)
    with caplog.at_level(logging.INFO, logger="prefeed"):
        assert_trains(root)
    said = [line for line in lines_of(caplog, capfd) if "spent waiting for data" not in line]
    assert any("set PREFEED_HOME to a directory you can write to" in line for line in said), said
    assert all(home in line for line in said)
    assert len(said) <= 3  # one line a dataset and a loader
    objects = prefeed.datasets.Objects(root)
    assert objects[0] == Path(root / objects.path(0)).read_bytes()
    assert replace(prefeed.statistics(), epochs=()) == prefeed.Statistics()


def things_of_the_user(*directories: Path) -> dict[Path, bytes]:
    """Put things that nobody has touched for a year where prefeed has directories of that name, too."""
    names = (
        "manifests/common-voice/clips/1.wav", "manifests/librispeech/dev/keys/2.wav", "manifests/7/current",
        "manifests/0123456789abcdef/dev/3.wav", "catalogues/2021/list.csv", "catalogues/files/list.csv",
        "disk/objects/model.bin", "disk/sessions/7/monday.txt", "disk/sessions/notes.txt", "objects/data.mdb", "objects/model.bin",
        "sessions/monday/notes.txt", "samplesets/mine/data.bin", "samplesets/node/data.bin", "nodes/rack-1/node.txt",
        "nodes/0123456789ab/0/a.txt", "packs/a.index", "jobs/train.json", "run/logs/out.txt", "staged/a.txt",
    )  # fmt: skip
    long_ago = time.time() - 365 * 24 * 3600
    for directory in directories:
        for name in names:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(name.encode())
        for parent, _, files in os.walk(directory, topdown=False):
            for path in (*(os.path.join(parent, file) for file in files), parent):
                os.utime(path, (long_ago, long_ago))
    return {directory / name: name.encode() for directory in directories for name in names}


def test_what_its_user_has_in_a_home_stays(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home, a directory of the disk tier, may be a project's: nothing is moved or removed that prefeed has not made."""
    home, disk = tmp_path / "project", tmp_path / "scratch"
    theirs = things_of_the_user(home, disk)
    monkeypatch.setenv("PREFEED_HOME", str(home))
    monkeypatch.setenv("PREFEED_DISK", "1MiB")
    for disk_dir in (None, disk):
        if disk_dir is not None:
            monkeypatch.setenv("PREFEED_DISK", f"1MiB:{disk_dir}")
        objects = prefeed.datasets.Objects(root)
        assert objects[0] == Path(root / objects.path(0)).read_bytes()
        prefeed.datasets._readers.close()
        with NodeClient.connect(resolve(), autostart=False) as node:
            node.stop()
        ManifestLibrary(home).forget(str(root))
    remove_deleted(resolve())
    assert {path: path.read_bytes() for path in theirs if path.exists()} == theirs
    with pytest.raises(errors.JobConflictError, match=r"train\.json is not the record"):
        JobRecords.of("", resolve()).claim(JobRecord(id="train", type="warmup"))
    assert (home / "jobs" / "train.json").exists()


@pytest.mark.parametrize("directory", ["/proc/none", "/proc"])
def test_memory_directory_that_cannot_be_used(root: Path, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage caches go to the home, with one line that names what to set; nothing else changes."""
    monkeypatch.setenv("PREFEED_MEMORY_DIR", directory)
    assert_trains(root)
    assert "stage caches go to" in notices_of_the_server()
    assert "PREFEED_MEMORY_DIR" in notices_of_the_server()
    with NodeClient.connect(resolve(), autostart=False) as node:
        status = node.status()
    assert not status.on_tmpfs
    assert status.store.startswith(str(resolve().home))


def test_more_memory_than_there_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and the tier takes what it may."""
    monkeypatch.setenv("PREFEED_MEMORY", "4000TiB")
    assert_trains(root)
    cuts = [line for line in notices_of_the_server().splitlines() if "memory cut from" in line]
    assert len(cuts) == 1
    assert "4096000.00 GiB" in cuts[0]
    assert 0 < prefeed.statistics().budget_bytes < read_memory().limit_bytes


def test_full_memory_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tmpfs without room, as in a container without --shm-size: stage caches go to disk, and the line says so."""
    small = _small_tmpfs_of(resolve().memory_dir, size="1m")
    monkeypatch.setenv("PREFEED_MEMORY_DIR", str(small))
    try:
        (small / "others").write_bytes(bytes(900_000))
        assert_trains(root)
        assert "--shm-size" in notices_of_the_server()
        assert (small / "others").read_bytes() == bytes(900_000)
        with NodeClient.connect(resolve(), autostart=False) as node:
            assert not node.status().on_tmpfs
            assert node.statistics().hits > 0
            node.stop()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_stage_caches_on_disk_begin_empty_and_go_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those for memory have no sums: what a power cut left of them is not to be read."""
    small = _small_tmpfs_of(resolve().memory_dir, size="1m")
    monkeypatch.setenv("PREFEED_MEMORY_DIR", str(small))
    nodes, files = resolve().home / "nodes", write_files(tmp_path / "files", 20)
    right = [(index, index) for index in range(20)]

    def num_made() -> int:
        log = Log(tmp_path / "log")
        cached = prefeed.CachedDataset(Files(files, 20, log))
        assert values(cached[index] for index in range(20)) == right
        made = len(log.take())
        del cached
        gc.collect()
        return made

    try:
        assert [num_made(), num_made()] == [20, 0]
        assert len(list(nodes.glob("*/prefeed-*/sessions/*/*/store/segment"))) == 1
        kill(server_pid())
        assert num_made() == 20
        kill(server_pid())
        left = nodes / name_of(1) / "prefeed-of-a-killed-server"
        left.mkdir(parents=True)
        subprocess.run(["mount", "-o", "remount,size=400m", str(small)], check=True)
        assert num_made() == 20
        with NodeClient.connect(resolve(), autostart=False) as node:
            assert node.status().on_tmpfs
            assert list(nodes.glob("*/prefeed-*")) == []
            node.stop()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def _small_tmpfs_of(parent: Path, size: str) -> Path:
    directory = parent / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a small tmpfs: {mounted.stderr.strip()}")
    return directory


def test_too_little_memory(root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Less than a tier needs is said with what it needs; training goes on without."""
    monkeypatch.setenv("PREFEED_MEMORY", "1000")
    assert_trains(root)
    assert "at least" in caplog.text
    assert "PREFEED_MEMORY" in caplog.text


def test_objects_larger_than_the_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that is full, and objects that it can never hold: every byte is right."""
    monkeypatch.setenv("PREFEED_MEMORY", "5MiB")
    sizes = [100_000] * 40 + [8_000_000, 0, 1]
    for index, size in enumerate(sizes):
        (tmp_path / f"{index:03}").write_bytes(bytes([index]) * size)
    objects = prefeed.datasets.Objects(tmp_path)
    for num_workers in (0, 1):
        loader = prefeed.DataLoader(objects, batch_size=None, shuffle=True, num_workers=num_workers)
        for _ in range(2):
            seen = sorted((len(data), data[:1], len(set(data))) for data in loader)
            assert seen == sorted((size, bytes([i])[:size], min(size, 1)) for i, size in enumerate(sizes))
    statistics = prefeed.statistics()
    assert statistics.resident_bytes + statistics.transient_bytes <= statistics.budget_bytes <= 5 * 1024**2


# ------------------------------------------------------------ servers


def test_second_server(sandbox: Sandbox) -> None:
    """It ends at once, names the first and what to do; the first goes on."""
    config = resolve()
    pid = start_server(config)
    with pytest.raises(errors.ServerAlreadyRunningError, match="already serves"):
        start_server(config)
    second = subprocess.run([sys.executable, "-m", "prefeed.server"], capture_output=True, text=True, timeout=60)
    assert second.returncode == 4
    assert f"a server (pid {pid}) already serves {config.home}" in second.stderr
    assert "prefeed server stop" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    with NodeClient.connect(config, autostart=False) as node:
        assert node.status().pid == pid
    assert servers_of(sandbox) == [pid]


def test_two_homes_are_two_servers(root: Path, tmp_path: Path) -> None:
    one = resolve()
    other = resolve({"home": tmp_path / "other"})
    pids = {start_server(one), start_server(other)}
    statuses = []
    for config in (one, other):
        with NodeClient.connect(config, autostart=False) as node:
            statuses.append(node.status())
            node.stop()
    assert {status.pid for status in statuses} == pids
    assert len({status.store for status in statuses}) == 2


def test_client_of_another_version(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message names both; training goes on without the cache, and the server with its other clients."""
    config = resolve()
    pid = start_server(config)
    with monkeypatch.context() as patched:
        patched.setattr(m, "PROTOCOL", m.PROTOCOL + 1)
        with pytest.raises(errors.VersionMismatchError) as caught:
            Connection.open(config)
        assert f"protocol {m.PROTOCOL - 1}" in str(caught.value)
        assert f"protocol {m.PROTOCOL}" in str(caught.value)
        assert "prefeed server stop" in str(caught.value)
        assert_trains(root)
        assert any("set another PREFEED_HOME" in line for line in lines_of(caplog, capfd))
    with NodeClient.connect(config, autostart=False) as node:
        assert node.status().pid == pid


def test_server_that_may_not_be_started(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")
    assert_trains(root)
    assert "start one with `prefeed server start`" in caplog.text


def test_a_full_home_says_what_to_free_or_set(
    root: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with small_file_system(sandbox.root / "full", "300k") as full:
        monkeypatch.setenv("PREFEED_HOME", str(full / "home"))
        pid = start_server(resolve())
        with contextlib.suppress(OSError), (full / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(bytes(4096))
        assert_trains(root, num_workers=0)
        list(prefeed.DataLoader(prefeed.datasets.Objects(root), collate_fn=list))
        kill(pid, signal.SIGTERM)
    said = [record.getMessage() for record in caplog.records if "No space left" in record.getMessage()]
    assert said
    assert all("free space on the file system of" in text and "PREFEED_HOME" in text for text in said), said


def test_a_disk_that_is_full_is_named_in_readable_sizes() -> None:
    full, kept = (disk_notice(1 << 30, 0, floor, Path("/data")) or "" for floor in (0, 5 << 20))
    assert "may take 0 B: the file system of /data has no more; free space there" in full
    assert "has no more beyond the 5.0 MiB that stay free" in kept
    assert disk_notice(1 << 30, 1 << 30, 0, Path("/data")) is None


def test_runtime_directory_of_others(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that somebody else could write to is not trusted with a socket."""
    runtime = resolve().runtime_dir
    runtime.mkdir(parents=True, mode=0o700)
    os.chmod(runtime, 0o777)
    assert_trains(root)
    assert "must be a directory of user" in caplog.text
    assert "chmod 700" in caplog.text


def test_server_stops_when_idle(root: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_IDLE_TIMEOUT", "0.2")
    assert_trains(root, num_workers=0)
    assert wait_until(lambda: not servers_of(sandbox), timeout_seconds=60)
    assert not resolve().socket_path.exists()
    assert replace(prefeed.statistics(), epochs=()) == prefeed.Statistics()  # and whoever asks for it finds none
    assert list(resolve().memory_dir.iterdir()) == []
