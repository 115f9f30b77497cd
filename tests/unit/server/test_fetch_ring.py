"""Memory that fetch processes fill: nothing is leased twice, and what was given back is used first."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from prefeed.server.fetch_ring import Ring

KIB = 1024
MIB = 1024**2


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring(MIB)
    yield ring
    ring.close()


def lease(ring: Ring, size: int) -> tuple[int, int]:
    part = ring.lease(size)
    assert part is not None
    return part


def test_parts_are_as_large_as_asked_and_do_not_overlap(ring: Ring) -> None:
    chooser = random.Random(3)
    leased: list[tuple[int, int]] = []
    for _ in range(3000):
        if leased and chooser.random() < 0.5:
            ring.release(*leased.pop(chooser.randrange(len(leased))))
            continue
        size = chooser.choice([0, 1, 5000, 40_000, 88_000, 300_000])
        part = ring.lease(size)
        if part is not None:
            assert part[1] >= size
            assert part[0] + part[1] <= ring.size_bytes
            assert all(part[0] + part[1] <= start or start + length <= part[0] for start, length in leased)
            leased.append(part)
        assert ring.num_leased == len(leased)
    for part in leased:
        ring.release(*part)
    assert lease(ring, MIB) == (0, MIB)
    ring.release(0, MIB)


def test_what_was_given_back_last_is_leased_first(ring: Ring) -> None:
    parts = [lease(ring, 80_000) for _ in range(4)]
    ring.release(*parts[1])
    ring.release(*parts[2])
    assert lease(ring, 80_000) == parts[2]
    for part in (parts[0], parts[2], parts[3]):
        ring.release(*part)


def test_full_ring_leases_nothing_until_something_is_given_back(ring: Ring) -> None:
    parts = [lease(ring, 256 * KIB) for _ in range(4)]
    assert ring.lease(1) is None
    ring.release(*parts.pop())
    parts.append(lease(ring, 256 * KIB))
    for part in parts:
        ring.release(*part)


def test_ring_that_was_cut_into_small_parts_takes_a_large_one_once_all_are_back(ring: Ring) -> None:
    parts = [lease(ring, 64 * KIB) for _ in range(16)]
    for part in parts[1:]:
        ring.release(*part)
    assert ring.lease(512 * KIB) is None
    ring.release(*parts[0])
    ring.release(*lease(ring, 512 * KIB))


def test_bytes_are_seen_through_the_descriptor(ring: Ring) -> None:
    start, _ = lease(ring, 5000)
    os.pwrite(ring.fd, b"hello", start + 100)
    view = ring.view(start + 100, 5)
    assert bytes(view) == b"hello"
    view.release()
    ring.release(start, 8192)


def test_memory_is_made_as_it_is_leased(ring: Ring) -> None:
    large = Ring(64 * MIB)
    ring.release(*lease(ring, 80_000))
    assert os.fstat(large.fd).st_blocks == 0
    part = lease(large, 80_000)
    assert 80_000 <= os.fstat(large.fd).st_blocks * 512 <= 2 * MIB
    large.release(*part)
    large.close()


def test_leases_outlive_close() -> None:
    ring = Ring(MIB)
    part = lease(ring, 100)
    view = ring.view(part[0], 3)
    ring.close()
    ring.close()
    assert bytes(view) == b"\0\0\0"
    view.release()
    ring.release(*part)
    with pytest.raises(ValueError, match="released"):
        ring.view(0, 1)
