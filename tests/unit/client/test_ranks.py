"""How many ranks of a job are on this node, where no launcher tells."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from multiprocessing.connection import Connection
from types import ModuleType

import pytest

from prefeed.client.dataset import _LOCAL_RANKS, _local_ranks
from process.children import child_running


class Distributed(ModuleType):
    """``torch.distributed`` as a rank of a job of so many has it."""

    def __init__(self, world_size: int) -> None:
        super().__init__("torch.distributed")
        self.get_world_size = lambda: world_size
        self.is_available = lambda: True
        self.is_initialized = lambda: world_size > 0


def count_when_told(world_size: int, pipe: Connection) -> None:
    sys.modules["torch.distributed"] = Distributed(world_size)
    while pipe.recv():
        pipe.send(_local_ranks())


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(("world_size", "expected"), [(0, 1), (1, 1), (3, 3), (999, 3)])
def test_ranks_that_multiprocessing_has_started_are_siblings(world_size: int, expected: int) -> None:
    """On one node of several there are fewer than in all; what is no rank has no process group."""
    with ExitStack() as stack:
        pipes = [stack.enter_context(child_running(count_when_told, world_size))[1] for _ in range(3)]
        for pipe in pipes:
            pipe.send(True)
        found = {pipe.recv() for pipe in pipes}
    assert len(found) == 1
    assert found == {expected} or (
        world_size > expected > 1 and expected <= min(found) < world_size
    )  # others of the test's


def test_a_process_that_was_not_started_here_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(8))
    assert _local_ranks() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert _local_ranks() == 4
