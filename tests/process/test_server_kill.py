"""The server dies, or is stopped, while a loader reads: the batches stay as they are, and nothing hangs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import datasets as torchvision_datasets

import prefeed
from cover import crossed
from e2e.images import Augment, make_image_folder
from e2e.steps import Setup, assert_same, observe, seed_all
from prefeed.config import resolve
from process.conditions import kill, make_objects, server_pid, status, wait_for
from sandbox import Sandbox, servers_of

LOADERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data", num_images=60)


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


def at_look(number: int, act: Callable[[], None]) -> Callable[[], None]:
    """Return what acts at that look of ``observe``: 0 is before the first batch, n after the nth."""
    looks = iter(range(1 << 30))

    def probe() -> None:
        if next(looks) == number:
            act()

    return probe


def see(loader_class: Any, dataset: Any, kwargs: dict[str, Any], *, probe: Callable[[], None] = lambda: None) -> Any:
    seed_all()
    return observe(loader_class(dataset, batch_size=4, shuffle=True, **kwargs), Setup({}, probe=probe))


@pytest.mark.parametrize(
    ("look", "kwargs"), crossed([0, 1, 7, 15, 16, 17, 24], dict(zip(["0", "2", "2-kept"], LOADERS, strict=True)))
)
def test_kill_mid_epoch(root: Path, sandbox: Sandbox, look: int, kwargs: dict[str, Any]) -> None:
    """Looks 0 to 15 are in the first epoch, 16 is its end, 17 the beginning of the second."""
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    dataset = prefeed.datasets.ImageFolder(root, Augment()) if look % 2 else reference
    expected = see(torch.utils.data.DataLoader, reference, kwargs)
    killed: list[int] = []

    def kill_server() -> None:
        killed.append(server_pid())
        kill(killed[-1])

    assert_same(expected, see(prefeed.DataLoader, dataset, kwargs, probe=at_look(look, kill_server)))
    assert killed
    wait_for(lambda: (found := status()) is not None and found.pid != killed[0], "a new server")
    wait_for(lambda: len(servers_of(sandbox)) == 1, "servers that came second to end")


def test_later_epochs_hit_again(root: Path) -> None:
    """What the killed server had in memory is gone with it; the new one fetches each object once."""
    own = prefeed.datasets.ImageFolder(root, Augment())
    loader = prefeed.DataLoader(own, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in loader:
        pass
    kill(server_pid())
    for _ in loader:
        pass
    wait_for(lambda: (found := status()) is not None and found.plans == 1, "a new server with the plan")

    def hits_of_an_epoch() -> int:
        before = prefeed.statistics().hits
        for _ in loader:
            pass
        return prefeed.statistics().hits - before

    # A worker tries to reach the new server after five seconds, and tells it every 16 reads.
    wait_for(lambda: hits_of_an_epoch() >= len(own) - 2 * 16, "an epoch of hits")
    statistics = prefeed.statistics()
    assert statistics.origin_requests == len(own)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_kill_with_half_the_dataset_cached(
    tmp_path: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    """Transients of the dead server are reclaimed: the budget holds, whatever was in flight."""
    monkeypatch.setenv("PREFEED_MEMORY", "5MiB")
    root = make_objects(tmp_path / "objects")
    objects = prefeed.datasets.Objects(root)
    loader = prefeed.DataLoader(objects, batch_size=8, shuffle=True, num_workers=num_workers, collate_fn=list)
    expected = sorted(file.read_bytes() for file in root.iterdir())
    for killed_at in (3, 11, None):
        seen = []
        for step, batch in enumerate(loader):
            seen += batch
            if step == killed_at:
                kill(server_pid())
        assert sorted(seen) == expected
    statistics = prefeed.statistics()
    assert 0 < statistics.resident_bytes + statistics.transient_bytes <= statistics.budget_bytes
    wait_for(lambda: len(servers_of(sandbox)) == 1, "servers that came second to end")


def test_no_server_may_come_back(root: Path) -> None:
    """With autostart off, the run that lost its server goes on at the origin to its end."""
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    own = prefeed.datasets.ImageFolder(root, Augment())
    pid = server_pid()
    config = resolve({"autostart": False})
    for kwargs in LOADERS[:2]:
        expected = see(torch.utils.data.DataLoader, reference, kwargs)
        actual = see(prefeed.DataLoader, own, {**kwargs, "config": config}, probe=at_look(5, lambda: end(pid)))
        assert_same(expected, actual)
    assert status() is None


def end(pid: int) -> None:
    if status() is not None:
        kill(pid)


def test_stopped_orderly_mid_epoch(root: Path) -> None:
    """``prefeed server stop`` and a signal to end do no more harm than a kill."""
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    own = prefeed.datasets.ImageFolder(root, Augment())
    expected = see(torch.utils.data.DataLoader, reference, LOADERS[1])
    probe = at_look(5, lambda: kill(server_pid(), signal.SIGTERM))
    assert_same(expected, see(prefeed.DataLoader, own, LOADERS[1], probe=probe))


def test_server_held_up(root: Path) -> None:
    """SIGSTOP: a reader that asks waits until the server goes on; what is in the tier is read all the while."""
    own = prefeed.datasets.ImageFolder(root, lambda image: image.getpixel((0, 0)))
    expected = [own[i] for i in range(0, len(own), 2)]  # every second one is in the tier
    pid = server_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert [own[i] for i in range(0, len(own), 2)] == expected
        seen: list[Any] = []
        reader = threading.Thread(target=lambda: seen.append(own[1]))
        reader.start()
        wait_for(lambda: is_receiving(reader), "the reader to wait for the server")
        assert not seen
    finally:
        os.kill(pid, signal.SIGCONT)
    reader.join()
    assert seen == [own[1]]
    assert prefeed.statistics().direct_reads == 0


def is_receiving(thread: threading.Thread) -> bool:
    """Return True while the thread waits for an answer of the server."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "_receive"
