"""The thread that lets a loader join."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from leaks import wait_until
from prefeed.client.in_place import PlaceState
from prefeed.client.joining import Joining
from unit.client.test_in_place import Memory, measure

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.fixture
def state() -> PlaceState:
    state = PlaceState(Memory())
    state.epoch_begins(in_place=True)
    return state


def ended(joining: Joining) -> None:
    assert wait_until(lambda: not joining.is_running, timeout_seconds=60)


def remembered(calls: list[Joining]) -> Callable[[Joining], None]:
    return calls.append


def test_joins_at_once(state: PlaceState) -> None:
    calls: list[Joining] = []
    joining = Joining(state, remembered(calls), when_slow=False)
    ended(joining)
    assert calls == [joining]


def test_joins_when_storage_is_slow(state: PlaceState) -> None:
    calls: list[Joining] = []
    joining = Joining(state, remembered(calls), when_slow=True)
    assert joining.is_waiting
    measure(state, slow=4)
    ended(joining)
    assert calls == [joining]
    assert not joining.is_waiting


def test_quick_storage_is_left_alone(state: PlaceState) -> None:
    calls: list[Joining] = []
    joining = Joining(state, remembered(calls), when_slow=True)
    measure(state, slow=0, quick=16)
    ended(joining)
    assert not calls


def test_stopped_while_it_waits(state: PlaceState) -> None:
    calls: list[Joining] = []
    joining = Joining(state, remembered(calls), when_slow=True)
    joining.stop()
    ended(joining)
    assert not calls


def test_stopped_while_it_opens_the_node(state: PlaceState) -> None:
    """Whoever joins looks before it changes anything."""
    begun, released, seen = threading.Event(), threading.Event(), []

    def join(joining: Joining) -> None:
        begun.set()
        released.wait(60)
        seen.append(joining.is_stopped)

    joining = Joining(state, join, when_slow=False)
    assert begun.wait(60)
    joining.stop()
    released.set()
    ended(joining)
    assert seen == [True]


def test_without_a_thread_nothing_is_joined(state: PlaceState, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls: list[Joining] = []
    joining = Joining(state, remembered(calls), when_slow=False)
    assert not joining.is_running
    assert not calls
