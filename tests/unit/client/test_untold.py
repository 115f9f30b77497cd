"""Epochs that no server was told of."""

from __future__ import annotations

from typing import Any

import pytest

from prefeed.client import untold as module
from prefeed.client.untold import Untold
from prefeed.config import Config, resolve
from prefeed.errors import ServerBusyError
from prefeed.types import EpochWait, OriginReads, ReadCounts
from prefeed.wire import messages as m


class Server:
    """Takes what it is told, and answers until it is to fail."""

    def __init__(self, *, answers: int = 1000) -> None:
        self.told: list[EpochWait] = []
        self.num_closed = 0
        self._answers = answers

    def request(self, message: m.GetReadCounts, *_: Any, **__: Any) -> m.ReadCountsReport:
        self._answers -= 1
        if self._answers < 0:
            raise ServerBusyError("busy")
        return m.ReadCountsReport(ReadCounts(), message.token)

    def next_token(self) -> int:
        return 1

    def send(self, message: m.EpochEnded) -> None:
        self.told.append(message.epoch)

    def close(self) -> None:
        self.num_closed += 1


def epoch(number: int, *, reads: OriginReads | None = None) -> EpochWait:
    return EpochWait(loader="Files", rank=None, epoch=number, batches=1, seconds=1.0, waited_seconds=0.5, reads=reads)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(module, "is_listening", lambda _: False)
    return resolve({"home": "/home/one"})


def reached(monkeypatch: pytest.MonkeyPatch, server: Server | None) -> None:
    monkeypatch.setattr(module.Connection, "try_open", lambda *_, **__: server)


def test_a_server_hears_of_its_own_epochs_and_they_are_forgotten(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    untold, server, elsewhere = Untold(), Server(), resolve({"home": "/home/two"})
    untold.keep(epoch(1))  # of a loader that no server is to hear of
    untold.keep(epoch(2, reads=OriginReads(origin="/data", in_place=True)), config)
    untold.keep(epoch(3), config)
    untold.keep(epoch(4), elsewhere)
    reached(monkeypatch, server)
    untold._tell(config)
    assert [one.epoch for one in server.told] == [2, 3]
    assert server.told[0].reads is not None
    assert server.told[0].reads.round_trip_seconds is not None
    assert server.num_closed == 1
    assert [one.epoch for one in untold.all()] == [1, 4]


@pytest.mark.parametrize(
    "server", [None, Server(answers=0), Server(answers=module._QUESTIONS)], ids=["gone", "busy", "ends"]
)
def test_what_it_may_not_have_heard_is_kept(
    config: Config, monkeypatch: pytest.MonkeyPatch, server: Server | None
) -> None:
    untold = Untold()
    untold.keep(epoch(1), config)
    reached(monkeypatch, server)
    untold._tell(config)
    assert [one.epoch for one in untold.all()] == [1]
    assert server is None or server.num_closed == 1
