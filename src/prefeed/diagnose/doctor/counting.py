"""What the cache of a trial did while the loop ran: reads, hits and requests to the origin, now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Self, TypeVar

from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.diagnose.measurement import Counts
from prefeed.errors import PrefeedError
from prefeed.system.clock import Clock
from prefeed.types import Statistics

T = TypeVar("T")

_LEAST_PAUSE_SECONDS: Final = 0.05
_MOST_SHARE: Final = 0.02
"""Share of the time that may go into asking: the loop waits meanwhile."""

_ANSWER_SECONDS: Final = 5.0


class Asking:
    """Asks the server of a home for its counts; starts none, and is silent when there is none yet.

    **Ownership**: its maker closes it, as a context manager.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._client: NodeClient | None = None

    def __call__(self) -> Statistics | None:
        """Return the counts since the server started; None when no server answers."""
        try:
            if self._client is None:
                self._client = NodeClient.connect(self._config, autostart=False, answer_seconds=_ANSWER_SECONDS)
            return self._client.statistics()
        except PrefeedError:
            self._close()
            return None

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def counted(
    begin: Callable[[], Iterable[T]],
    ask: Callable[[], Statistics | None],
    into: list[Counts],
    *,
    clock: Clock = time.perf_counter,
) -> Iterator[T]:
    """Yield the batches of an epoch; meanwhile, and at its end, add the counts since its begin.

    Args:
        begin: Begins an epoch and returns its batches. Objects are fetched from then on, and counted.
        ask: Returns the counts since the server started; None when there is none yet.
        into: Where the counts go; the first are zeros.
        clock: Seconds.
    """
    began, before = clock(), ask()
    into.append(Counts(seconds=0.0, reads=0, hits=0, origin_requests=0))
    due = began + _LEAST_PAUSE_SECONDS
    for batch in begin():
        asked = clock()
        if asked >= due:
            _add(into, before, ask(), asked - began)
            took = clock() - asked
            due = asked + max(_LEAST_PAUSE_SECONDS, took / _MOST_SHARE)
        yield batch
    _add(into, before, ask(), clock() - began)


def _add(into: list[Counts], before: Statistics | None, now: Statistics | None, seconds: float) -> None:
    if now is not None:
        old = (before.reads, before.hits, before.origin_requests) if before is not None else (0, 0, 0)
        reads, hits, requests = now.reads - old[0], now.hits - old[1], now.origin_requests - old[2]
        into.append(Counts(seconds=seconds, reads=reads, hits=hits, origin_requests=requests))
