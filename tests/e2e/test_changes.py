"""When a change at the origin is noticed, and that nothing is ever written there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torchvision import datasets as torchvision_datasets

import prefeed
from e2e.hashed import Hashed, kept, name_of, write_hashed
from e2e.images import image_files, make_image_folder
from leaks import wait_until
from prefeed.client.node import NodeClient
from prefeed.config import resolve


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def epoch(dataset: Any) -> list[bytes]:
    return list(prefeed.DataLoader(dataset, batch_size=None))


def contents(root: Path) -> list[bytes]:
    return [file.read_bytes() for file in image_files(root)]


def change(file: Path) -> None:
    """Give the file other bytes of the same number, and a later time."""
    status = file.stat()
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def test_a_dataset_is_a_snapshot_and_one_made_now_is_of_now(tmp_path: Path) -> None:
    """What is in the cache is served as it was listed; a new dataset has the new bytes, and only they are fetched."""
    root = make_image_folder(tmp_path / "data")
    before = contents(root)
    old = prefeed.datasets.Objects(root)
    assert epoch(old) == before
    changed, added = image_files(root)[4], root / "class2" / "new.png"
    change(changed)
    added.write_bytes(b"one more")
    assert epoch(old) == before
    assert epoch(prefeed.datasets.Objects(root, listing_age=float("inf"))) == before
    asked = prefeed.statistics().origin_requests
    renewed = prefeed.datasets.Objects(root)
    assert epoch(renewed) == contents(root) != before
    assert prefeed.statistics().origin_requests == asked + 2
    assert prefeed.statistics().errors == {}


def test_change_before_the_first_fetch(tmp_path: Path) -> None:
    """Not in the cache yet: the bytes that are there now are read, each time anew, and never kept."""
    root = make_image_folder(tmp_path / "data")
    objects = prefeed.datasets.Objects(root)
    objects.prefeed_state()  # sizes and times are known, which a dataset asks for before its first read
    change(image_files(root)[4])
    for _ in range(2):
        assert epoch(objects) == contents(root)
        change(image_files(root)[4])
    assert prefeed.statistics().resident_objects == len(objects) - 1
    assert prefeed.statistics().errors["object-changed"] >= 2


@pytest.mark.parametrize("revalidate", [True, False])
def test_torchvisions_files_are_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revalidate: bool
) -> None:
    """Each epoch, or only by a new loader."""
    monkeypatch.setenv("PREFEED_REVALIDATE", str(int(revalidate)))
    root = make_image_folder(tmp_path / "data")
    dataset = torchvision_datasets.DatasetFolder(str(root), read, (".png",))
    loader = prefeed.DataLoader(dataset, batch_size=None)
    before = contents(root)
    assert [data for data, _ in loader] == before
    subprocess.run(["sh", "-c", 'printf x >> "$0"', image_files(root)[4]], check=True)  # by another program
    assert contents(root) != before
    assert [data for data, _ in loader] == (contents(root) if revalidate else before)
    assert [data for data, _ in epoch(dataset)] == contents(root)


NUM_SAMPLES = 240
BATCH_SIZE = 8


def has_fetched(num_requests: int) -> bool:
    return prefeed.statistics().origin_requests == num_requests


def touch(file: Path) -> None:
    os.utime(file)


def replace(file: Path) -> None:
    """Put another file in its place, of more bytes."""
    other = file.with_suffix(".new")
    other.write_bytes(file.read_bytes() + b"more")
    other.replace(file)


@pytest.mark.parametrize(
    ("alter", "every", "is_same_loader", "num_workers"),
    [(touch, 1, True, 2), (touch, 1, False, 0), (replace, 3, False, 2)],
)
def test_files_that_changed_are_fetched_again_ahead_of_their_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int, is_same_loader: bool, alter: Any, every: int
) -> None:
    """While the loop stands at its first batch, the server fetches all that changed: only what is asked before is a miss."""
    root = tmp_path / "data"
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    write_hashed(root, dataset := Hashed(root, NUM_SAMPLES))

    def new_loader() -> Any:
        return prefeed.DataLoader(
            dataset, batch_size=BATCH_SIZE, shuffle=True, collate_fn=kept, num_workers=num_workers,
            persistent_workers=is_same_loader and num_workers > 0,
        )  # fmt: skip

    loader = new_loader()
    list(loader)
    for _ in range(2):
        changed = [root / name_of(index) for index in range(0, NUM_SAMPLES, every)]
        for file in changed:
            alter(file)
        truth = dict(dataset[index] for index in range(NUM_SAMPLES))
        before = prefeed.statistics()
        loader = loader if is_same_loader else new_loader()
        batches = iter(loader)
        found = next(batches)
        assert wait_until(partial(has_fetched, before.origin_requests + len(changed)), timeout_seconds=30)
        for batch in batches:
            found += batch
        assert dict(found) == truth
        after = prefeed.statistics()
        assert after.origin_requests == before.origin_requests + len(changed)
        assert after.direct_reads == before.direct_reads
        assert after.misses - before.misses <= BATCH_SIZE * (1 + 2 * num_workers)


def test_origin_is_only_read(tmp_path: Path) -> None:
    """Not a file, a time or a byte differs after reading, clearing and stopping."""
    root = make_image_folder(tmp_path / "data")

    def look() -> list[Any]:
        paths = [root, *sorted(root.rglob("*"))]
        return [(path, path.stat().st_mtime_ns, path.stat().st_ino, path.stat().st_mode) for path in paths]

    before, data = look(), contents(root)
    epoch(prefeed.datasets.Objects(root))
    with NodeClient.connect(resolve()) as node:
        assert node.clear(str(root)).entries == len(data)
        node.stop()
    assert look() == before
    assert contents(root) == data
