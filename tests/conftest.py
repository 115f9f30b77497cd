"""Every test runs in a home of its own and gives back what it took."""

from __future__ import annotations

import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
from collections.abc import Generator, Iterator

import pytest

from leaks import collect_ended_servers, held, leaked_since
from sandbox import Sandbox, end_all, processes_of, remove_left_by_killed_runs, servers_of

LEAK_TIMEOUT_SECONDS = 5.0
FAILED = pytest.StashKey[bool]()
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(scope="session", autouse=True)
def _once_per_process() -> Iterator[None]:
    """Start what libraries start once and keep, so that no single test is blamed for it."""
    remove_left_by_killed_runs()
    multiprocessing.resource_tracker.ensure_running()
    yield
    _stop_forkserver()


def _stop_forkserver() -> None:
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Give the test its own home, runtime directory and memory tier; end every process started with them."""
    sandbox = Sandbox.create()
    for name in [n for n in os.environ if n.startswith(("PREFEED_", "AWS_")) or n.lower() in PROXIES]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFEED_HOME", str(sandbox.home))
    monkeypatch.setenv("PREFEED_MEMORY", "64MiB")
    monkeypatch.setenv("PREFEED_MEMORY_DIR", str(sandbox.memory_dir))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sandbox.runtime_dir))
    yield sandbox
    end_all(processes_of(sandbox))
    sandbox.remove()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test has failed: its traceback holds what it had open, and it is red already."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def _nothing_leaks(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[None]:
    """Fail a test that leaves descriptors, threads, children, shared memory or mounts behind."""
    marker = request.node.get_closest_marker("leaks")
    if marker is not None:
        reason = marker.kwargs.get("reason", "".join(marker.args[:1]))
        assert reason, "pytest.mark.leaks needs a reason"
        yield
        return
    before = held(mounts_below=sandbox.root)
    yield
    end_all(servers_of(sandbox))  # a server outlives its clients by design
    collect_ended_servers()
    _stop_forkserver()  # one a process, made on first use
    if request.node.stash.get(FAILED, False):
        return
    leaked = leaked_since(before, mounts_below=sandbox.root, timeout_seconds=LEAK_TIMEOUT_SECONDS)
    if leaked:
        lines = [f"  {kind}: {name}" for kind, names in leaked.items() for name in names]
        pytest.fail("the test left behind\n" + "\n".join(lines), pytrace=False)
