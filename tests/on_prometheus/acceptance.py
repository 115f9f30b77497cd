"""Every query of the dashboard, answered by a real Prometheus that scrapes a real server: ``make test-dashboard``. No part of ``make test``.

The server has all that a node can have: memory and disk tier, a pool, a stage cache, plans and epochs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefeed_bench.memcached import memcached_ring
from prefeed_bench.origin import free_port

pytestmark = pytest.mark.usefixtures("sandbox")

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "prefeed.json").read_text())
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
EMPTY_WHEN_ALL_IS_WELL = {"Errors"}
"""Panels of series that begin with the first failure."""

VALUES = {"$__rate_interval": "10s", "$instance": ".*", "$job": ".*"}
TIMEOUT_SECONDS = 180

TRAINING = """
import sys
import prefeed, torch
from pathlib import Path

files = prefeed.datasets.Objects(sys.argv[1])
cached = prefeed.CachedDataset(torch.utils.data.TensorDataset(torch.arange(64.0)))
print("begins", flush=True)
while not Path(sys.argv[2]).exists():
    for batch in prefeed.DataLoader(files, batch_size=8, shuffle=True, collate_fn=list):
        pass
    for batch in prefeed.DataLoader(cached, batch_size=8):
        pass
"""


def output(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "prefeed", *words, "--json"], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=TIMEOUT_SECONDS)


@pytest.fixture
def prometheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a node that trains, and a Prometheus that scrapes it; give the address of the latter."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(64):
        (files / f"{number}.bin").write_bytes(os.urandom(10_000))
    stop = tmp_path / "stop"
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(memcached_ring(2))
        for name, value in {
            "PREFEED_METRICS": "127.0.0.1:0", "PREFEED_MEMORY": "8MiB", "PREFEED_DISK": "16MiB", "PREFEED_READ_ONCE": "1",
            "PREFEED_POOL": ",".join(server.address for server in pool),
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        output("server", "start")
        target = urllib.parse.urlsplit(output("server", "status")["metrics"]).netloc
        training = subprocess.Popen([sys.executable, "-c", TRAINING, str(files), str(stop)])
        stack.callback(training.wait, timeout=TIMEOUT_SECONDS)
        stack.callback(stop.touch)
        yield stack.enter_context(_scraping(target, tmp_path))


@contextlib.contextmanager
def _scraping(target: str, directory: Path) -> Iterator[str]:
    jobs = [{"job_name": "prefeed", "static_configs": [{"targets": [target]}]}]
    config = directory / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    address = f"127.0.0.1:{free_port()}"
    line = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    with open(directory / "prometheus.log", "wb") as log:
        process = subprocess.Popen(line, stdout=log, stderr=log)
    with ended(process):
        yield address


def result_of(address: str, expression: str) -> list[dict[str, Any]]:
    """Return the series of an expression; none while Prometheus starts.

    Raises:
        HTTPError: It refuses the expression.
    """
    for name, value in VALUES.items():
        expression = expression.replace(name, value)
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except urllib.error.HTTPError as err:
        if err.code != 503:
            raise
    except urllib.error.URLError:
        pass
    return []


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.5)
    return False


def number_of_series(address: str, expression: str) -> int:
    """Return how many series have a number: of nothing divided by nothing there is none."""
    return sum(series["value"][1] != "NaN" for series in result_of(address, expression))


def test_every_query_has_an_answer(prometheus: str) -> None:
    missing = dict.fromkeys((title, query) for title, query in EXPRESSIONS if title not in EMPTY_WHEN_ALL_IS_WELL)

    def answered() -> bool:
        for title, query in list(missing):
            if number := number_of_series(prometheus, query):
                del missing[title, query]
                print(f"{number:>3} series  {title}: {query}")
        return not missing

    assert wait_for(answered), list(missing)
    for title, query in EXPRESSIONS:
        if title in EMPTY_WHEN_ALL_IS_WELL:
            assert result_of(prometheus, query) == []


def test_variables_are_labels_of_the_server(prometheus: str) -> None:
    assert wait_for(lambda: bool(result_of(prometheus, "prefeed_build_info")))
    (series,) = result_of(prometheus, "prefeed_build_info")

    assert series["metric"]["job"] == "prefeed"
    for variable in DASHBOARD["templating"]["list"][1:]:
        assert variable["definition"].endswith(f", {variable['name']})")
        assert variable["name"] in series["metric"]
