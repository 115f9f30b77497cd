"""Constants that bound requests, blocks and waits of the node server and its clients.

They are not settings: one value fits every origin, because the code adapts below it. All of them are in one frozen value,
``Config.limits``, so that a test can replace them in its own process (``resolve(limits=...)``) and in the processes that it
starts (``PREFEED_LIMITS``, a list such as ``"block_bytes=65536 start_ahead=0"``). A node server gets those of the process that
starts it in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

from prefeed.errors import ConfigError
from prefeed.quantities import MIB

LIMITS_VARIABLE: Final = "PREFEED_LIMITS"
"""Environment variable that hands limits to child processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Constants of the node server and its clients.

    Attributes:
        lookahead_bytes: Maximum bytes fetched ahead of each consumer. 512 MiB are seconds of reading, more than an origin is
            silent for.
        max_in_flight: Maximum requests to one origin at a time. The number in use is tuned below it.
        request_seconds: Maximum duration of one request to the origin.
        retry_seconds: How long a failing request is repeated. 120 s outlast the restart of a store's gateway.
        start_seconds: Maximum wait for a node server to start. A busy machine imports its modules in a few seconds.
        start_ahead: Read samples directly while the server starts.
        read_in_place: Read files directly, without a server, while storage answers faster than the cache.
        block_bytes: Size of a block of an object that is cached in blocks: large enough that a request costs less than its
            transfer, small enough that a reader of a part does not fetch the rest.
        max_object_bytes: Size above which a file opened by path is cached in blocks and not whole.
        disk_free_bytes: Space that the disk tier leaves free on its file system; None for a tenth of it.
    """

    lookahead_bytes: int = 512 * MIB
    max_in_flight: int = 256
    request_seconds: float = 30.0
    retry_seconds: float = 120.0
    start_seconds: float = 15.0
    start_ahead: bool = True
    read_in_place: bool = True
    block_bytes: int = MIB
    max_object_bytes: int = 64 * MIB
    disk_free_bytes: int | None = None

    def __str__(self) -> str:
        """Return the limits that differ from the constants, as ``LIMITS_VARIABLE`` contains them."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        changed = {name: value for name, value in values.items() if value != _DEFAULTS[name]}
        return " ".join(f"{name}={int(value) if isinstance(value, bool) else value}" for name, value in changed.items())


_DEFAULTS: Final[dict[str, Any]] = {field.name: field.default for field in fields(Limits)}


def parse_limits(text: str) -> Limits:
    """Parse the value of ``LIMITS_VARIABLE``.

    Raises:
        ConfigError: A name is unknown, or a value is not a number.
    """
    changes: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        try:
            number = float(value)
            changes[name] = number if isinstance(_DEFAULTS[name], float) else int(number)
            if isinstance(_DEFAULTS[name], bool):
                changes[name] = bool(number)
        except (KeyError, ValueError) as err:
            raise ConfigError(
                f"{LIMITS_VARIABLE}: {part!r} is not name=number with one of {', '.join(_DEFAULTS)}"
            ) from err
    return replace(Limits(), **changes)
