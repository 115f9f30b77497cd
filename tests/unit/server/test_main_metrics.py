"""A server process and its metrics."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from asking import first_client
from prefeed.client.launch import start_server
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.server.metrics_endpoint import MetricsEndpoint

pytestmark = pytest.mark.usefixtures("sandbox")


@contextlib.contextmanager
def server(**settings: object) -> Iterator[NodeClient]:
    config: Config = resolve(settings)
    start_server(config)
    with NodeClient.connect(config, autostart=False) as node:
        yield node


def scrape(url: str) -> dict[str, float]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=60) as answer:
        families = parse(answer.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_the_status_names_where_the_metrics_are() -> None:
    with server(metrics="127.0.0.1:0") as node:
        found = scrape(node.status().metrics)
        assert found["prefeed_clients"] == 1
        assert found["process_resident_memory_bytes"] > 10_000_000


def test_a_scrape_keeps_no_server_awake(tmp_path) -> None:
    config = resolve({"metrics": "127.0.0.1:0", "idle_timeout": 0.5})
    _, node = first_client(lambda: start_server(config), lambda _: NodeClient.connect(config, autostart=False))
    with node:
        url = node.status().metrics
    with contextlib.suppress(OSError):
        while True:  # until the server has ended
            scrape(url)


def test_metrics_can_be_turned_off() -> None:
    with server(metrics="0") as node:
        assert node.status().metrics == ""


def test_a_named_port_that_is_taken_stops_no_server() -> None:
    with contextlib.closing(MetricsEndpoint("127.0.0.1:0")) as other:
        address = other.url.split("/")[2]
        with server(metrics=address) as node:
            status = node.status()
            assert status.metrics == ""
            assert [notice for notice in status.notices if address in notice and "PREFEED_METRICS" in notice]


@pytest.mark.parametrize("arguments", [["server", "status"], ["server", "status", "--json"]], ids=["text", "json"])
def test_the_command_shows_the_url(arguments: list[str]) -> None:
    with server(metrics="127.0.0.1:0") as node:
        ran = subprocess.run([sys.executable, "-m", "prefeed", *arguments], capture_output=True, text=True, check=True)
        url = node.status().metrics
    shown = json.loads(ran.stdout)["metrics"] if "--json" in arguments else ran.stdout
    assert url in shown
