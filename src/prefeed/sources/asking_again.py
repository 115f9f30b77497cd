"""An origin asked again while its errors may pass."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from prefeed.core.requests import RetryPolicy
from prefeed.errors import SourceError

Result = TypeVar("Result")


def patiently(
    request: Callable[[], Result],
    *,
    deadline_seconds: float,
    stopped: threading.Event | None = None,
    errors: type[SourceError] = SourceError,
) -> Result:
    """Return what the request returns, made again with growing pauses while its errors may pass.

    Args:
        request: What is asked.
        deadline_seconds: Time after which it is given up.
        stopped: Set when nobody wants the result any more.
        errors: Which of those that may pass are waited for; all others are raised at once.

    Raises:
        SourceError: A permanent one, or the last one when the time is over.
    """
    stopped = stopped or threading.Event()
    policy = RetryPolicy(deadline_seconds=deadline_seconds)
    started, attempts = time.monotonic(), 0
    while True:
        attempts += 1
        try:
            return request()
        except errors as err:
            elapsed = time.monotonic() - started
            jitter = random.Random().random()  # not the global generator: the user's seed stays theirs
            delay = policy.next_delay(attempts=attempts, elapsed_seconds=elapsed, jitter=jitter)
            if not err.retryable or delay is None or stopped.wait(delay):
                raise
