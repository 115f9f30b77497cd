"""``prefeed stats --watch``: updates in a row, until Ctrl-C."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from fake_backend import STATISTICS, STATUS, FakeBackend
from prefeed.cli import stats
from prefeed.cli.stats import watch_counts
from prefeed.cli.top import ServerSource
from prefeed.cli.top_view import Sample
from prefeed.errors import PrefeedError, ServerUnavailableError

EARLY = Sample(status=STATUS, statistics=STATISTICS)
LATER = Sample(
    status=replace(STATUS, uptime_seconds=STATUS.uptime_seconds + 2),
    statistics=replace(
        STATISTICS, hits=STATISTICS.hits + 99, misses=STATISTICS.misses + 1, origin_requests=1510, origin_bytes=127_000_000
    ),
)  # fmt: skip


def gone() -> PrefeedError:
    return ServerUnavailableError("no server is running for /home/u")


class Source:
    """Gives one sample after the other; what is an error is raised."""

    def __init__(self, *samples: Sample | PrefeedError) -> None:
        self._samples: Iterator[Sample | PrefeedError] = iter(samples)

    def sample(self) -> Sample:
        found = next(self._samples)
        if isinstance(found, PrefeedError):
            try:
                raise found
            finally:
                del found
        return found


def watch(*samples: Sample | PrefeedError, as_json: bool = False) -> list[float]:
    """Watch until there are no more samples, then press Ctrl-C; return the pauses."""
    pauses: list[float] = []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == len(samples):
            raise KeyboardInterrupt

    watch_counts(cast(ServerSource, Source(*samples)), as_json=as_json, wait=wait)
    return pauses


def test_updates_follow_each_other_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch(EARLY, LATER) == [2.0, 2.0]

    out, err = capsys.readouterr()
    first, second = out.removesuffix("\n\n").split("\n\n")
    assert err == ""
    assert "\x1b" not in out
    assert first.splitlines()[0].endswith("1,000 reads")
    assert first.splitlines()[1].split() == ["now", "-"]
    assert "50 reads/s, 99.0 % of them hits; 5 origin requests/s, 488.3 KiB/s" in second


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    watch(EARLY, LATER, as_json=True)

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["reads"], first["rates"]) == (1000, None)
    assert (second["reads"], second["rates"]["origin_requests"]) == (1100, 5.0)
    assert first["time"] <= second["time"]


def test_a_server_that_ends_is_reported_and_the_next_one_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    watch(EARLY, gone(), replace(LATER, status=replace(LATER.status, pid=4322)))

    first, second, third = capsys.readouterr().out.removesuffix("\n\n").split("\n\n")
    assert "1,000 reads" in first
    assert second.endswith("  no server is running for /home/u")
    assert "1,100 reads" in third
    assert third.splitlines()[1].split() == ["now", "-"]


def test_json_of_a_missing_server_has_the_error_and_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    watch(gone(), EARLY, as_json=True)

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (set(first), first["error"]["code"]) == ({"time", "error"}, "server-unavailable")
    assert second["reads"] == 1000


def test_on_a_terminal_an_update_replaces_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("LINES", "6")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())

    watch(EARLY, LATER)

    screens = sys.stdout.getvalue().split("\x1b[H\x1b[2J")  # type: ignore[attr-defined]
    assert [len(screen.splitlines()) for screen in screens[1:]] == [5, 5]
    assert "…" in screens[2]


def test_ctrl_c_ends_with_0_and_closes_the_connection(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: ServerSource, **options: object) -> None:
        watch_counts(source, as_json=True, wait=press)

    def press(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stats, "watch_counts", interrupted)
    backend = FakeBackend()

    result = run(backend, "stats", "--watch", "--json")

    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["reads"] == 1000
    assert backend.calls == [("close",)]
