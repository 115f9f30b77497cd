"""Other users of the machine get nothing, and give nothing: not by being first, nor by any name that they may take."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import prefeed
from e2e.images import make_image_folder
from fault.test_home_faults import _close_readers, assert_trains
from leaks import wait_until
from prefeed.cli.main import cli
from prefeed.client.dataset import open_learned_dataset, open_node_dataset
from prefeed.client.launch import start_server, try_connect
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.errors import StoreFormatError, UnsafeDirectoryError
from prefeed.sources.manifest import Manifest
from prefeed.stage_cache.cache_link import CacheLink, CacheName
from prefeed.store.shared import SharedTier
from prefeed.wire import messages as m
from sandbox import Sandbox, servers_of
from scripted import scripted
from strangers import (
    STRANGER,
    as_stranger,
    fake_server,
    listener_of_stranger,
    make_directory,
    make_inner_link,
    make_link,
    needs_root,
    open_to_all,
)

pytestmark = needs_root
__all__ = ["_close_readers"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


@pytest.fixture
def expected(sandbox: Sandbox) -> Path:
    """Where the server would listen, in a place that others may write to."""
    open_to_all(sandbox.runtime_dir, below=sandbox.root)
    return resolve().runtime_dirs[0]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


# ---------------------------------------------------------------- who listens


@pytest.mark.parametrize("make", [make_directory, make_link, make_inner_link])
def test_a_server_of_another_user_is_told_nothing(
    root: Path, expected: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its user came first. Another directory is used, and one line says so."""
    with fake_server(expected, make) as fake:
        assert_trains(root)
        assert fake.heard() == (0, 0)
        (line,) = warnings_of(caplog)
        assert "XDG_RUNTIME_DIR" in line
        with NodeClient.connect(resolve(), autostart=False) as node:
            assert node.connection.runtime_dir != expected
            assert node.status().clients > 0
        assert prefeed.statistics().hits > 0
        assert fake.heard() == (0, 0)


def test_an_ordinary_user_whose_name_in_tmp_was_taken(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here is root, and no variable is set: a batch job on a login node."""
    user = 200_000 + os.getpid()
    for directory in (sandbox.root, sandbox.home, sandbox.memory_dir):
        os.chown(directory, user, user)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", str(sandbox.root))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    expected = Path(f"/tmp/prefeed-{user}") / resolve().home_id
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]

    def says(python: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*become, python, *words], capture_output=True, text=True, check=False, cwd="/")

    starts_itself = "import subprocess, sys, lmdb; subprocess.run([sys.executable, '-c', ''], check=True)"
    pythons = [sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"]
    python = next((python for python in pythons if says(python, "-c", starts_itself).returncode == 0), None)
    if python is None:
        pytest.skip("no interpreter here is open to other users")

    def prefeed_says(*words: str) -> subprocess.CompletedProcess[str]:
        return says(python, "-m", "prefeed.cli.main", *words)

    try:
        with fake_server(expected) as fake:
            started = prefeed_says("server", "start")
            assert started.returncode == 0, started.stderr
            assert started.stderr.count(f"must be a directory of user {user}") == 1
            assert [path.stat().st_uid for path in sandbox.memory_dir.iterdir()] == [user]
            assert prefeed_says("server", "status").returncode == 0
            assert prefeed_says("server", "stop").returncode == 0
            assert fake.heard() == (0, 0)
    finally:
        for base in ("/tmp", "/dev/shm"):
            shutil.rmtree(f"{base}/prefeed-{user}", ignore_errors=True)


@pytest.mark.parametrize("words", [["server", "status"], ["stats"], ["cache_admin", "--server_info"]])
def test_commands_ask_no_server_of_another_user(expected: Path, words: list[str]) -> None:
    with fake_server(expected) as fake:
        subprocess.run([sys.executable, "-m", "prefeed.cli.main", *words], capture_output=True, check=False)
        assert fake.heard() == (0, 0)


def test_a_socket_that_another_user_listens_on_is_told_nothing(root: Path, expected: Path) -> None:
    """Although it lies in this user's own directory."""
    expected.mkdir(parents=True, mode=0o700)
    expected.parent.chmod(0o700)
    with listener_of_stranger(expected) as fake:
        assert_trains(root)
        assert fake.heard()[1] == 0
        assert prefeed.statistics().hits > 0  # this user's own server listens there now
        with NodeClient.connect(resolve(), autostart=False) as node:
            assert node.connection.runtime_dir == expected


def test_a_base_that_others_could_replace_things_in_is_not_used(sandbox: Sandbox) -> None:
    base = sandbox.runtime_dir
    first = resolve().runtime_dirs[0]
    for mode, owner, is_used in (
        (0o1777, 0, True),
        (0o755, 0, True),
        (0o777, 0, False),
        (0o775, 0, False),
        (0o1777, STRANGER, False),
        (0o700, STRANGER, False),
        (0o1777, 65534, False),
    ):
        base.chmod(mode)
        os.chown(base, owner, owner)
        assert (resolve().runtime_dir == first) is is_used, (oct(mode), owner)
    os.chown(base, 0, 0)


# ---------------------------------------------------------------- one server a home


def test_who_has_no_runtime_directory_finds_the_server_of_who_has_none_either_and_the_other_way_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A login shell and a batch job: one has the variable, one has not, one has what is not there."""
    with_variable = os.environ["XDG_RUNTIME_DIR"]
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    config = resolve()
    pid = start_server(config)
    for value in (with_variable, "/nowhere", "relative", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        with NodeClient.connect(config, autostart=False) as node:
            assert node.status().pid == pid
        ended = second_server()
        assert ended.returncode == 4
        assert f"pid {pid}" in ended.stderr


def is_served(config: Config) -> bool:
    reached = try_connect(config)
    if reached is not None:
        reached.sock.close()
    return reached is not None


def second_server() -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "prefeed.server"], capture_output=True, text=True, check=False)


def test_there_is_one_server_when_the_other_user_goes(expected: Path, sandbox: Sandbox) -> None:
    """It was started beside his directory; whoever comes when that is gone finds it, and starts no other."""
    config = resolve()
    with fake_server(expected) as fake:
        pid = start_server(config)
        fake.go()
    assert resolve().runtime_dir == expected
    assert second_server().returncode == 4
    with NodeClient.connect(config) as node:
        assert node.status().pid == pid
    assert servers_of(sandbox) == [pid]


def test_jobs_with_runtime_directories_of_their_own_share_a_server(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As batch systems make them. The server says where it is in a directory that all processes know."""
    config = resolve()
    pid = start_server(config)
    first = config.runtime_dir
    other = sandbox.root / "other"
    other.mkdir(mode=0o700)
    for value in (str(other), None):
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        if value:
            monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        with NodeClient.connect(config) as node:
            assert (node.status().pid, node.connection.runtime_dir) == (pid, first)
        assert second_server().returncode == 4
    assert servers_of(sandbox) == [pid]


def test_a_home_that_is_too_long_for_a_socket_s_name_will_do(
    expected: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of the directories lies in the home."""
    config = resolve({"home": sandbox.root / ("long" * 30) / ("longer" * 30)})
    in_home = config.runtime_dirs[-1]
    monkeypatch.setattr(Config, "runtime_dirs", property(lambda self: (expected, in_home)))
    with fake_server(expected) as fake:
        with scripted(config), NodeClient.connect(config, autostart=False) as node:
            assert node.connection.runtime_dir == in_home
        assert fake.heard() == (0, 0)


# ---------------------------------------------------------------- memory


def test_a_store_s_name_that_another_user_took(root: Path, sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is read or written there; stage caches lie in memory under another name, also those of the next server."""
    config = resolve()
    open_to_all(sandbox.memory_dir)
    taken = sandbox.memory_dir / f"prefeed-0-{config.node_id}"
    as_stranger(_make_bait, taken)
    bait = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in taken.iterdir()}

    assert_trains(root)
    with NodeClient.connect(config, autostart=False) as node:
        status = node.status()
    store = Path(status.store)
    assert (store.parent, status.on_tmpfs) == (sandbox.memory_dir, True)
    assert (store.stat().st_uid, store.stat().st_mode & 0o777) == (0, 0o700)
    assert [str(taken) in line for line in warnings_of(caplog)] == [True]
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in taken.iterdir()} == bait

    os.kill(status.pid, signal.SIGKILL)
    assert wait_until(lambda: not is_served(config), timeout_seconds=60)
    shutil.rmtree(taken)
    start_server(config)
    with NodeClient.connect(config, autostart=False) as node:
        assert node.status().store == str(store)


def _make_bait(directory: Path) -> None:
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    for name in ("index", "segment-0"):
        (directory / name).write_bytes(b"bait")
        (directory / name).chmod(0o666)


@pytest.mark.parametrize(("mode", "owner"), [(0o777, STRANGER), (0o1777, STRANGER), (0o755, STRANGER)])
def test_a_memory_directory_of_another_user_is_not_used(root: Path, sandbox: Sandbox, mode: int, owner: int) -> None:
    sandbox.memory_dir.chmod(mode)
    os.chown(sandbox.memory_dir, owner, owner)
    assert_trains(root)
    assert list(sandbox.memory_dir.iterdir()) == []
    with NodeClient.connect(resolve(), autostart=False) as node:
        assert node.status().store.startswith(str(resolve().home))
        assert any(f"belongs to user {STRANGER}" in notice for notice in node.status().notices)
        node.stop()
    os.chown(sandbox.memory_dir, 0, 0)


# ---------------------------------------------------------------- what a server names

KEY = bytes(range(16))


def give_away(directory: Path, how: str) -> None:
    if how == "owner":
        os.chown(directory, STRANGER, STRANGER)
    elif how == "link":
        directory.rename(directory.with_name("target"))
        directory.symlink_to("target")
    else:
        directory.chmod(int(how, 8))


HOWS = pytest.mark.parametrize("how", ["owner", "0777", "0770", "link"])


@HOWS
def test_a_cache_that_others_may_have_written_holds_nothing(sandbox: Sandbox, how: str) -> None:
    """Also when it comes to its place after a server named it."""
    sandbox.memory_dir.chmod(0o755)
    directory = sandbox.memory_dir / "cache"
    directory.mkdir(mode=0o700)
    tier = SharedTier(directory, limit_bytes=4 * 1024**2)
    assert tier.put_many([(KEY, memoryview(b"planted"))]) == 1
    assert tier.get(KEY) == b"planted"
    tier.close()
    give_away(directory, how)
    assert tier.get(KEY) is None
    tier.close()


@HOWS
def test_nothing_is_written_into_a_cache_of_another_user(sandbox: Sandbox, how: str) -> None:
    sandbox.memory_dir.chmod(0o755)
    directory = sandbox.memory_dir / "cache"
    directory.mkdir(mode=0o700)
    give_away(directory, how)
    tier = SharedTier(directory, limit_bytes=4 * 1024**2)
    assert not tier.put_many([(KEY, memoryview(b"secret"))])
    tier.grow(8 * 1024**2)
    tier.close()
    assert list(directory.iterdir()) == []


@HOWS
def test_a_server_s_answer_that_names_what_others_may_have_written(
    root: Path, sandbox: Sandbox, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not opened, neither a manifest, nor a catalogue or a cache; training goes on without a server."""
    config = resolve()
    with NodeClient.connect(config) as node:
        manifest = Manifest.open(node.open_dataset(str(root)).manifest_dir).directory
        catalogue = Path(node.open_catalogue("learned-01234567", _paths_file(node), num_samples=3).manifest_dir)
        node.stop()
    assert wait_until(lambda: not is_served(config), timeout_seconds=60)
    evil = sandbox.root / "evil"
    evil.mkdir()
    for directory in (manifest, catalogue, evil):
        give_away(directory, how)
        for above in list(directory.parents)[: len(directory.relative_to(sandbox.root).parts)]:
            above.chmod(0o755)  # else nobody could come to it

    def answer(message: m.AnyMessage) -> list[m.Message]:
        if isinstance(message, m.OpenDataset):
            where = catalogue if message.catalogue else manifest
            return [m.DatasetOpened(message.token, 1, str(where))]
        if isinstance(message, m.OpenCache):
            return [m.CacheOpened(str(evil), 1, "", 0, "instance")]
        return []

    with scripted(config, script=answer) as server, NodeClient.connect(config, autostart=False) as node:
        with pytest.raises(StoreFormatError, match="must be a directory"):
            open_node_dataset(node, str(root), config)
        with pytest.raises(StoreFormatError, match="must be a directory"):
            open_learned_dataset(node, "01234567", 3, config)
        with pytest.raises(UnsafeDirectoryError, match="must be a directory"):
            CacheLink.open(config, CacheName(session=0, cache=1, description=""))
        server.protocol = m.PROTOCOL + 1
        assert_trains(root)
    assert len(warnings_of(caplog)) <= 2


def _paths_file(node: NodeClient) -> str:
    path = node.connection.runtime_dir / "paths-of-none"
    path.write_bytes(b"")
    return str(path)


def test_owners_that_a_user_namespace_does_not_know_are_not_this_user(sandbox: Sandbox) -> None:
    """There everybody is shown as 65534: this user too, who has no number of his own."""
    program = (
        "import os, sys; from prefeed.system.trust import is_mine, why_not_shared; found = os.stat(sys.argv[1]); "
        "print(os.geteuid(), found.st_uid, is_mine(found), bool(why_not_shared(found)))"
    )
    for options, said in (([], "65534 65534 False True\n"), (["--map-root-user"], "0 0 True False\n")):
        line = ["unshare", "--user", *options, sys.executable, "-c", program, str(sandbox.root)]
        ran = subprocess.run(line, capture_output=True, text=True, check=False)
        if ran.returncode and "unshare" in ran.stderr:
            pytest.skip(f"no user namespaces here: {ran.stderr.strip()}")
        assert ran.stdout == said, ran.stderr


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_the_server_of_another_user_is_not_stopped(sandbox: Sandbox, mode: int) -> None:
    """The commands say whose it is."""
    pid = start_server(resolve())
    sandbox.root.chmod(0o755)
    sandbox.home.chmod(mode)
    run_cli("server", "stop", "--help")  # a stranger cannot import what lies in this user's directories
    run_cli("stats")
    as_stranger(_try_to_stop, "of user 0, who alone can stop" if mode == 0o755 else f"user {STRANGER} cannot read")
    with NodeClient.connect(resolve(), autostart=False) as node:
        assert node.status().pid == pid


def _try_to_stop(reason: str) -> None:
    said = run_cli("server", "stop")
    assert reason in said, said
    run_cli("stats")


def run_cli(*words: str) -> str:
    return CliRunner().invoke(cli, words, catch_exceptions=False).output
