"""Cached stages: the result of a deterministic step of a pipeline, computed once for every process and epoch. Needs no torch.

``dataset``        ``CachedDataset`` and ``map``: start reading here
``cache``          ``DatasetCache``, with MindSpore's arguments
``finding``        finds samples in a cache, and checks that they are current
``making``         computes samples, compares them, and writes them into a cache
``auditing``       when found samples are recomputed and compared
``stage``          the stage as it is now, and the key of each sample
``parts``          values of named parts between two fingerprints, and parts that computing samples changes
``fingerprint``    a hash of everything that samples are computed with
``contents``       the contents of functions, classes, arrays and instances, for the fingerprint
``imports``        the sources of modules that functions import, for the fingerprint
``distributions``  versions of installed modules
``randomness``     the global generators, and marks of steps that chance does not change
``files_seen``     the files that a sample opens, and that later samples depend on
``rows``           samples to bytes and back, by pickle
``comparing``      the first difference of two samples
``cache_store``    one cache as one process sees it
``cache_link``     messages of this process to the server about a cache
``claims``         locks on entries that are being computed
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefeed.stage_cache.cache import CacheStatistics, DatasetCache
    from prefeed.stage_cache.dataset import CachedDataset, MappedDataset, cached, mapped
    from prefeed.stage_cache.randomness import not_random

__all__ = [
    "CacheStatistics",
    "CachedDataset",
    "DatasetCache",
    "MappedDataset",
    "cached",
    "mapped",
    "not_random",
]

_HOMES = {"CacheStatistics": "cache", "DatasetCache": "cache", "not_random": "randomness"}
"""Modules; all else is in ``dataset``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'prefeed.stage_cache' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"prefeed.stage_cache.{_HOMES.get(name, 'dataset')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
