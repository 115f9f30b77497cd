"""Opens the pool tier where there is to be one: only then is its client needed."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Final

from prefeed.config import Config
from prefeed.errors import ConfigError

if TYPE_CHECKING:
    from prefeed.server.pool import PoolTier

_CLIENT: Final = "pymemcache"


def open_pool(config: Config) -> PoolTier | None:
    """Return the tier that the settings name, None if they name no server; none of them is waited for.

    Raises:
        ConfigError: The client that reaches them is not installed.
    """
    if not config.pool:
        return None
    try:
        module = importlib.import_module("prefeed.server.pool")
    except ModuleNotFoundError as err:
        if err.name is None or err.name.partition(".")[0] != _CLIENT:
            raise
        raise ConfigError(f"PREFEED_POOL needs {_CLIENT}: pip install 'prefeed[pool]'", setting="pool") from err
    tier: PoolTier = module.PoolTier(config.pool.split(","), timeout_seconds=config.pool_timeout, clock=time.monotonic)
    return tier
