"""Looks at the node server for ``prefeed top``: by the usual protocol, never starting one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from prefeed.cli.backend import Backend, Client
from prefeed.cli.top_model import Look, Sample
from prefeed.cli.top_sets import SampleSets
from prefeed.config import Config
from prefeed.errors import PrefeedError

ANSWER_SECONDS = 5.0
"""A server that says nothing for so long is shown as one that does not answer."""


class ServerSource:
    """Keeps a connection to the home's server, and finds another server when that one is gone.

    **Ownership**: whoever makes it closes it; also a context manager. **Threads**: one at a time.
    **Blocking**: ``look`` for ``ANSWER_SECONDS`` at most, then says so.
    """

    def __init__(self, backend: Backend, config: Config) -> None:
        self._backend = backend
        self._config = config
        self._client: Client | None = None
        self._sample_sets = SampleSets(config, clock=time.monotonic)

    def look(self) -> Look:
        """Return what the server does now, or why nobody knows."""
        try:
            return Look(sample=self.sample())
        except PrefeedError as err:
            return Look(trouble=str(err))

    def sample(self) -> Sample:
        """Return what the server does now.

        Raises:
            ServerUnavailableError: There is none, or it does not answer.
        """
        if self._client is None:
            self._client = self._backend.connect(self._config, autostart=False, answer_seconds=ANSWER_SECONDS)
        try:
            client = self._client
            return Sample(
                status=client.status(),
                statistics=client.statistics(),
                plans=client.plans(),
                sample_sets=self._sample_sets.rows(),
            )
        except PrefeedError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next look opens another."""
        client, self._client = self._client, None
        if client is not None:
            client.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Poller:
    """Looks again and again in a thread of its own.

    Args:
        look: Returns a look; may block.
        show: Given each look; called in that thread.
        interval_seconds: Pause between two looks.

    **Threads**: a daemon, which ends soon after ``stop``; ``stop`` does not wait for a look that hangs.
    """

    def __init__(self, look: Callable[[], Look], show: Callable[[Look], None], *, interval_seconds: float) -> None:
        self.is_paused = False
        self._look = look
        self._show = show
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()

    def start(self) -> None:
        """Look from now on."""
        threading.Thread(target=self._run, name="prefeed-top", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self.is_paused:
                look = self._look()
                if not self._stopped.is_set():
                    self._show(look)
            self._stopped.wait(self._interval_seconds)
