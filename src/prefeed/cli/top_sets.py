"""Sample sets of this home as ``prefeed top`` shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from prefeed.cli.top_model import SampleSetRow
from prefeed.config import Config
from prefeed.errors import PrefeedError
from prefeed.sampleset import records
from prefeed.sampleset.status import observe
from prefeed.system.clock import Clock

_LEAST_PAUSE_SECONDS: Final = 5.0
_MOST_SHARE: Final = 0.05
"""Share of the time that may go into looking: it takes about a second for a million objects."""


class SampleSets:
    """Looks at the home's sample sets, now and then.

    Args:
        clock: Seconds.

    **Threads**: one at a time. **Blocking**: as long as ``observe`` takes, for each set.
    """

    def __init__(self, config: Config, *, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._rows: tuple[SampleSetRow, ...] = ()
        self._next = clock()

    def rows(self) -> tuple[SampleSetRow, ...]:
        """Return the sample sets by name, as they were when they were last looked at."""
        started = self._clock()
        if started >= self._next:
            self._rows = tuple(_rows(self._config))
            took = self._clock() - started
            self._next = self._clock() + max(_LEAST_PAUSE_SECONDS, took / _MOST_SHARE)
        return self._rows


def _rows(config: Config) -> Iterator[SampleSetRow]:
    for name in sorted(records.names(config)):
        with contextlib.suppress(PrefeedError, OSError):  # removed meanwhile, or its record is damaged
            status = observe(records.find(name, config), config)
            yield SampleSetRow(
                name=name, phase=status.phase, cached_bytes=status.cached_bytes, total_bytes=status.total_bytes
            )
