"""Every test runs in a home of its own and gives back what it took; pure tests take nothing."""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import tempfile
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import profiles
import warm
from leaks import collect_ended_servers, descriptors_beyond, held, leaked_since, open_descriptors
from limits import set_limits
from prefeed.client import tiers
from purity import num_processes_started, only_files_below
from sandbox import Sandbox, end_all, processes_of, remove_left_by_killed_runs, servers_of

LEAK_TIMEOUT_SECONDS = 90.0
FAILED = pytest.StashKey[bool]()
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
PURE_FOLDERS = ("unit", "property", "stateful", "architecture")
"""Their tests are pure, but for those that ask for the sandbox; the tests of all other folders have one."""

_numbers = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """No test sees the settings of who runs it, nor that Ctrl-C is ignored there: programs would inherit it."""
    for name in [n for n in os.environ if n.startswith(("PREFEED_", "AWS_", *CERTIFICATES)) or n.lower() in PROXIES]:
        if not name.startswith("PREFEED_TEST"):
            del os.environ[name]
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.setLogRecordFactory(_record)
    warm.spare_the_disk()
    warm.install()


def _record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    """Return a record that is text alone: pytest keeps records, and their errors would keep the frames that raised them."""
    record = logging.LogRecord(*args, **kwargs)
    record.msg, record.args = record.getMessage(), None
    if record.exc_info:
        record.exc_text, record.exc_info = logging.Formatter().formatException(record.exc_info), None
    return record


def pytest_report_header() -> str:
    """Say how many examples the tests of properties try."""
    return profiles.header()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests outside the pure folders have a sandbox; it comes before all else that is made for one test."""
    tests = Path(__file__).parent
    for item in items:
        assert isinstance(item, pytest.Function)
        if config.getoption("loadgroup", False):
            _show_group(item)
        names, definitions = item.fixturenames, item._fixtureinfo.name2fixturedefs
        if "sandbox" in names:
            names.remove("sandbox")
        elif item.path.relative_to(tests).parts[0] in PURE_FOLDERS:
            item.add_marker("quick")
            continue
        elif item.path.relative_to(tests).parts[0] == "docs":
            item.add_marker("quick")
        of_tests = (
            at for at, name in enumerate(names) if name in definitions and definitions[name][-1].scope == "function"
        )
        names.insert(next(of_tests, len(names)), "sandbox")


def _show_group(item: pytest.Item) -> None:
    """Let xdist send the tests of a group to one process: their ids end in its name.

    xdist 3.8 writes that where pytest 9.2 no longer reads it. (2026-11)
    """
    mark = item.get_closest_marker("xdist_group")
    if mark is not None and not hasattr(item, "_nodeid"):
        item._id = type(item.id).parse(f"{item.nodeid}@{mark.args[0]}")


def pytest_collection_finish() -> None:
    """Tests collect garbage often: what has been imported is none."""
    gc.collect()
    gc.freeze()
    warm.ease_forks()


def pytest_unconfigure() -> None:
    """Libraries say what is left of theirs when the interpreter ends."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _once_per_process() -> Iterator[None]:
    """Start what libraries start once and keep, so that no single test is blamed for it."""
    remove_left_by_killed_runs()
    multiprocessing.resource_tracker.ensure_running()
    yield
    _stop_forkserver()


def _stop_forkserver() -> None:
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture(scope="module", autouse=True)
def _module_closes_its_files() -> Iterator[None]:
    """Fail the last test of a module that leaves descriptors behind: pure tests are not looked at one by one."""
    warm.ease_forks()
    before = open_descriptors()
    yield
    if more := descriptors_beyond(before):
        pytest.fail("the tests of this module left open\n" + "\n".join(f"  {name}" for name in more), pytrace=False)


@pytest.fixture(autouse=True)
def _pure(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail a test without a sandbox that starts a process or a thread, opens a socket, or writes beside its files."""
    if "sandbox" in request.fixturenames:
        yield
        return
    below = tmp_path_factory.getbasetemp()
    home = below / f"home-{next(_numbers)}"  # not made until something writes there
    monkeypatch.setenv("PREFEED_HOME", str(home))
    monkeypatch.setenv("PREFEED_MEMORY_DIR", str(home / "memory"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setattr(tempfile, "tempdir", str(below))
    with only_files_below(below) as refused:
        yield
    request.node.funcargs.clear()  # else pytest keeps what fixtures returned, and what that has open, until later
    if refused:
        pytest.fail("this needs the sandbox fixture\n" + "\n".join(f"  {what}" for what in refused), pytrace=False)


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Give the test its own home, runtime directory and memory tier; end every process started with them."""
    sandbox = Sandbox.create()
    monkeypatch.setenv("PREFEED_HOME", str(sandbox.home))
    monkeypatch.setenv("PREFEED_MEMORY", "64MiB")
    # Tests count requests and hits from the first read on.
    set_limits(monkeypatch, start_ahead=False, read_in_place=False)
    monkeypatch.setenv("PREFEED_MEMORY_DIR", str(sandbox.memory_dir))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sandbox.runtime_dir))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(sandbox.root / "config"))
    monkeypatch.setattr(
        "prefeed.client.untold._untold._epochs", deque()
    )  # loaders of earlier tests that no server was told of
    monkeypatch.setattr("prefeed.client.dataset._used", {})
    warm.pause(request.node.get_closest_marker("cold") is not None)
    num_processes = num_processes_started()
    with _nothing_leaks(request, sandbox):
        yield sandbox
    if num_processes_started() != num_processes:
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


@contextmanager
def _nothing_leaks(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[None]:
    """Fail a test that leaves descriptors, threads, children, shared memory or mounts behind."""
    marker = request.node.get_closest_marker("leaks")
    if marker is not None:
        reason = marker.kwargs.get("reason", "".join(marker.args[:1]))
        assert reason, "pytest.mark.leaks needs a reason"
        yield
        return
    num_processes = num_processes_started()
    before = held(mounts_below=sandbox.root)
    yield
    request.node.funcargs.clear()
    tiers._tiers.clear()  # a process keeps the tiers of the last servers that it was connected to
    if has_children := num_processes_started() != num_processes:
        end_all(servers_of(sandbox))  # a server outlives its clients by design
        collect_ended_servers()
        _stop_forkserver()  # one a process, made on first use
    if request.node.stash.get(FAILED, False):
        return
    leaked = leaked_since(
        before, mounts_below=sandbox.root, timeout_seconds=LEAK_TIMEOUT_SECONDS, has_children=has_children
    )
    if leaked:
        lines = [f"  {kind}: {name}" for kind, names in leaked.items() for name in names]
        pytest.fail("the test left behind\n" + "\n".join(lines), pytrace=False)
