"""What a program is given and nobody else is to see, and what it takes: credentials in URLs, descriptors, closed pipes."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import prefeed
import warm
from cover import crossed
from leaks import wait_until
from prefeed.cli.main import cli
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.datasets import ImageFolder, Objects
from sandbox import Sandbox
from servers import FileServer, free_port, http_server, status, write_index

PASSWORD = "s3cr3t-of-the-web"
GIVEN = f"me:{PASSWORD}@"
AUTHORIZATION = "Basic " + b64encode(f"me:{PASSWORD}".encode()).decode()
NUM = 6


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    """A web server that gives its files to one user only."""
    root = tmp_path / "web"
    (root / "c").mkdir(parents=True)
    for index in range(NUM):
        (root / "c" / f"{index}.jpg").write_bytes(b"%d" % index)
    write_index(root)
    with http_server(root) as server:
        yield server


def asked_as(server: FileServer) -> set[str | None]:
    """Return as whom the server was asked."""
    return {
        {name.lower(): value for name, value in headers.items()}.get("authorization") for *_, headers in server.requests
    }


def url_of(server: FileServer) -> str:
    return server.url.replace("://", f"://{GIVEN}")


def in_process(dataset: Any, pipe: Any) -> None:
    try:
        pipe.send([dataset[index] for index in range(len(dataset))])
    except Exception as err:  # noqa: BLE001 - told to the test
        pipe.send(err)


def read_elsewhere(dataset: Any, method: str) -> Any:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context(method).Process(target=in_process, args=(dataset, there))
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.kill()
        process.join()
        process.close()
        here.close()


@pytest.mark.parametrize(("kind", "enabled"), [(Objects, "1"), (ImageFolder, "0")], ids=["cached", "uncached"])
def test_a_pickled_dataset_has_no_password(
    server: FileServer, kind: Any, enabled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    """Copies, forks and workers of this process read on; who unpickles it is told where credentials go."""
    monkeypatch.setenv("PREFEED_ENABLED", enabled)
    dataset = kind(url_of(server), **({} if kind is Objects else {"loader": bytes_of}))
    pickled = pickle.dumps(dataset)
    for secret in (PASSWORD, AUTHORIZATION.split()[1]):
        assert secret.encode() not in pickled
        assert secret not in repr(vars(dataset)) + repr(vars(dataset._origin))
    expected = [dataset[index] for index in range(NUM)]
    for same in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickled)):
        assert [same[index] for index in range(NUM)] == expected
    assert asked_as(server) == {AUTHORIZATION}
    if enabled == "1":
        with NodeClient.connect(resolve(), autostart=False) as node:
            node.stop()
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")
    assert read_elsewhere(dataset, "fork") == expected
    assert read_elsewhere(dataset, "spawn") == expected
    assert asked_as(server) == {AUTHORIZATION}

    (tmp_path / "pickled").write_bytes(pickled)
    line = [sys.executable, "-c", SECOND_SAMPLE, str(tmp_path / "pickled")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parents[1])])}
    server.requests.clear()
    server.answers["/c/1.jpg"] = status(401)
    refused = subprocess.run(line, capture_output=True, text=True, check=False, env=environ)
    assert refused.returncode == 1
    assert asked_as(server) == {None}
    assert "credentials.json" in refused.stderr
    del server.answers["/c/1.jpg"]
    stores = [{"url": server.url, "access-key": "me", "secret-key": PASSWORD}]
    (sandbox.home / "credentials.json").write_text(json.dumps({"format": 1, "stores": stores}))
    (sandbox.home / "credentials.json").chmod(0o600)
    server.requests.clear()
    told = subprocess.run(line, capture_output=True, text=True, check=False, env=environ)
    assert told.stdout == f"{[expected[1]]}\n"
    assert asked_as(server) == {AUTHORIZATION}


SECOND_SAMPLE = warm.given_as_text("import pickle, sys; print([pickle.load(open(sys.argv[1], 'rb'))[1]])")


def bytes_of(file: Any) -> bytes:
    data: bytes = file.read()
    return data


def test_spawned_workers_of_a_loader_have_what_they_need(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects(url_of(server))
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")
    with NodeClient.connect(resolve(), autostart=False) as node:
        node.stop()
    loader = torch.utils.data.DataLoader(
        objects, batch_size=NUM, num_workers=1, multiprocessing_context="spawn", collate_fn=list
    )  # type: ignore[arg-type]
    assert list(loader) == [[b"%d" % index for index in range(NUM)]]
    assert asked_as(server) == {AUTHORIZATION}


COMMANDS = (["warm"], ["clear"], ["pack", "{}", "out", "--format", "lmdb"], ["pack", "src", "{}", "--format", "lmdb"],
            ["stage", "{}"], ["stage", "delete", "{}"], ["sync", "{}", "out"])  # fmt: skip


@pytest.mark.parametrize(
    ("words", "secret"), crossed({" ".join(words): words for words in COMMANDS}, [GIVEN, "me@", f":{PASSWORD}@"])
)
def test_commands_take_no_credentials(
    words: list[str], secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of processes show arguments: they are refused before anything is done, and the message has nothing of them."""

    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    url = f"http://{secret}127.0.0.1:9/x"
    arguments = [word.format(url) for word in words]
    result = CliRunner().invoke(cli, arguments if url in arguments else [*arguments, url])
    assert result.exit_code == 1, result.output
    assert "contains credentials" in result.stderr
    assert "credentials.json" in result.stderr
    assert PASSWORD not in result.output
    assert "me@" not in result.output
    assert not (tmp_path / "out").exists()


def test_many_datasets_share_what_they_can(tmp_path: Path) -> None:
    """A listing keeps one descriptor; a connection, a store and a record of written files are there once."""
    roots = [tmp_path / str(number) for number in range(40)]
    for root in roots:
        root.mkdir()
        (root / "x").write_bytes(root.name.encode())
    one = Objects(roots[0])
    assert one[0] == b"0"
    before = len(os.listdir("/proc/self/fd"))
    datasets = [Objects(root) for root in roots[1:]]
    assert [dataset[0] for dataset in datasets] == [root.name.encode() for root in roots[1:]]
    assert len(os.listdir("/proc/self/fd")) - before <= len(datasets)
    with NodeClient.connect(resolve(), autostart=False) as node:
        assert wait_until(lambda: node.status().clients == 2, timeout_seconds=60)  # this one, and that of all readers
        node.stop()
    assert [dataset[0] for dataset in datasets] == [root.name.encode() for root in roots[1:]]


CLOSED = (
    ["prefeed", "stats"], ["prefeed", "server", "status"], ["prefeed", "warm", "{data}"],
    ["prefeed", "stage", "list"], ["prefeed", "stats", "--json"], ["prefeed", "pack", "{data}", "{out}", "--format", "lmdb"],
    ["prefeed", "clear", "--all"], ["cache_admin", "--list_sessions"], ["cache_admin", "--server_info"], ["cache_admin", "--help"],
    ["cache_admin", "--generate_session"], ["prefeed", "server", "stop"], ["cache_admin", "--stop"], ["cache_admin", "--start"],
    ["cache_admin", "--stop"],
)  # fmt: skip


def test_commands_whose_reader_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``prefeed … | head -1``: nothing is said of it, and what was asked for is done."""
    monkeypatch.setenv("MS_CACHE_PORT", str(free_port()))
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_bytes(b"x")
    run = {"prefeed": "prefeed.cli.main", "cache_admin": "prefeed.cli.cache_admin"}
    for program, *words in (["prefeed", "server", "start"], ["cache_admin", "--start"]):
        code = f"from {run[program]} import main; main()"
        subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=True)
    for program, *words in CLOSED:
        read, write = os.pipe()
        os.close(read)
        code = f"import sys, signal; from {run[program]} import main; sys.argv[0] = {program!r}; main()"
        line = [sys.executable, "-c", code, *(word.format(data=data, out=tmp_path / "out") for word in words)]
        done = subprocess.run(line, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        os.close(write)
        assert done.stderr == "" or "prefeed: " in done.stderr, (program, words, done.stderr)
        assert "Traceback" not in done.stderr, (program, words, done.stderr)
        assert "BrokenPipe" not in done.stderr, (program, words, done.stderr)
        assert done.returncode in (0, 1), (program, words, done.returncode)
    assert (tmp_path / "out" / "prefeed-pack.index").exists()
