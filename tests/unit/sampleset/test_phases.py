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
    PhaseInputs,
    failure_of,
    phase_of,
)

WORKING = PhaseInputs(is_being_set_up=True)


@pytest.mark.parametrize(
    ("facts", "phase", "error"),
    [
        (PhaseInputs(is_recorded=False), NONE, ""),
        (PhaseInputs(), BOUND, ""),
        (WORKING, BOUND, ""),
        (PhaseInputs(error="no memory"), BOUND, "no memory"),
        (PhaseInputs(is_being_set_up=True, has_server=True), MOUNT, ""),
        (PhaseInputs(is_being_set_up=False, has_server=True), MOUNT, ""),
        (PhaseInputs(is_being_set_up=True, has_server=True, has_begun=True), SYNCING, ""),
        (PhaseInputs(is_being_set_up=False, has_server=True, has_begun=True), SYNC_FAILED, INTERRUPTED),
        (PhaseInputs(is_being_set_up=False, has_server=False, has_begun=True), SYNC_FAILED, INTERRUPTED),
        (PhaseInputs(has_server=True, has_begun=True, error="access denied"), SYNC_FAILED, "access denied"),
        (PhaseInputs(has_server=True, has_begun=True, is_complete=True, error="full"), SYNC_FAILED, "full"),
        (PhaseInputs(has_server=True, has_begun=True, is_complete=True, num_ready=1), READY, ""),
        (PhaseInputs(has_server=True, has_begun=True, is_complete=True, num_ready=1, partitions=2), PARTIAL_READY, ""),
        (PhaseInputs(is_being_set_up=True, has_server=True, has_begun=True, is_complete=True, num_ready=1), READY, ""),
        (PhaseInputs(has_server=False, has_begun=True, is_complete=True), BOUND, ""),
    ],
)
def test_each_phase(facts: PhaseInputs, phase: str, error: str) -> None:
    assert (phase_of(facts), failure_of(facts)) == (phase, error)


def test_the_way_of_a_set_that_is_brought_up() -> None:
    way = [
        PhaseInputs(is_recorded=False),
        PhaseInputs(is_being_set_up=True),
        PhaseInputs(is_being_set_up=True, has_server=True),
        PhaseInputs(is_being_set_up=True, has_server=True, has_begun=True),
        PhaseInputs(is_being_set_up=True, has_server=True, has_begun=True, is_complete=True, num_ready=1, partitions=2),
        PhaseInputs(has_server=True, has_begun=True, is_complete=True, num_ready=2, partitions=2),
    ]
    assert [phase_of(facts) for facts in way] == [NONE, BOUND, MOUNT, SYNCING, PARTIAL_READY, READY]
