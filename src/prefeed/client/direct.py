"""The origin, read in this process: what happens when the cache cannot help."""

from __future__ import annotations

from prefeed.config import Config
from prefeed.sources.answers import Listed, require_listed
from prefeed.sources.asking_again import patiently
from prefeed.sources.protocol import Source
from prefeed.types import Buffer

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

    return patiently(fetch, deadline_seconds=min(config.retry_deadline, _DEADLINE_SECONDS))
