from __future__ import annotations

import pytest

from prefeed.sampleset.status import (
    BOUND,
    INTERRUPTED,
    MOUNT,
    NONE,
    PARTIAL_READY,
    READY,
    SYNC_FAILED,
    SYNCING,
    Facts,
    error_of,
    phase_of,
)

WORKING = Facts(is_worked_at=True)


@pytest.mark.parametrize(
    ("facts", "phase", "error"),
    [
        (Facts(is_recorded=False), NONE, ""),
        (Facts(), BOUND, ""),
        (WORKING, BOUND, ""),
        (Facts(error="no memory"), BOUND, "no memory"),
        (Facts(is_worked_at=True, has_server=True), MOUNT, ""),
        (Facts(is_worked_at=False, has_server=True), MOUNT, ""),
        (Facts(is_worked_at=True, has_server=True, has_begun=True), SYNCING, ""),
        (Facts(is_worked_at=False, has_server=True, has_begun=True), SYNC_FAILED, INTERRUPTED),
        (Facts(is_worked_at=False, has_server=False, has_begun=True), SYNC_FAILED, INTERRUPTED),
        (Facts(has_server=True, has_begun=True, error="access denied"), SYNC_FAILED, "access denied"),
        (Facts(has_server=True, has_begun=True, is_complete=True, error="full"), SYNC_FAILED, "full"),
        (Facts(has_server=True, has_begun=True, is_complete=True, num_ready=1), READY, ""),
        (Facts(has_server=True, has_begun=True, is_complete=True, num_ready=1, partitions=2), PARTIAL_READY, ""),
        (Facts(is_worked_at=True, has_server=True, has_begun=True, is_complete=True, num_ready=1), READY, ""),
        (Facts(has_server=False, has_begun=True, is_complete=True), BOUND, ""),
    ],
)
def test_each_phase(facts: Facts, phase: str, error: str) -> None:
    assert (phase_of(facts), error_of(facts)) == (phase, error)


def test_the_way_of_a_set_that_is_brought_up() -> None:
    way = [
        Facts(is_recorded=False),
        Facts(is_worked_at=True),
        Facts(is_worked_at=True, has_server=True),
        Facts(is_worked_at=True, has_server=True, has_begun=True),
        Facts(is_worked_at=True, has_server=True, has_begun=True, is_complete=True, num_ready=1, partitions=2),
        Facts(has_server=True, has_begun=True, is_complete=True, num_ready=2, partitions=2),
    ]
    assert [phase_of(facts) for facts in way] == [NONE, BOUND, MOUNT, SYNCING, PARTIAL_READY, READY]
