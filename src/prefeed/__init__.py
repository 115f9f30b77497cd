"""Read-ahead cache for training data, shared by all training processes of a machine.

prefeed reads the order of your sampler and fetches files before the workers need them.

    import prefeed
    loader = prefeed.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=8)

Everything is imported at first use, so that ``import prefeed`` is fast and does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefeed import datasets, errors, vision
    from prefeed.api import read, statistics
    from prefeed.config import Config, configure
    from prefeed.datasets.plans import Plan, PlanProgress, PlanReader
    from prefeed.diagnose.doctor import doctor
    from prefeed.diagnose.tune import tune
    from prefeed.files.opening import open
    from prefeed.files.resuming import resumable
    from prefeed.files.shards import shards
    from prefeed.loaders.declared import Accessor
    from prefeed.prefetching import BackgroundGenerator, background, prefetch
    from prefeed.stage_cache.cache import DatasetCache
    from prefeed.stage_cache.dataset import CachedDataset, cached, mapped
    from prefeed.stage_cache.randomness import not_random
    from prefeed.torch.device import DevicePrefetcher
    from prefeed.torch.loader import DataLoader
    from prefeed.types import Statistics

__version__ = "0.1.0"

__all__ = [
    "Accessor",
    "BackgroundGenerator",
    "CachedDataset",
    "Config",
    "DataLoader",
    "DatasetCache",
    "DevicePrefetcher",
    "Plan",
    "PlanProgress",
    "PlanReader",
    "Statistics",
    "background",
    "cached",
    "configure",
    "datasets",
    "doctor",
    "errors",
    "mapped",
    "not_random",
    "open",
    "prefetch",
    "read",
    "resumable",
    "shards",
    "statistics",
    "tune",
    "vision",
]

_HOMES = {
    "Accessor": "prefeed.loaders.declared",
    "BackgroundGenerator": "prefeed.prefetching",
    "CachedDataset": "prefeed.stage_cache.dataset",
    "Config": "prefeed.config",
    "DataLoader": "prefeed.torch.loader",
    "DatasetCache": "prefeed.stage_cache.cache",
    "DevicePrefetcher": "prefeed.torch.device",
    "Plan": "prefeed.datasets.plans",
    "PlanProgress": "prefeed.datasets.plans",
    "PlanReader": "prefeed.datasets.plans",
    "Statistics": "prefeed.types",
    "background": "prefeed.prefetching",
    "cached": "prefeed.stage_cache.dataset",
    "configure": "prefeed.config",
    "datasets": None,
    "doctor": "prefeed.diagnose.doctor",
    "errors": None,
    "mapped": "prefeed.stage_cache.dataset",
    "not_random": "prefeed.stage_cache.randomness",
    "open": "prefeed.files.opening",
    "prefetch": "prefeed.prefetching",
    "read": "prefeed.api",
    "resumable": "prefeed.files.resuming",
    "shards": "prefeed.files.shards",
    "statistics": "prefeed.api",
    "tune": "prefeed.diagnose.tune",
    "vision": None,
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'prefeed' has no attribute {name!r}")
    home = _HOMES[name]
    value = importlib.import_module(f"prefeed.{name}") if home is None else getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
