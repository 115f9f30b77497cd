"""``prefeed stats --watch``: updates in a row, until Ctrl-C."""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from rich.console import Console

from fake_backend import PLANS, STATISTICS, STATUS, FakeBackend
from prefeed.cli import stats, watch
from prefeed.cli.backend import Backend
from prefeed.cli.stats import watch_server
from prefeed.cli.watch import Sample, ServerSource, frame, rates_between
from prefeed.client.launch import start_server
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import PrefeedError, ServerUnavailableError
from prefeed.types import DiskCounts, EpochWait, PlanInfo, PoolCounts, ReadCounts, Statistics
from prefeed.wire.endpoint import ensure_private_dir

EARLY = Sample(status=STATUS, statistics=STATISTICS, plans=PLANS)
LATER = Sample(
    status=replace(STATUS, uptime_seconds=STATUS.uptime_seconds + 2),
    statistics=replace(
        STATISTICS, hits=STATISTICS.hits + 99, misses=STATISTICS.misses + 1, origin_requests=1510, origin_bytes=127_000_000
    ),
    plans=(replace(PLANS[0], reads=replace(PLANS[0].reads, hits=PLANS[0].reads.hits + 100)),),
)  # fmt: skip
EPOCHS = (
    EpochWait(loader="ImageFolder-1", rank=1, epoch=1, batches=5005, seconds=641.0, waited_seconds=208.0),
    EpochWait(loader="ImageFolder-1", rank=0, epoch=2, batches=5005, seconds=431.0, waited_seconds=3.0),
    EpochWait(loader="ImageFolder-1", rank=1, epoch=2, batches=5005, seconds=431.0, waited_seconds=28.0),
)
GIB = 1024**3


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


def watched(*samples: Sample | PrefeedError, as_json: bool = False) -> list[float]:
    """Watch until there are no more samples, then press Ctrl-C; return the pauses."""
    pauses: list[float] = []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == len(samples):
            raise KeyboardInterrupt

    watch_server(cast(ServerSource, Source(*samples)), as_json=as_json, wait=wait)
    return pauses


# ---------------------------------------------------------------- the loop


def test_updates_follow_each_other_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert watched(EARLY, LATER) == [2.0, 2.0]

    out, err = capsys.readouterr()
    first, second = out.removesuffix("\n\n").split("\n\n")
    assert err == ""
    assert "\x1b" not in out
    assert "server 4321  up 2 h 2 min, 2 clients, 12 of 64 requests in flight" in first
    assert "90.0 % of 1,000 reads (best without read-ahead 95.0 %)" in first
    assert "50 reads/s" in second
    assert "99.0 % hits now" in second
    assert "5 requests/s  488.3 KiB/s" in second


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    watched(EARLY, LATER, as_json=True)

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["reads"], first["rates"]) == (1000, None)
    assert (second["reads"], second["rates"]["origin_requests"]) == (1100, 5.0)
    assert (second["plans"][0]["position"], second["status"]["in_flight"]) == (500, 12)
    assert first["time"] <= second["time"]


def test_a_server_that_ends_is_reported_and_the_next_one_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    watched(EARLY, gone(), replace(LATER, status=replace(LATER.status, pid=4322)))

    first, second, third = capsys.readouterr().out.removesuffix("\n\n").split("\n\n")
    assert "1,000 reads" in first
    assert second.endswith("  no server is running for /home/u")
    assert "1,100 reads" in third
    assert "reads/s" not in third.partition("Plans")[0]


def test_json_of_a_missing_server_has_the_error_and_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    watched(gone(), EARLY, as_json=True)

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

    watched(EARLY, LATER)

    shown = sys.stdout.getvalue()  # type: ignore[attr-defined]
    first, cleared, _ = shown.partition("\x1b[1A\x1b[2K")  # the cursor goes up, and each line is cleared
    assert cleared
    assert first.count("\n") <= 5
    assert "…" in first


def test_ctrl_c_ends_with_0_and_closes_the_connection(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: ServerSource, **options: object) -> None:
        watch_server(source, as_json=True, wait=press)

    def press(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stats, "watch_server", interrupted)
    backend = FakeBackend()

    result = run(backend, "stats", "--watch", "--json")

    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["reads"] == 1000
    assert backend.calls == [("close",)]


# ---------------------------------------------------------------- what is shown


def text_of(sample: Sample, *, width: int = 120) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(frame(sample, None))
    return cast(io.StringIO, console.file).getvalue().splitlines()


def line_with(lines: list[str], start: str) -> str:
    return next(line for line in lines if line.split()[:1] == [start])


def test_tiers_plans_rates_and_waits_are_on_one_screen() -> None:
    statistics = replace(
        STATISTICS,
        disk=DiskCounts(objects=900, bytes=90 * GIB, budget_bytes=200 * GIB, reads=120),
        pool=PoolCounts(servers=4, left_out=1, hits=210, misses=1400),
        epochs=EPOCHS,
    )
    plans = (
        PlanInfo(
            consumer=1, dataset="s3://datasets/imagenet-2012/train", position=412_000, length=640_583,
            ahead_bytes=3 * GIB, reads=ReadCounts(hits=800, misses=200), last_epoch=EPOCHS[2],
        ),
        PlanInfo(consumer=-1, dataset="/mnt/nfs/" + "v" * 60, position=1, length=2, warm=True),
    )  # fmt: skip
    sample = Sample(status=replace(STATUS, notices=("little memory",)), statistics=statistics, plans=plans)
    lines = text_of(sample)

    assert "50.0 %  100.0 MiB of 200.0 MiB, 1,001 objects, 1 transient" in line_with(lines, "memory")
    assert "45.0 %  90.0 GiB of 200.0 GiB, 900 objects, 120 reads" in line_with(lines, "disk")
    assert "3 of 4 servers up" in line_with(lines, "pool")
    plan = next(line for line in lines if "640,583" in line)
    assert plan.split()[:4] == ["ImageFolder-1", "rank", "1", "s3://datasets/imagenet-2012/train"]
    assert plan.split()[-6:] == ["412,000/640,583", "-", "80.0", "%", "6.5", "%"]
    assert line_with(lines, "warm-up").split()[1].startswith("…vvv")
    waits = [line for line in lines if "in epoch" in line]
    assert ["rank 1" in line and "6.5 % " in line for line in waits] == [True, False]
    assert "3 source-throttled" in lines[-2]
    assert "little memory" in lines[-1]
    assert max(map(len, lines)) <= 120


def test_what_a_node_has_not_takes_no_room() -> None:
    idle = Sample(status=replace(STATUS, max_in_flight=0), statistics=Statistics())
    text = "\n".join(text_of(idle, width=60))

    for name in ("disk", "pool", "Plans", "epoch", "Origins", "Errors"):
        assert name not in text
    assert "memory" in text


def test_rates_are_differences_over_the_servers_own_time() -> None:
    rates = rates_between(EARLY, LATER)

    assert rates is not None
    assert (rates.reads, rates.hits, rates.origin_requests, rates.origin_bytes) == (50, 49.5, 5, 500_000)
    assert rates.plans == {77: 50}


@pytest.mark.parametrize(
    "after",
    [
        EARLY,
        replace(LATER, status=replace(LATER.status, pid=99)),
        replace(LATER, statistics=replace(STATISTICS, hits=5)),  # the process id was given again
    ],
    ids=["no time has passed", "another server", "counters go back"],
)
def test_no_rates_across_a_restart(after: Sample) -> None:
    assert rates_between(EARLY, after) is None


# ---------------------------------------------------------------- real servers


@pytest.fixture
def real(sandbox: object) -> Iterator[ServerSource]:
    with ServerSource(Backend(), resolve({"metrics": "0"})) as source:
        yield source


def test_a_real_server_comes_goes_and_comes_back(real: ServerSource) -> None:
    config = resolve({"metrics": "0"})
    with pytest.raises(ServerUnavailableError, match="no server runs"):
        real.sample()
    pids = set()
    for _ in range(2):
        start_server(config)
        sample = real.sample()
        pids.add(sample.status.pid)
        assert (sample.plans, sample.status.clients) == ((), 1)
        with NodeClient.connect(config, autostart=False) as node:
            node.stop()
        with pytest.raises(PrefeedError):
            real.sample()
    assert len(pids) == 2


def test_a_server_that_does_not_answer_is_reported(real: ServerSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 0.1)
    config = resolve()
    ensure_private_dir(config.runtime_dir)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(config.socket_path))
        listener.listen()
        with pytest.raises(ServerUnavailableError):
            real.sample()
