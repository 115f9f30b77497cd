"""``prefeed top`` as a command: one frame, JSON, no server, no Textual."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from fake_backend import FakeBackend
from leaks import wait_until
from prefeed.cli import top
from prefeed.cli.backend import NodeBackend
from prefeed.cli.top import Poller, ServerSource
from prefeed.cli.top_view import Look
from prefeed.client.launch import start_server
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import PrefeedError, ServerUnavailableError
from prefeed.wire.endpoint import ensure_private_dir
from top_looks import looks

pytestmark = pytest.mark.usefixtures("sandbox")

QUICK = ("--interval", "0.05")


def test_one_frame_into_a_pipe(run) -> None:
    result = run(FakeBackend(), "top", *QUICK)

    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"prefeed top  {os.environ['PREFEED_HOME']}")
    assert lines[0].endswith("pid 4321, up 2 h 2 min, 2 clients")
    assert any("s3://bucket/train" in line and "500/1.00k" in line for line in lines)
    assert "\x1b" not in result.stdout


def test_json_is_one_object_with_everything(run) -> None:
    result = run(FakeBackend(), "top", "--json", *QUICK)

    found = json.loads(result.stdout)
    assert set(found) == {"status", "statistics", "plans", "sample_sets", "rates"}
    assert found["plans"][0]["position"] == 500
    assert found["rates"] is None  # no time passes on this server's clock


@pytest.mark.parametrize("arguments", [["--once"], ["--json"], []], ids=str)
def test_without_a_server_one_frame_ends_with_3_and_starts_none(run, arguments: list[str]) -> None:
    backend = FakeBackend(running=False)

    result = run(backend, "top", *arguments)

    assert result.exit_code == 3
    assert "no server is running" in result.stderr
    assert not backend.running


def test_without_textual_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PrefeedError, match=r"pip install 'prefeed\[top\]'.*--once"):
        top._run_screen(ServerSource(FakeBackend(), resolve()), resolve(), interval_seconds=1.0)


@pytest.fixture
def real() -> Iterator[ServerSource]:
    with ServerSource(NodeBackend(), resolve({"metrics": "0"})) as source:
        yield source


def test_a_real_server_comes_goes_and_comes_back(real: ServerSource) -> None:
    config = resolve({"metrics": "0"})
    assert "no server runs" in real.look().trouble
    pids = []
    for _ in range(2):
        start_server(config)
        sample = real.look().sample
        assert sample is not None
        pids.append(sample.status.pid)
        assert (sample.plans, sample.status.clients) == ((), 1)
        with NodeClient.connect(config, autostart=False) as node:
            node.stop()
        assert real.look().sample is None
    assert len(set(pids)) == 2


def test_a_server_that_does_not_answer_is_said(real: ServerSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "ANSWER_SECONDS", 0.1)
    config = resolve()
    ensure_private_dir(config.runtime_dir)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(config.socket_path))
        listener.listen()
        with pytest.raises(ServerUnavailableError):
            real.sample()
        assert "no server runs" in real.look().trouble or "does not answer" in real.look().trouble


def test_the_poller_stops_and_pauses() -> None:
    shown: list[Look] = []
    poller = Poller(lambda: looks(1)[0], shown.append, interval_seconds=0.001)
    poller.is_paused = True
    poller.start()
    assert shown == []
    poller.is_paused = False
    assert wait_until(lambda: len(shown) > 2, timeout_seconds=60)
    poller.stop()
    assert wait_until(lambda: "prefeed-top" not in {t.name for t in threading.enumerate()}, timeout_seconds=60)
