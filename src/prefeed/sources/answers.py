"""Asking an origin: again while its errors may pass, and whether the answer is the object that it lists.

A login page or half a body must not be taken for an object.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from prefeed.config import Config
from prefeed.core.requests import RetryPolicy
from prefeed.errors import SourceError, TruncatedBodyError, WrongAnswerError
from prefeed.sources.listing import Listed
from prefeed.sources.manifest import version_hash
from prefeed.sources.protocol import Source
from prefeed.sources.steadiness import YOUNG_SECONDS
from prefeed.types import Buffer, FetchedObject, ObjectInfo

_log = logging.getLogger("prefeed")

_MOST_SAID: Final = 20
"""A login page comes in place of every object: not a line for each."""

_WEAK: Final = "W/"

_said: set[str] = set()


def require_listed(fetched: FetchedObject, listed: Listed | None, where: Callable[[], str]) -> None:
    """Check that the bytes are those of the object, or that the origin says that it is another one by now.

    Args:
        fetched: What came.
        listed: What was listed; None where nothing is known.
        where: Returns the full path or URL, for messages.

    Raises:
        WrongAnswerError: They are another number, and the origin says nothing of a change. The first time, one line of the log
            says so too.
        TruncatedBodyError: Their number is not known, and the connection may have broken off.
    """
    size = memoryview(fetched.data).nbytes
    if listed is not None and listed.size_bytes == size:
        return
    if not fetched.is_end_known:
        raise TruncatedBodyError(
            f"{where()}: the server sends no Content-Length and no chunks, so a partial body cannot be detected; list its size "
            "in the index, or let the server send one",
            url=where(),
        )
    if listed is None or listed.size_bytes < 0 or _says_changed(fetched, listed):
        return
    encoded = f", encoded as {fetched.encoding}" if fetched.encoding else ""
    message = (
        f"{where()}: {size} bytes came{encoded}, {listed.size_bytes} are listed, and the origin reports no change of the object; "
        "is it a login page or a partial body? If the object did change, list the origin again"
    )
    _say_once(where(), message)
    raise WrongAnswerError(message, url=where())


def version_without_etag(modified_seconds: int, size_bytes: int) -> str:
    """Return the version of an object by time and size; ``""`` without a time."""
    return f"{modified_seconds}-{size_bytes}" if modified_seconds else ""


def seconds_to_settle(info: ObjectInfo, now: float) -> float:
    """Return how long to wait until the version of a web server's object tells it from the one that follows; 0 for most.

    nginx makes its ETag of size and time of change, in whole seconds, and so is the version of an object that has no ETag: two objects of
    one size and one second have the same. A time in the future says nothing, as where the server's clock is ahead.

    Args:
        info: What the server says of it.
        now: The clock, in seconds since 1970.
    """
    changed, size = info.modified_seconds, info.size_bytes
    if not changed or info.version.removeprefix(_WEAK) not in (
        version_without_etag(changed, size),
        f'"{changed:x}-{size:x}"',
    ):
        return 0.0
    age = now - changed
    return max(0.0, YOUNG_SECONDS - age) if age > -YOUNG_SECONDS else 0.0


def _says_changed(fetched: FetchedObject, listed: Listed) -> bool:
    """Return whether another version came: another etag, or, without one on either side, one made after the listing."""
    size = memoryview(fetched.data).nbytes
    has_etag = bool(fetched.version) and fetched.version != version_without_etag(fetched.modified_seconds, size)
    if listed.version_hash and (has_etag or not fetched.modified_seconds) and not fetched.encoding:
        spellings = (fetched.version, fetched.version.removeprefix(_WEAK), _WEAK + fetched.version)
        return has_etag and all(version_hash(spelling) != listed.version_hash for spelling in spellings)
    # An etag of an encoding is one of its own; and a time says nothing against an etag, but that it is later.
    return fetched.modified_seconds > 0 and fetched.modified_seconds >= listed.listed_at() - 1


def _say_once(where: str, message: str) -> None:
    if where not in _said and len(_said) < _MOST_SAID:
        _said.add(where)
        more = "; further ones are only counted" if len(_said) == _MOST_SAID else ""
        _log.warning("prefeed: %s (tried again; then an error%s)", message, more)


_DEADLINE_SECONDS = 60.0


def read_origin(source: Source, path: str, config: Config, *, listed: Listed | None = None) -> Buffer:
    """Return the bytes of the object, tried again while the origin's errors may pass.

    Args:
        source: Of the origin.
        path: Of the object.
        config: Settings.
        listed: What the listing says of it; what differs from that, and is not said to have changed, is such an error.

    Raises:
        SourceError: The origin's own error, with the full path in its message.
    """

    def fetch() -> Buffer:
        fetched = source.fetch(path)
        require_listed(fetched, listed, lambda: source.locate(path))
        return fetched.data

    return patiently(fetch, deadline_seconds=min(config.limits.retry_seconds, _DEADLINE_SECONDS))


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
        stopped: Set when the result is not wanted any more.
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
