"""Warm-ups in an order, and into the disk tier when memory is full; with the node's own threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from limits import set_limits
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.jobs.places import locate_place
from prefeed.jobs.warming import WarmEvents, WarmupOptions, fetch_order, warm_up
from prefeed.sources.manifest_writer import build_manifest
from prefeed.sources.posix import PosixSource
from unit.jobs.trees import make

pytestmark = pytest.mark.usefixtures("sandbox")

FILES = {f"{number:03}": os.urandom(1_000_000) for number in range(40)}


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make(tmp_path / "origin", FILES)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Config:
    for name, value in {"MEMORY": "16MiB", "DISK": "100MiB"}.items():
        monkeypatch.setenv(f"PREFEED_{name}", value)
    set_limits(monkeypatch, disk_free_bytes=1 << 20)
    return resolve()


def test_what_memory_has_no_room_for_goes_to_disk(origin: Path, small: Config) -> None:
    result = warm_up(locate_place(str(origin), small), WarmupOptions())

    assert 0 < result.resident < 40
    assert result.resident + result.on_disk == 40
    assert result.fetched == 40
    with NodeClient.connect(small) as node:
        before = node.statistics()
        again = warm_up(locate_place(str(origin), small), WarmupOptions())
        after = node.statistics()
    assert before.disk.objects == 40
    assert after.origin_requests == before.origin_requests == 40
    assert (again.fetched, again.on_disk) == (0, result.on_disk)


def test_a_full_disk_ends_it(origin: Path, small: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_DISK", "24MiB")

    result = warm_up(locate_place(str(origin), resolve()), WarmupOptions())

    assert result.resident + result.on_disk < 40
    assert result.failed == 0


def test_the_order_is_kept_and_no_more_is_in_flight_than_allowed(origin: Path, small: Config) -> None:
    """One at a time: what is in memory is the begin of the order."""
    order = [f"{number:03}" for number in range(39, -1, -1)]
    listed = origin.parent / "list"
    listed.write_text("\n".join(order))

    result = warm_up(locate_place(str(origin), small), WarmupOptions(file=listed, threads=1))
    with NodeClient.connect(small) as node:
        opened = node.open_dataset(str(origin))
        head = warm_up(locate_place(str(origin), small), WarmupOptions(paths=tuple(order[: result.resident])))

    assert opened.dataset
    assert (head.resident, head.fetched) == (result.resident, 0)


def test_partitions_and_strategy_make_the_order(origin: Path, tmp_path: Path) -> None:
    manifest = build_manifest(PosixSource(str(origin)), tmp_path / "manifest")

    parts = [
        fetch_order(manifest, WarmupOptions(strategy="random", seed=3, partitions=3, partition=p)) for p in range(3)
    ]
    whole = fetch_order(manifest, WarmupOptions(strategy="random", seed=3))

    assert [list(part) for part in parts] == [list(whole[p::3]) for p in range(3)]
    assert sorted(whole) == list(range(40)) != list(whole)
    assert list(fetch_order(manifest, WarmupOptions(paths=("007", "003", "007")))) == [7, 3]


def test_a_server_that_dies_is_started_again(origin: Path, small: Config) -> None:
    notes: list[str] = []
    killed = False

    def kill_it(_: object) -> None:
        nonlocal killed
        if not killed:
            killed = True
            with NodeClient.connect(small) as node:
                os.kill(node.status().pid, 9)

    result = warm_up(
        locate_place(str(origin), small), WarmupOptions(threads=1), WarmEvents(progress=kill_it, note=notes.append)
    )

    assert result.resident + result.on_disk == 40 or not notes
