"""A node that cannot be had when a loader, a dataset or a stage asks for it first: used as soon as it can be had."""

from __future__ import annotations

import json
import logging
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import prefeed
from prefeed.client.access import AccessMap
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.datasets import Objects
from prefeed.torch.loader import _attachment_of
from process.conditions import kill, wait_for
from sandbox import Sandbox

EXPECTED = [b"%d" % index * 10 for index in range(10)]


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for index in range(10):
        (root / f"{index}").write_bytes(b"%d" % index * 10)
    return root


class ServerDies(Objects):
    """While a loader opens it, the server is killed."""

    num_deaths = 1

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        if self.num_deaths:
            self.num_deaths -= 1
            kill(node.status().pid)
        return super().prefeed_access(node, config)


def loader_of(dataset: Any, **kwargs: Any) -> Any:
    return prefeed.DataLoader(dataset, batch_size=1, collate_fn=_first, **kwargs)


def _first(batch: list[Any]) -> Any:
    return batch[0]


def is_served(loader: Any) -> bool:
    attachment = _attachment_of(loader, explicit=True)
    return attachment.served is not None and attachment._consumer is not None and attachment._consumer.is_connected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_server_that_dies_while_a_loader_attaches(
    root: Path, num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The next epoch has a plan; both are said, once each."""
    loader = loader_of(ServerDies(root), num_workers=num_workers)
    with caplog.at_level(logging.INFO, logger="prefeed"):
        assert list(loader) == EXPECTED
        assert not is_served(loader)
        for _ in range(3):
            assert list(loader) == EXPECTED
        assert is_served(loader)
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "not used for this loader" in line and "later epochs try again" in line]) == 1
    assert len([line for line in said if "used for this loader from now on" in line]) == 1
    with NodeClient.connect(resolve(), autostart=False) as node:
        counts = node.statistics()
    assert counts.hits + counts.late + counts.misses >= 30


def test_a_server_that_dies_again_and_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failed try makes the pause longer: epochs in it cost nothing."""
    now = 0.0
    monkeypatch.setattr("prefeed.torch.attachment.time.monotonic", lambda: now)
    dataset = ServerDies(root)
    dataset.num_deaths = 3
    loader = loader_of(dataset)
    died = []
    for _ in range(40):
        assert list(loader) == EXPECTED
        died.append(3 - dataset.num_deaths)
        now += 0.25
    assert died[:2] == [1, 2]  # at once
    assert died.index(3) == 5  # a second after the second failure
    assert died.count(3) == 35
    assert is_served(loader)


def test_a_dataset_and_a_stage_that_were_made_meanwhile(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No server can be started when they are made; later reads, and later passes, use the cache."""
    with monkeypatch.context() as patched:
        patched.setattr("prefeed.client.launch.sys.executable", "/bin/false")
        objects = Objects(root)
        cached = prefeed.CachedDataset(list(EXPECTED), version="list")
        loader, staged = loader_of(objects), loader_of(cached)
        for _ in range(2):
            assert [objects[index] for index in range(10)] == EXPECTED
            assert list(loader) == list(staged) == EXPECTED
        assert "without the cache" in capfd.readouterr().err
    wait_for(lambda: list(loader) == EXPECTED and is_served(loader), "a plan")
    wait_for(
        lambda: [objects[index] for index in range(10)] == EXPECTED and objects._origin._dataset is not None, "reads"
    )
    wait_for(lambda: list(staged) == EXPECTED and cached._store is not None, "the stage's cache")
    assert list(staged) == EXPECTED
    assert cached.get_stat().num_mem_cached == 10
    assert prefeed.statistics().hits > 0
    cached.close()


# ---------------------------------------------------------------- no home

NOBODY = 54321
NO_HOMES: dict[str, dict[str, str | None]] = {
    "unset": {"HOME": None},
    "empty": {"HOME": ""},
    "relative": {"HOME": "."},
    "nonexistent": {"HOME": "/nonexistent"},
    "read-only": {"HOME": "{ro}"},
    "full": {"HOME": "{full}"},
    "no XDG directories": {
        "HOME": None, "XDG_CACHE_HOME": "/nonexistent/a", "XDG_CONFIG_HOME": "/nonexistent/b",
        "XDG_RUNTIME_DIR": "/nonexistent/c",
    },
}  # fmt: skip


PROGRAM = """
import json, os, sys, prefeed, prefeed.datasets, prefeed.torch.loader, prefeed.stage_cache.dataset
data, homes = sys.argv[1], json.loads(sys.argv[2])
expected = [b"%d" % index * 10 for index in range(10)]
for how, changes in homes.items():
    if (child := os.fork()) == 0:
        for name, value in changes.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        objects = prefeed.datasets.Objects(data)
        if how == "unset":
            cached = prefeed.CachedDataset([1, 2, 3], version="numbers")
            assert [cached[index] for index in range(3)] == [1, 2, 3]
            loader = prefeed.DataLoader(objects, batch_size=2, num_workers=1)
            for _ in range(2):
                assert [sample for batch in loader for sample in batch] == expected
            assert prefeed.read(data + "/3") == expected[3]
        assert len(objects) == 10
        if how in ("unset", "nonexistent"):  # each further try to start a server takes as long as an interpreter
            assert [objects[index] for index in range(10)] == expected
        assert prefeed.statistics().resident_objects == 0
        sys.exit(0)
    status = os.waitpid(child, 0)[1]
    print(f"{how}: {status}", file=sys.stderr)
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user")
def test_no_home(root: Path, sandbox: Sandbox) -> None:
    """As in a container that runs as a user of its own choice: programs run uncached, and lines say what to set."""
    with pytest.raises(KeyError):
        pwd.getpwuid(NOBODY)
    sandbox.root.chmod(0o755)
    shutil.copytree(root, sandbox.root / "data")
    homes = {option: sandbox.root / option for option in ("ro", "full")}
    for option, home in homes.items():
        home.mkdir()
        options = "ro" if option == "ro" else "nr_inodes=2,mode=777"
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(home)], check=False).returncode:
            pytest.skip("nothing can be mounted here")
    try:
        (homes["full"] / "others").write_bytes(b"")  # the last file that it takes
        changes = {
            how: {name: None if value is None else value.format(**homes) for name, value in named.items()}
            for how, named in NO_HOMES.items()
        }
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PREFEED_", "XDG_"))}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        become += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # the interpreter may be root's
        line = [*become, sys.executable, "-c", PROGRAM, str(sandbox.root / "data"), json.dumps(changes)]
        done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False, cwd="/")
    finally:
        for home in homes.values():
            subprocess.run(["umount", str(home)], check=True)
        for base in ("/tmp", "/dev/shm"):
            shutil.rmtree(f"{base}/prefeed-{NOBODY}", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    said: dict[str, list[str]] = {}
    lines: list[str] = []
    for text in done.stderr.splitlines():
        lines.append(text)
        if text.partition(":")[0] in NO_HOMES:
            assert text.endswith(": 0"), done.stderr
            said[text.partition(":")[0]], lines = lines[:-1], []
    assert said.keys() == NO_HOMES.keys(), done.stderr
    for how, texts in said.items():
        assert 1 <= len(texts) <= 4, (how, texts)
        assert all(text.startswith("prefeed: ") and "PREFEED_HOME" in text for text in texts), (how, texts)
    assert all("there is no home directory" in text for how in ("unset", "empty", "relative") for text in said[how])
